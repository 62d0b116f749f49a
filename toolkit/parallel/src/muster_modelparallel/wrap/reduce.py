"""Gradients averaged over replicas, during the backward pass that ends a step or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

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

    All ranks start the buckets in the same order, whatever order gradients come in. Averaging is
    linear, so gradients that were averaged before may have local ones added and be averaged again.

    The first reduction comes after backward: until then it is not known how often a step calls
    backward, nor which parameters get gradients more than once in it.
    """

    def __init__(
        self,
        named_parameters: Callable[[], Iterable[tuple[str, Any]]],
        group: Any,
        options: ReduceOptions,
    ) -> None:
        self._named = named_parameters
        self._group = group
        self._options = options
        self._buckets: list[GradientBucket] = []
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
        named = [(name, each) for name, each in self._named() if each.requires_grad]
        identity = tuple((id(each), each.dtype, each.device) for _, each in named)
        if identity == self._identity:
            return
        self._identity = identity
        for hook in self._hooks:
            hook.remove()
        options = self._options
        cap = max(1, int(options.bucket_cap_mb * _MB))
        self._buckets = cut_into_buckets(named, cap, self._group, options.gradient_as_bucket_view)
        self._has_learned, self._has_repeats = False, False
        self._hooks = []
        if options.overlapping_allreduce:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(partial(self._is_ready, bucket, place))
                for bucket in self._buckets
                for place, parameter in enumerate(bucket.parameters)
            ]

    def before_backward(self, is_last: bool) -> None:
        """is_last: no gradients come after this call of backward before the next reduction, as far
        as one knows. Where they came after all, what is on its way is finished first."""
        if self._next:
            self._finish(self._next)
        self._fired.clear()
        overlaps = self._options.overlapping_allreduce and not self._has_repeats
        self._is_armed = is_last and overlaps and self._has_learned
        if self._is_armed:
            for bucket in self._buckets:
                bucket.begin()

    def reduce(self) -> None:
        """Averages what has not been averaged. Collective."""
        self._is_armed = False
        self._has_learned = True
        for bucket in self._buckets[self._next :]:
            bucket.launch()
        self._finish(len(self._buckets))

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
        while self._next < len(self._buckets) and not self._buckets[self._next].waiting:
            self._buckets[self._next].launch()
            self._next += 1

    def _finish(self, count: int) -> None:
        for bucket in self._buckets[:count]:
            bucket.finish()
        self._next = 0

    def _forget(self) -> None:
        """What a step that raised has left."""
        for bucket in self._buckets:
            bucket.forget()
        self._next = 0
        self._is_armed = False
