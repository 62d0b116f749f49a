"""The proof of a split: its stages give the bits that the whole model gives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from muster_modelparallel.errors import ModelParallelError, SplitError
from muster_modelparallel.model.delayed import Delayed
from muster_modelparallel.model.ghost import GhostStage
from muster_modelparallel.model.hollow import hollow_parameters, is_hollow
from muster_modelparallel.model.nests import filled, leaves
from muster_modelparallel.model.random import Draw, kept_random_state
from muster_modelparallel.model.split import Split
from muster_modelparallel.model.state import PassState
from muster_modelparallel.model.trace import Meta, tensors

# Of gradients: what a cut parts is added up in another order, and the calls before it round what
# came of that. Roundings of both signs come to the root of their number, in units of half an
# epsilon of the largest summand; four standard deviations beyond that is no rounding any more.
_TOLERANCE, _DEVIATIONS = 1e-4, 4


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a split. `why_not`: why it was not proved, "" where it was. `gradients`: how
    many were compared, `equal_gradients`: how many of them have the same bits; the others are equal
    but for the order of additions."""

    outputs: int = 0
    gradients: int = 0
    equal_gradients: int = 0
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return f"not proved: {self.why_not}"
        compared = f", {self.gradients} gradients" if self.gradients else ""
        return f"proved: {self.outputs} outputs bit-equal{compared}"


def prove(
    model: nn.Module,
    split: Split,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    gradients: bool = False,
    pristine: PassState | None = None,
    delayed: Delayed | None = None,
) -> Proof:
    """Compares a split with the model: runs one microbatch through the whole model and through the
    chain of stages, two passes in all, with the same random numbers, and compares what they return
    bit for bit. `pristine`: the model's state before anything ran on it, now if None. Parameters,
    buffers, gradients and random numbers are what they were. Hollow parameters prove nothing, and
    the Proof says so. Those of `delayed` are made for each operation that uses them and given back;
    then outputs are compared, and no gradients.

    Each stage sees only what its rank would have: zeros for the parameters and arguments that it
    does not need. Raises SplitError that names the first unit that differs.
    """
    is_delayed = delayed is not None and any(map(delayed.has, model.parameters()))
    if not is_delayed and any(map(is_hollow, model.parameters())):
        return Proof(why_not="the model is there by the shapes of its parameters alone")
    pristine = pristine or PassState.of(model)
    draw, gradients = Draw(), gradients and not is_delayed
    try:
        with kept_random_state(), ExitStack() as stack:
            if delayed is not None and is_delayed:
                stack.enter_context(torch.no_grad())
                stack.enter_context(delayed.in_use())
            whole = _whole(model, split, args, kwargs, draw, gradients, pristine)
            chain = _Chain(model, split, pristine, whole.prints)
            found = chain.run(args, kwargs, draw)
        _compare(whole.outputs, [tensor.detach() for tensor in found], chain.differs)
        for name, value in whole.buffers.items():
            if not any(_same(value, other[name]) for other in chain.buffers):
                raise SplitError(
                    f"buffer {name} has another value on each stage than in the whole model", _FIX
                )
        equal = (
            _compare_gradients(whole.gradients, chain.gradients(found), split) if gradients else 0
        )
        return Proof(len(whole.outputs), len(whole.gradients), equal)
    finally:
        pristine.restore()


