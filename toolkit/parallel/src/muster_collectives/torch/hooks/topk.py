"""Deep gradient compression: only the largest gradients travel, the others gather momentum here.

Lin et al., Deep Gradient Compression, ICLR 2018: momentum correction and factor masking (3.2),
local accumulation, local clipping, warm-up (3.3).
"""

# DDP compares a hook's annotations, so they must not be text: no `from __future__` here.

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from muster_collectives.torch.compress.group_calls import all_gather_single
from muster_collectives.torch.hooks.average import average, group_or_world, inside
from muster_collectives.torch.hooks.feedback import ErrorFeedback

# Lin et al. 2018, 3.3: an epoch each, then the final sparsity
_STAGES = (0.75, 0.9375, 0.984375, 0.996)


@dataclass(frozen=True)
class WarmUp:
    """The stages in which top-k becomes sparse: dense at first, when gradients change fastest.

    `steps` optimizer steps in as many equal stages as there are `sparsities`; 0: none."""

    steps: int = 0
    sparsities: tuple[float, ...] = _STAGES

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"warm-up of {self.steps} steps: 0 or more")
        if self.steps and not self.sparsities:
            raise ValueError("warm-up without sparsities: name at least one, or 0 steps")
        for sparsity in self.sparsities:
            if not 0 <= sparsity < 1:
                raise ValueError(f"sparsity {sparsity:g} is not in [0, 1)")

    def sparsity(self, step: int, final: float) -> float:
        """Of step `step`, counted from 0."""
        if step >= self.steps:
            return final
        return min(self.sparsities[step * len(self.sparsities) // self.steps], final)


_SAMPLED_FROM = 1 << 16  # shorter vectors are sorted as they are
_SAMPLE = 1 << 14


def largest(values: Tensor, count: int) -> Tensor:
    """int64 indices, at most `count`, without order, of values that are among the largest.

    Exact for short vectors. For long ones a threshold is guessed from every n-th value (Lin et al.
    2018, 3.1 sample too): never more than `count`, sometimes a few fewer. NaN counts as largest.
    """
    magnitudes = values.abs()
    if values.numel() <= max(_SAMPLED_FROM, count * 4):
        return torch.topk(magnitudes, min(count, values.numel()), sorted=False).indices
    sample = magnitudes[:: max(1, values.numel() // _SAMPLE)]
    # somewhat more than wanted, of which the exact choice is then made
    wanted = min(sample.numel(), max(1, int(1.3 * count * sample.numel() / values.numel()) + 2))
    threshold = torch.topk(sample, wanted, sorted=True).values[-1]
    found = (~(magnitudes < threshold)).nonzero().view(-1)
    if found.numel() * 4 < count * 3:  # the sample misled
        return torch.topk(magnitudes, count, sorted=False).indices
    if found.numel() <= count:
        return found
    return found[torch.topk(magnitudes[found], count, sorted=False).indices]


class TopKState:
    """What top_k_hook keeps: 8 bytes for each gradient value, and as much again while it travels.

    The hook has the momentum, so the optimizer is plain SGD without any: SGD(lr) here steps as
    SGD(lr, momentum) does without the hook where everything travels. `sparsity`: the share of
    values that stay at home. Buckets of fewer than `least` values travel whole, with the same
    momentum. `clip_norm`: each rank's part of a bucket is first scaled down to this 2-norm divided
    by the square root of the number of ranks (None: not at all). `warm_up`: sparsity by step.
    `scale`: with a GradScaler, its get_scale, so that what is kept follows its changes; a bucket
    whose result is not finite, which no step is made of, leaves what is kept as it was. Sparse
    gradients are averaged as they are, without momentum. Raises ValueError for values outside their
    range.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        momentum: float = 0.9,
        sparsity: float = 0.999,
        warm_up: WarmUp | None = None,
        clip_norm: float | None = None,
        least: int = 4096,
        scale: Callable[[], float] | None = None,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum {momentum:g} is not in [0, 1)")
        if not 0 <= sparsity < 1:
            raise ValueError(f"sparsity {sparsity:g} is not in [0, 1)")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm {clip_norm:g} is not positive")
        self.group = group_or_world(group)
        self.momentum, self.final_sparsity, self.clip_norm = momentum, sparsity, clip_norm
        self.warm_up = warm_up or WarmUp()
        self.least = least
        self.step = 0  # optimizer steps that have been reduced so far
        self.velocity = ErrorFeedback(scale)
        self.gathered = ErrorFeedback(lambda: self.velocity.scaled_by)  # a GPU's scale takes a wait

    @property
    def sparsity(self) -> float:
        """Of the step that comes next."""
        return self.warm_up.sparsity(self.step, self.final_sparsity)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not checked
def top_k_hook(state: TopKState, bucket: dist.GradBucket) -> Future[Tensor]:
    """Averages what travels of the bucket; the rest of its buffer is zero. See TopKState."""
    buffer, sparsity = bucket.buffer(), state.sparsity
    if bucket.is_last():
        state.step += 1
    if buffer.layout is not torch.strided:
        return average(state.group, buffer)
    kept = state.velocity.of(bucket), state.gathered.of(bucket)
    gradient = buffer.float()
    overflow = gradient.abs().amax() * 0  # NaN if a value is not finite: all ranks shall see it
    gradient = gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    gradient = _clipped(gradient, state.clip_norm, state.group.size())
    velocity = kept[0] * state.momentum + gradient
    gathered = kept[1] + velocity
    future = _sent(state, buffer, velocity, gathered, sparsity, overflow)
    return future.then(lambda done: _kept(done.value(), kept, (velocity, gathered)))


def _sent(
    state: TopKState, buffer: Tensor, velocity: Tensor, gathered: Tensor, sparsity: float,
    overflow: Tensor,
) -> Future[Any]:  # fmt: skip
    """A future of the average of what travels, which is taken out of `velocity`, `gathered`."""
    count = math.ceil(buffer.numel() * (1 - sparsity))
    if buffer.numel() < state.least or count >= buffer.numel():
        # The sum of momenta is the momentum of the sum: nothing is masked where all of it travels.
        buffer.copy_(gathered)
        buffer[:1] += overflow.to(buffer.dtype)
        gathered.zero_()
        return average(state.group, buffer)
    chosen = largest(gathered, count)
    values = gathered[chosen]
    values[:1] += overflow
    gathered[chosen] = 0
    velocity[chosen] = 0  # factor masking: stale momentum must not push what has just moved
    if count * state.group.size() >= buffer.numel():  # a dense sum moves no more bytes
        buffer.zero_()[chosen] = values.to(buffer.dtype)
        return average(state.group, buffer)
    # places, and the bits of their values; filled up with zeros for place 0
    message = torch.zeros(2, count, dtype=torch.int32, device=values.device)
    message[0, : chosen.numel()] = chosen.to(torch.int32)
    message[1].view(torch.float32)[: chosen.numel()] = values
    return _sparse(state, buffer, message)


def _kept(result: Tensor, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> Tensor:
    """Takes the step into what is kept, unless nobody makes it: all ranks see the same result."""
    is_made = result.isfinite().all()
    for old, new in zip(before, after, strict=True):
        if new.is_cuda:  # this runs on a stream of the future's, after the hook has let go of it
            new.record_stream(torch.cuda.current_stream(new.device))
        old.copy_(torch.where(is_made, new, old))  # without a word from a GPU
    return result


def _clipped(gradient: Tensor, norm: float | None, ranks: int) -> Tensor:
    if norm is None:
        return gradient
    limit = norm / math.sqrt(ranks)
    return gradient * (limit / gradient.norm().clamp_min(limit))


def _sparse(state: TopKState, buffer: Tensor, message: Tensor) -> Future[Any]:
    size = state.group.size()
    messages = torch.empty(size, *message.shape, dtype=torch.int32, device=message.device)
    work = inside(
        all_gather_single(messages.view(-1), message.view(-1), group=state.group, async_op=True)
    )

    def summed(done: Future[Any]) -> Tensor:
        done.value()  # raises what the collective raised
        total = torch.zeros_like(buffer, dtype=torch.float32)
        for one in messages:  # in the order of ranks: the same bits everywhere
            total.index_add_(0, one[0], one[1].view(torch.float32))
        return buffer.copy_(total.div_(size))

    return work.get_future().then(summed)
