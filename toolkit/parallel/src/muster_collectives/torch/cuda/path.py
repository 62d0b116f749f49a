"""Collectives of CUDA tensors: which composition a call takes, and the work that it returns.

Sends and receives of torch's `batch_isend_irecv` are begun together. torch coalesces such a batch
for groups of its own class only (it asks `type(group) is ProcessGroup`) and gives the operations to
any other group one by one. NCCL then runs a send before the receive on both sides of a pair, on one
stream, and neither ends beyond its buffers. So the group looks who calls it.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from muster_collectives.torch.compress import group_calls
from muster_collectives.torch.compress.exchange import wire_of
from muster_collectives.torch.cuda import hierarchy
from muster_collectives.torch.cuda.groups import InnerGroups
from muster_collectives.torch.cuda.settings import DeviceSettings, is_open, settled
from muster_collectives.torch.cuda.streams import HostStaging, HostSum, SideStreams, SideStreamWork
from muster_collectives.torch.ops import views
from muster_collectives.torch.ops.lowered import op_of, reducible
from muster_collectives.torch.ops.verbs import Arguments, C10dVerb
from muster_collectives.torch.works.base import MusterWork, leave_alone

Work = Any  # dist.Work, ours or that of the inner group
_DEPTH = 12  # frames between torch's function and a transfer: a few, and its wrappers
_TORCH = dist.batch_isend_irecv.__code__


def calling_batch() -> FrameType | None:
    """The frame of `batch_isend_irecv` that this call comes from."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None or frame.f_code is _TORCH:
            return frame
        frame = frame.f_back
    return None


class Batch:
    """One batch on an NCCL group. It begins when its last transfer has come, or when somebody
    waits for one of them. `copied_back` is DevicePath's, for receives into such views."""

    def __init__(
        self, group: Any, frame: FrameType, copied_back: Callable[[Work, views.Pairs, Any], Work]
    ) -> None:
        self.frame: FrameType | None = frame
        self._group, self._copied_back = group, copied_back
        listed = frame.f_locals.get("p2p_op_list", ())
        self._left = sum(op.tensor.is_cuda for op in listed)
        self._written: views.Pairs = []
        self._tensors: list[Tensor] = []
        self._work: Work = None
        group._start_coalescing()

    def add(
        self, begin: Callable[[], Work], written: views.Pairs, tensor: Tensor, plain: Tensor
    ) -> Work:
        """One transfer, which `begin` hands to the group as `plain`. Raises what it raises."""
        try:
            begin()
        except BaseException:
            self.close()
            raise
        self._written += written
        self._tensors += [tensor, plain]
        self._left -= 1
        if self._left == 0:
            self.close()
        return BatchWork(self, tensor)

    def close(self) -> Work:
        """Begins what was added, once; a work of all of it."""
        if self.frame is not None:
            self.frame = None
            work = self._group._end_coalescing()
            self._work = self._copied_back(work, self._written, self._tensors)
        return self._work


class BatchWork(MusterWork):
    """One transfer of a batch: over when all of it is."""

    def __init__(self, batch: Batch, tensor: Tensor) -> None:
        super().__init__([tensor])
        self._batch = batch

    def wait(self, timeout: timedelta | None = None) -> bool:
        work = self._batch.close()
        return bool(work.wait() if timeout is None else work.wait(timeout))

    def is_completed(self) -> bool:
        return bool(self._batch.close().is_completed())

    def is_success(self) -> bool:
        return bool(self._batch.close().is_success())

    def exception(self) -> Any:
        return self._batch.close().exception()

    def get_future(self) -> Any:
        future = self._batch.close().get_future()
        return future.then(lambda done: (done.value(), self.result())[1])


leave_alone(BatchWork)