@dataclass(frozen=True, slots=True)
class _Whole:
    """What the model does unsplit. `prints`: of what each call returned."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    prints: dict[int, list[Any]]


def _whole(
    model: nn.Module,
    split: Split,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    draw: Draw,
    gradients: bool,
    pristine: PassState,
) -> _Whole:
    stage = GhostStage(model, split.whole(), 0)
    prints: dict[int, list[Any]] = {}
    pristine.renew()
    with stage.installed():
        output = tensors(
            stage.run(
                *_copied(args, kwargs),
                draw=draw,
                watch=lambda at, returned: prints.update({at: _prints(returned)}),
            )
        )
        buffers = dict(model.named_buffers())
        pristine.renew()  # a checkpoint changes them again in backward
        found = _gradients(model, output) if gradients else {}
    return _Whole([tensor.detach() for tensor in output], found, buffers, prints)


_FIX = "use another cut or one partition, and report the model"


class _Chain:
    """The stages of a split one after the other, as if each ran on a rank of its own."""

    def __init__(
        self, model: nn.Module, split: Split, pristine: PassState, seen: Mapping[int, list[Any]]
    ) -> None:
        self.differs = ""
        self.buffers: list[dict[str, torch.Tensor]] = []
        self._model = model
        self._split = split
        self._pristine = pristine
        self._seen = seen
        self._ghosts: list[GhostStage] = []
        self._ends: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = []

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], draw: Draw) -> list[torch.Tensor]:
        passed: tuple[torch.Tensor, ...] = ()
        for stage in range(self._split.parts):
            received = tuple(_transferred(tensor) for tensor in passed)
            self._pristine.renew()
            output = self._stage(stage, args, kwargs, received, draw)
            self.buffers.append(dict(self._model.named_buffers()))
            passed = tuple(tensors(output))
            self._ends.append((received, passed))
        return list(passed)

    def _stage(
        self,
        stage: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        received: Sequence[torch.Tensor],
        draw: Draw,
    ) -> Any:
        ghost = GhostStage(self._model, self._split, stage)
        self._ghosts.append(ghost)
        delivered = _copied(args, kwargs, self._split.inputs[stage])
        with self._as_on(stage):
            try:
                return ghost.run(*delivered, received, draw, self._watch)
            except ModelParallelError:
                raise
            except Exception as error:  # whatever the user's code raises on a wrong value
                where = f", after unit {self.differs} differed" if self.differs else ""
                raise SplitError(
                    f"stage {stage} raises {type(error).__name__}: {error}{where}; the whole model "
                    "does not",
                    _FIX,
                ) from error

    @contextmanager
    def _as_on(self, stage: int) -> Iterator[None]:
        own = self._split.parameters[stage]
        with self._ghosts[stage].installed(), hollow_parameters(self._model, own):
            yield

    def _watch(self, index: int, returned: Sequence[Any]) -> None:
        if not self.differs and self._seen.get(index) != _prints(returned):
            self.differs = self._split.calls[index].name

    def gradients(self, found: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of all parameters, from the last stage to the first."""
        total: dict[str, torch.Tensor] = {}
        roots = [tensor for tensor in found if tensor.requires_grad]
        back: Sequence[torch.Tensor | None] = [torch.ones_like(tensor) for tensor in roots]
        for stage in reversed(range(self._split.parts)):
            received, sent = self._ends[stage]
            ends = roots if stage == self._split.parts - 1 else sent
            own = self._split.parameters[stage]
            named = [
                (name, p)
                for name, p in self._model.named_parameters()
                if name in own and p.requires_grad
            ]
            into = [tensor for tensor in received if tensor.requires_grad]
            pairs = [
                (end, grad)
                for end, grad in zip(ends, back, strict=True)
                if grad is not None and end.requires_grad
            ]
            self._pristine.renew()
            with self._as_on(stage):
                grads = _grad(self._model, pairs, [*into, *(p for _, p in named)])
            for (name, _), grad in zip(named, grads[len(into) :], strict=True):
                if grad is not None:
                    total[name] = total[name] + grad if name in total else grad
            of = dict(zip(map(id, into), grads[: len(into)], strict=True))
            back = [of.get(id(tensor)) for tensor in received]
        return total


def _grad(
    model: nn.Module,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    into: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor | None]:
    """Gradients, dense, not added to what `.grad` holds, and without the hooks on them, which may
    be an optimizer's. By `backward`, for reentrant checkpoints work with nothing else."""
    if not pairs or not into:
        return [None] * len(into)
    ends, grads = [end for end, _ in pairs], [grad for _, grad in pairs]
    with _untouched({id(leaf): leaf for leaf in (*model.parameters(), *into)}.values()):
        torch.autograd.backward(ends, grads)
        return [_dense(leaf.grad) for leaf in into]


