"""Gradients averaged over replicas, during the backward pass that ends a step or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from muster_modelparallel.errors import StepError
from muster_modelparallel.wrap.buckets import GradientBucket, cut_into_buckets

_MB = 1024 * 1024


class ReduceOptions(NamedTuple):
    """As DistributedModel's arguments of these names; `bucket_cap_mb` in units of 2**20 bytes."""

    overlapping_allreduce: bool
    bucket_cap_mb: float
    gradient_as_bucket_view: bool


class GradientReducer:
    """Averages the gradients of a module over the ranks of a group.

    All ranks start each bucket once in a pass and in the same order, whatever order gradients come
    in and however often each rank calls backward. Averaging is linear, so gradients that were
    averaged before may have local ones added and be averaged again.

    Parameters that need no gradient when a pass begins have no bucket: a large model that is frozen
    but for a few of them would have its size in memory again. Where one gets a gradient after all,
    the rank says so with the last bucket, and all ranks average those that any rank has.

    The first reduction comes after backward: until then it is not known how often a step calls
    backward, nor which parameters get gradients more than once in it.

    late: names of parameters whose gradients are not complete before `reduce`; their buckets are
    the last ones.
    """

    def __init__(
        self,
        named_parameters: Callable[[], Iterable[tuple[str, Any]]],
        group: Any,
        options: ReduceOptions,
        late: Callable[[], Set[str]] = frozenset,
    ) -> None:
        self._named = named_parameters
        self._late = late
        self._group = group
        self._options = options
        self._buckets: list[GradientBucket] = []
        self._rest: list[tuple[str, Any]] = []  # parameters without a bucket
        self._identity: tuple[Any, ...] = ()
        self._hooks: list[Any] = []
        self._next = 0  # the bucket that is to be launched next
        self._is_armed = False
        self._has_learned = False
        self._has_repeats = False
        self._fired: set[int] = set()

    def prepare(self) -> None:
        """Before a step: buckets for the parameters that need gradients now."""
        self._forget()
        late = self._late()
        # buckets begin with the last parameter
        named = sorted(self._named(), key=lambda one: one[0] not in late)
        identity = (
            late, *((id(one), one.requires_grad, one.dtype, one.device) for _, one in named)
        )  # fmt: skip
        if identity == self._identity:
            return
        self._identity = identity
        for hook in self._hooks:
            hook.remove()
        needing = [(name, each) for name, each in named if each.requires_grad]
        self._buckets = self._cut(needing, self._options.gradient_as_bucket_view)
        self._rest = [(name, each) for name, each in named if not each.requires_grad]
        self._has_learned, self._has_repeats = False, False
        self._hooks = []
        if self._options.overlapping_allreduce:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(partial(self._is_ready, bucket, place))
                for bucket in self._buckets
                for place, parameter in enumerate(bucket.parameters)
                if bucket.names[place] not in late
            ]

    def before_backward(self, is_last: bool, settled: Set[str] = frozenset()) -> None:
        """is_last: no gradients come after this call of backward before the next reduction, as far
        as one knows; those of the parameters `settled` do not come in it either. Raises StepError
        where they come after all and averaging has begun: a rank that began again would wait for
        others that had nothing to add."""
        if self._next:
            raise StepError(
                "backward was called more often in this step than before: averaging had begun",
                "pass overlapping_allreduce=False to DistributedModel, or call model.backward once "
                "with the sum of the losses",
            )
        self._fired.clear()
        overlaps = self._options.overlapping_allreduce and not self._has_repeats
        # the last bucket tells of gradients without a bucket, so they must be there by then
        overlaps &= not any(one.requires_grad or one.grad is not None for _, one in self._rest)
        self._is_armed = is_last and overlaps and self._has_learned
        if self._is_armed:
            settled = settled - self._late()
            for bucket in self._buckets:
                bucket.begin(settled)
            self._start()

    def reduce(self) -> None:
        """Averages what has not been averaged. Collective. Raises StepError for a parameter that
        began to need a gradient when averaging was over."""
        self._is_armed = False
        self._has_learned = True
        late = [name for name, parameter in self._rest if parameter.grad is not None]
        if late and self._buckets and self._next == len(self._buckets):
            raise StepError(
                f"parameter {late[0]} began to need a gradient during the last backward of a step",
                "set requires_grad before it, or overlapping_allreduce=False in DistributedModel",
            )
        for bucket in self._buckets[self._next :]:
            bucket.launch(more=bool(late))
        self._next = 0
        for bucket in self._buckets:
            bucket.finish()
        if self._rest and (not self._buckets or self._buckets[-1].has_more):
            self._reduce_rest()

    @property
    def started(self) -> int:
        """Buckets that are on their way: what overlaps with backward."""
        return self._next

    def _is_ready(self, bucket: GradientBucket, place: int, parameter: Any) -> None:
        """Called when a parameter's gradient is there."""
        if not self._is_armed:
            if not self._has_learned:
                self._has_repeats |= id(parameter) in self._fired
                self._fired.add(id(parameter))
            return
        if bucket.is_launched:
            raise StepError(
                f"parameter {bucket.names[place]} got a gradient twice in one backward pass, the "
                "second time after averaging had begun",
                "pass overlapping_allreduce=False to DistributedModel",
            )
        bucket.waiting.discard(place)
        self._start()

    def _start(self) -> None:
        """The buckets that wait for nothing, up to the first one that does."""
        while self._next < len(self._buckets) and not self._buckets[self._next].waiting:
            self._buckets[self._next].launch()
            self._next += 1

    def _reduce_rest(self) -> None:
        """Averages the gradients without a bucket that any rank has. Collective."""
        has = [float(parameter.grad is not None) for _, parameter in self._rest]
        anywhere = torch.tensor(has, device=self._rest[0][1].device)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=self._group)
        named = compress(self._rest, anywhere.tolist())
        for bucket in self._cut(list(named), as_view=False):
            bucket.launch()
            bucket.finish()

    def _cut(self, named: list[tuple[str, Any]], as_view: bool) -> list[GradientBucket]:
        cap = max(1, int(self._options.bucket_cap_mb * _MB))
        return cut_into_buckets(named, cap, self._group, as_view)

    def _forget(self) -> None:
        """What a step that raised has left."""
        for bucket in self._buckets:
            bucket.forget()
        self._next = 0
        self._is_armed = False