class DevicePath:
    """The device tensors of one group. Calls come in the same order on all ranks, from one thread
    at a time, and return works whose `wait` makes the current stream wait. Reductions that cannot
    be composed (PREMUL_SUM, averages of integers) are the world group's, whatever the settings say.

    `host_sum`: what sums in host memory; without it "host" in the settings is refused. `calls`
    counts by "<verb>:<path>" which path was taken.
    """

    def __init__(
        self, groups: InnerGroups, settings: DeviceSettings, host_sum: HostSum | None = None
    ) -> None:
        if settings.all_reduce == "host" and host_sum is None:
            raise ValueError("all_reduce is 'host', and nothing that sums on the host was given")
        self.groups, self.settings = groups, settings
        self.calls: Counter[str] = Counter()
        self._wire = wire_of(settings.wire)
        self._side_streams: dict[torch.device, SideStreams] = {}
        self._batch: Batch | None = None
        self._staging: HostStaging | None = None
        if host_sum is not None:
            self._staging = HostStaging(host_sum, settings.segment_bytes, settings.timeout_s)

    def call(self, verb: C10dVerb, arguments: Arguments) -> Work:
        """Any verb of c10d, on tensors that may be views that say "negated" or "conjugated"."""
        if self._batch is not None:  # an exception has interrupted it
            batch, self._batch = self._batch, None
            batch.close()
        if not views.has_views(arguments.tensors) or self._is_of_host(verb, arguments):
            return self._issue(verb, arguments)
        tensors, written = views.resolved(arguments.tensors)
        work = self._issue(verb, Arguments(tensors, arguments.options))
        return self._copied_back(work, written, arguments.tensors[0])

    def transfer(self, verb: str, tensor: Tensor, *rest: Any) -> Work:
        """`send` or `recv` of one tensor, which may be such a view, by the world group; those of
        torch's `batch_isend_irecv` together."""
        world = self.groups.world
        (plain,), written = views.resolved((tensor,))
        begin = functools.partial(getattr(world, verb), [plain], *rest)
        written = written if verb == "recv" else []
        frame = calling_batch() if getattr(world, "supports_coalescing", False) else None
        if self._batch is not None and self._batch.frame is not frame:
            self._batch.close()
        if frame is None:
            return self._copied_back(begin(), written, [tensor])
        if self._batch is None or self._batch.frame is None:
            self._batch = Batch(world, frame, self._copied_back)
        batch = self._batch
        try:
            return batch.add(begin, written, tensor, plain)
        finally:
            if batch.frame is None:  # it has begun: its works alone keep its tensors
                self._batch = None

    def all_reduce(self, tensor: Tensor, op: Any) -> Work:
        """In place, contiguous; reductions of all that the inner groups can reduce."""
        self._settle(tensor)
        path = self._all_reduce_path(tensor, op)
        self.calls[f"all_reduce:{path}"] += 1
        if path == "host" and self._staging is not None:
            return self._staging.all_reduce(self._lanes_of(tensor), tensor, op)
        if path == "world":
            return group_calls.all_reduce(self.groups.world, tensor, op)
        wire = self._wire if tensor.dtype == torch.float32 and hierarchy.is_sum(op) else None
        segment_bytes = self.settings.segment_bytes
        return self._composed(hierarchy.all_reduce, (tensor,), op, segment_bytes, wire)

    def all_gather_single(self, output: Tensor, source: Tensor) -> Work:
        """`output` is every rank's `source`, by rank; both contiguous."""
        self._settle(source)
        chosen = self.settings.all_gather
        path = self._two_level_path(chosen, output.nbytes, output, source)
        self.calls[f"all_gather:{path}"] += 1
        if path == "world":
            return group_calls.all_gather(self.groups.world, output, source)
        return self._composed(hierarchy.all_gather, (output, source))

    def reduce_scatter_single(self, output: Tensor, source: Tensor, op: Any) -> Work:
        """`output` is this rank's part of the reduction of every rank's `source`; contiguous."""
        self._settle(source)
        sums = source.dtype == torch.float32 and hierarchy.is_sum(op)
        wanted = self.settings.reduce_scatter
        chosen = "hierarchical" if self._wire is not None and sums else wanted
        if not hierarchy.is_of_levels(source, op):
            chosen = "world"
        path = self._two_level_path(chosen, source.nbytes, output, source)
        self.calls[f"reduce_scatter:{path}"] += 1
        if path == "world":
            return group_calls.reduce_scatter(self.groups.world, output, source, op)
        wire = self._wire if sums else None
        return self._composed(hierarchy.reduce_scatter, (output, source), op, wire)

    def close(self) -> None:
        """Ends what runs beside the caller. The inner groups are the caller's."""
        if self._staging is not None:
            self._staging.close()

    def _issue(self, verb: C10dVerb, arguments: Arguments) -> Work:
        tensors, options = arguments.tensors, arguments.options
        if verb.name == "allreduce" and len(tensors[0]) == 1 and not tensors[0][0].is_sparse:
            return self.all_reduce(tensors[0][0], options.reduceOp)
        if verb.name == "all_gather_single":
            return self.all_gather_single(tensors[0], tensors[1])
        if verb.name == "reduce_scatter_single":
            return self.reduce_scatter_single(tensors[0], tensors[1], options.reduceOp)
        return verb.call_on(self.groups.world, arguments)

    def _is_of_host(self, verb: C10dVerb, arguments: Arguments) -> bool:
        """Whether the host sums it: copies there and back say what a view says as it is."""
        if verb.name != "allreduce" or len(arguments.tensors[0]) != 1:
            return False
        return self._all_reduce_path(arguments.tensors[0][0], arguments.options.reduceOp) == "host"

    def _copied_back(self, work: Work, written: views.Pairs, outputs: Any) -> Work:
        """The work, and after it what was written copied to the views that asked for it."""
        if not written:
            return work
        side_stream = self._lanes_of(written[0][0]).out
        side_stream.follow()
        side_stream.uses(each for pair in written for each in pair)
        with side_stream.on():
            work.wait()
            for view, plain in written:
                views.write(view, plain)
        return SideStreamWork(side_stream, outputs if isinstance(outputs, list) else [outputs])

    def _settle(self, tensor: Tensor) -> None:
        """What is "auto" is measured once. Collective: all ranks' first call is the same."""
        if is_open(self.settings):
            path_of = functools.partial(DevicePath, self.groups)
            self.settings = settled(self.groups, self.settings, path_of, tensor.device)

    def _all_reduce_path(self, tensor: Tensor, op: Any) -> str:
        chosen = self.settings.all_reduce
        if chosen == "host":
            # what sums there is the core, or gloo, which has fewer reductions than NCCL
            summed = reducible(tensor.dtype, op_of(op)) is not None
            return "host" if summed and tensor.is_contiguous() and tensor.numel() else "world"
        if not hierarchy.is_of_levels(tensor, op):
            return "world"
        if self._wire is not None and tensor.dtype == torch.float32 and hierarchy.is_sum(op):
            chosen = "hierarchical"
        return self._two_level_path(chosen, tensor.nbytes, tensor)

    def _two_level_path(self, chosen: str, bytes_: int, *tensors: Tensor) -> str:
        if chosen == "world" or self.groups.intra is None or not bytes_:
            return "world"
        if bytes_ < self.settings.least_bytes:
            return "world"
        return chosen if all(tensor.is_contiguous() for tensor in tensors) else "world"

    def _composed(
        self, compose: Callable[..., None], tensors: tuple[Tensor, ...], *rest: Any
    ) -> Work:
        """A collective of `hierarchy`, whose output is the first of `tensors`."""
        side_streams = self._lanes_of(tensors[0])
        side_streams.begin(tensors)
        with torch.no_grad():  # a parameter may be written, as c10d does
            compose(self.groups, side_streams, *tensors, *rest)
        return SideStreamWork(side_streams.end(), [tensors[0]])

    def _lanes_of(self, tensor: Tensor) -> SideStreams:
        found = self._side_streams.get(tensor.device)
        if found is None:
            found = self._side_streams[tensor.device] = SideStreams(tensor.device)
        return found