@contextmanager
def _untouched(every: Iterable[torch.Tensor]) -> Iterator[None]:
    """Inside, these have neither gradients nor hooks on them; afterwards those they had."""
    before = [(leaf, leaf.grad, leaf._post_accumulate_grad_hooks) for leaf in every]
    kept = [(hooks, dict(hooks)) for _, _, hooks in before if hooks]
    for leaf, _, _ in before:
        leaf.grad = None
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for leaf, grad, _ in before:
            leaf.grad = grad
        for hooks, of in kept:
            hooks.update(of)


def _dense(grad: torch.Tensor | None) -> torch.Tensor | None:
    return grad.to_dense() if grad is not None and grad.is_sparse else grad


def _gradients(model: nn.Module, output: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    pairs = [(tensor, torch.ones_like(tensor)) for tensor in output if tensor.requires_grad]
    grads = _grad(model, pairs, [p for _, p in named])
    return {name: grad for (name, _), grad in zip(named, grads, strict=True) if grad is not None}


def _compare(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor], differs: str) -> None:
    where = f"the first unit that differs is {differs}" if differs else "no unit differs, but glue"
    if len(expected) != len(found):
        raise SplitError(
            f"the stages return {len(found)} tensors, the whole model {len(expected)}; {where}",
            _FIX,
        )
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        if not _same(one, other):
            raise SplitError(
                f"output {place} differs between stages and whole model; {where}", _FIX
            )


def _compare_gradients(
    wanted: Mapping[str, torch.Tensor],
    found: Mapping[str, torch.Tensor],
    split: Split,
) -> int:
    """How many have the same bits. What travels between stages may be coarser than they are."""
    dtypes = {meta.dtype for at in range(split.parts) for meta in split.metas(at)}
    dtypes |= {grad.dtype for grad in wanted.values()}
    coarsest = max((torch.finfo(one).eps for one in dtypes if one.is_floating_point), default=0.0)
    rounding = _DEVIATIONS * math.sqrt(len(split.calls)) * coarsest / 2
    relative = max(_TOLERANCE, rounding)
    equal = 0
    scale = max((_largest(grad) for grad in wanted.values()), default=0.0)
    if math.isnan(scale):
        raise SplitError(
            "the first microbatch gives gradients that are not a number, so no split can be proved",
            "look for NaN and infinities in the batch, the parameters and the model's outputs",
        )
    for name, grad in wanted.items():
        other = found.get(name)
        other = torch.zeros_like(grad) if other is None else other
        equal += _same(grad, other)
        # summands may cancel: within a gradient, or all of it, as of the bias of attention's keys
        absolute = max(relative * 1e-2 * scale, rounding * _largest(grad))
        if not torch.allclose(grad, other, rtol=relative, atol=absolute, equal_nan=True):
            raise SplitError(f"the gradient of {name} differs between stages and whole model", _FIX)
    return equal


def _largest(grad: torch.Tensor) -> float:
    return float(grad.abs().max()) if grad.numel() else 0.0


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal shape, dtype and bits, NaNs included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one, other) or torch.equal(_bits(one), _bits(other)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _prints(returned: Sequence[Any]) -> list[Any]:
    """What tells one return from another, small enough to keep."""
    return [
        int(torch.hash_tensor(_bits(leaf)))
        if isinstance(leaf, torch.Tensor) and leaf.numel()
        else None
        for leaf in returned
    ]


def _transferred(tensor: torch.Tensor) -> torch.Tensor:
    """As another rank would receive it."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _copied(
    args: Sequence[Any], kwargs: Mapping[str, Any], needed: frozenset[int] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as a rank of its own gets them: tensors that it does not need are zeros."""
    values = [*args, *kwargs.values()]
    copies: dict[int, torch.Tensor] = {}
    for place, leaf in enumerate(leaves(values)):
        if isinstance(leaf, torch.Tensor) and id(leaf) not in copies:
            wanted = needed is None or place in needed
            copies[id(leaf)] = _transferred(leaf) if wanted else Meta.of(leaf).placeholder(True)
    made = [copies.get(id(leaf), leaf) for leaf in leaves(values)]
    copied = filled(values, iter(made))
    return copied[: len(args)], dict(zip(kwargs, copied[len(args) :], strict=True))
