"""The process group: every verb of c10d, by the device of its tensors.

CPU tensors go to the core; what it does not do (sparse tensors, sums of types that it has no sums
for, PREMUL_SUM) goes to gloo and is counted. CUDA tensors go, as they come, to the stock group, or
to the device path where its options ask for that.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.binding.communicator import Communicator
from muster_collectives.runtime.summary import GroupStats
from muster_collectives.runtime.types import Verb
from muster_collectives.torch.cuda.stock import split
from muster_collectives.torch.group_state import GroupState
from muster_collectives.torch.ops.lowered import (
    SUMS_AS_THEY_LIE,
    LoweredOp,
    NotLoweredError,
)
from muster_collectives.torch.ops.verbs import VERBS, C10dVerb, canonical, timeout_of
from muster_collectives.torch.steady import LEAST_BYTES
from muster_collectives.torch.works.base import leave_alone
from muster_collectives.torch.works.work import CoalescedWork, CompletedWork

_C10D = vars(dist.distributed_c10d)
_STRIDED = torch.strided
_ALL_REDUCE = Verb.ALL_REDUCE
_OPTIONS = dist.AllreduceOptions
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


class MusterProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of `torch.distributed`. Made by `init_process_group` and `new_group`; all ranks make
    the same calls in the same order. Calls raise a subclass of CollectiveError that names the ranks
    at fault; after that the group is broken on every rank, and can be destroyed and made again."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, state: GroupState, timeout_s: float) -> None:
        super().__init__(state.identity.rank, state.identity.size)
        self._state = state
        self._stock: Any = state.device.direct
        if state.device.stock is not None:
            self._take(state.device.stock)
        self._rank, self._size = state.identity.rank, state.identity.size
        self._group_name, self._group_description = "", "undefined"
        self._timeout_s = timeout_s
        self._op_queue = state.op_queue
        self._is_eager = state.op_queue.eager
        self._run: Any = None if state.communicator is None else state.communicator.run
        self._perform: Any = None if state.communicator is None else state.communicator.perform
        self._done = CompletedWork()
        self._steady = state.steady
        self._together: list[Any] | None = None
        self._transfers: Any = state.transfers
        self._finalizer = weakref.finalize(self, state.end)

    def _take(self, stock: Any) -> None:
        """What is registered there is here too, for those who ask for a device's backend."""
        self.get_group_store = stock.get_group_store
        if stock.bound_device_id is not None:
            self.bound_device_id = stock.bound_device_id
        for device in stock._device_types:
            backend = stock._get_backend(device)
            kind = dist.Backend.backend_type_map[backend.name()]
            self._register_backend(device, kind, backend)

    # --- what c10d asks of a group

    def getGroupName(self) -> str:  # noqa: N802
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._group_name = name
        if self._state.device.stock is not None:
            self._state.device.stock._set_group_name(name)

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._group_description

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        self._group_description = text
        if self._state.device.stock is not None:
            self._state.device.stock._set_group_desc(text)

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "muster"

    getRank, getSize, getBackendName = rank, size, name  # noqa: N815

    @property
    def _device_types(self) -> list[torch.device]:
        cpu, stock = torch.device("cpu"), self._state.device.stock
        if stock is not None:
            return [cpu, *stock._device_types]
        return [cpu, torch.device("cuda")] if torch.cuda.is_available() else [cpu]

    def _get_backend(self, device: torch.device) -> Any:
        """The stock one of a device that has it. Else the group is its own, as it is Python."""
        if self._state.device.stock is None or device.type == "cpu":
            return self
        return super()._get_backend(device)

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Any:
        """A group of these of our ranks, in their order, whose part for devices is split from ours;
        None on other ranks. Raises RuntimeError where there is no such part, ValueError for ranks
        that are none of ours."""
        stock = self._state.device.stock
        devices = [] if stock is None else list(device_types or stock._device_types)
        kept = [device for device in devices if device.type != "cpu"]
        if not kept:
            raise RuntimeError("only a group with NCCL can be split: use new_group")
        new_ranks = sorted(new_ranks)
        members = self._state.identity.global_ranks
        child = split(stock, members, new_ranks, timeout, opts, group_name, group_desc, kept)
        if child is None or (device_types and kept == devices):
            return child
        return self._state.split(child, new_ranks, timeout)

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: timedelta) -> None:
        """For the calls from now on."""
        self._timeout_s = timeout.total_seconds()
        self._state.fallback.set_timeout(self._timeout_s)

    _set_default_timeout = set_timeout

    # --- what others of ours ask

    @property
    def communicator(self) -> Communicator | None:
        """The core's group; None where CPU tensors go to gloo."""
        return self._state.communicator

    def exclusive(self) -> AbstractContextManager[None]:
        """The caller alone uses the core's group, after all that was begun. No verb of the group
        may be called inside."""
        return self._op_queue.exclusive()

    def stats(self) -> GroupStats:
        """Counters since the group was made."""
        return self._state.stats()

    # --- the end

    def abort(self) -> None:
        """Ends what is under way, on every rank; later calls raise AbortedError."""
        self._state.abort()

    def shutdown(self) -> None:
        """Finishes what was begun and gives everything back."""
        self._run = self._perform = None
        self._finalizer()

    # --- verbs

    def allreduce(self, tensors: Any, opts: Any = None, *rest: Any, **named: Any) -> Any:
        """c10d's allreduce; see torch.distributed."""
        # not asynchronous: nobody asks who calls. Older torch does not say it: all is, then
        is_async = getattr(opts, "asyncOp", True)
        is_explicit = is_async and _is_from_c10d()
        if opts.__class__ is _OPTIONS:
            work = self._sum_as_it_lies(tensors, opts, is_async, is_explicit)
            if work is not None:
                return work
        given = (tensors, *rest) if opts is None else (tensors, opts, *rest)
        return self._call(VERBS["allreduce"], given, named, is_explicit)

    def _sum_as_it_lies(self, tensors: Any, options: Any, is_async: bool, is_explicit: bool) -> Any:
        """The sum that DDP and small tensors need, where microseconds count: of one tensor that the
        core reads as it lies, now. It is lowered to a single call, without the lists and copies of
        a LoweredOp. None for any other."""
        perform = self._perform
        if perform is None or tensors.__class__ is not list or len(tensors) != 1:
            return None
        tensor = tensors[0]
        if tensor.__class__ not in _PLAIN or not tensor.is_cpu or tensor.layout is not _STRIDED:
            return None
        element = SUMS_AS_THEY_LIE.get((tensor.dtype, hash(options.reduceOp)))
        if element is None or not tensor.is_contiguous() or tensor.is_neg():
            return None
        if self._steady is not None and tensor.nbytes >= LEAST_BYTES:
            self._steady.note(tensor)
        if is_async and self._is_queued(True, is_explicit):
            return None
        # what is not asynchronous comes from dist.all_reduce, which has no timeout
        limit_s = self._limit_s(options) if is_async else self._timeout_s
        place = tensor.data_ptr()
        dtype, op, _ = element
        call = (_ALL_REDUCE, dtype, op, 0, place, place, tensor.numel(), 0, 0, 0, limit_s)
        if self._op_queue.is_used:
            self._op_queue.run(functools.partial(perform, *call))
        else:
            perform(*call)
        return CompletedWork(tensors) if is_async else self._done

    def _call(
        self, verb: C10dVerb, args: Sequence[Any], named: Mapping[str, Any], is_explicit: bool
    ) -> Any:
        """Any verb on any device. `is_explicit`: called by a function of torch.distributed, so that
        the program may do anything between an asynchronous call and its wait."""
        if self._stock is not None and _is_on_device(args, named):
            self._state.device.calls[verb.name] += 1
            return verb.method_of(self._stock)(*args, **named)
        arguments = canonical(verb, args, named)
        device = self._device_of(verb, arguments.tensors)
        if device == "cuda":
            return self._begun(self._state.device.call(verb, arguments))
        if device != "cpu":
            raise TypeError(
                f"{verb.name} of a tensor on {device!r}: group 'muster' has cpu and cuda tensors"
            )
        lowered = None
        if self._run is not None:
            with suppress(NotLoweredError):
                lowered = verb.lower(self._size, self._rank, *arguments.tensors, arguments.options)
        settle = self._state.device.settler() if verb.name == "barrier" else None
        if lowered is not None:
            lowered.first = settle
            return self._begun(self._issue(lowered, arguments.options, is_explicit))
        self._require_open()
        self._op_queue.advance()
        if settle is not None:
            settle()
        return self._begun(self._state.fallback.call(verb, arguments))

    def _begun(self, work: Any) -> Any:
        if self._together is not None:
            self._together.append(work)
        return work

    def _device_of(self, verb: C10dVerb, tensors: Any) -> str:
        """The kind of device of all tensors. Raises ValueError where they are of several."""
        kinds = set(_devices(tensors))
        if len(kinds) > 1:
            identity = self._state.identity
            raise ValueError(
                f"group {identity.name!r}, rank {identity.rank}: {verb.name} of tensors on "
                f"{' and '.join(sorted(kinds))}\n  Fix: give it tensors of one device"
            )
        return kinds.pop() if kinds else "cpu"

    def _issue(self, lowered: LoweredOp, options: Any, is_explicit: bool) -> Any:
        limit_s = self._limit_s(options)
        if self._is_queued(getattr(options, "asyncOp", True), is_explicit):
            return self._op_queue.submit(lowered, limit_s)
        self._op_queue.run(functools.partial(lowered.perform, self._run, limit_s))
        return CompletedWork(lowered.outputs)

    def _is_queued(self, is_async: bool, is_explicit: bool) -> bool:
        """Whether it is begun now and ends later. Older torch does not say what is asynchronous:
        all is, then."""
        return is_async and self._size > 1 and (self._is_eager or is_explicit)

    def _limit_s(self, options: Any) -> float:
        named_s = timeout_of(options)
        return self._timeout_s if named_s is None else named_s

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise RuntimeError(f"group {self._state.identity.name!r} was destroyed: make it again")

    # --- sends and receives

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        return self._transfer("send", tensors, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self._transfer("recv", tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._transfer("recv_anysource", tensors, tag)

    def _transfer(self, verb: str, tensors: Any, *rest: int) -> Any:
        """`rest`: the other rank where it is named, and the tag."""
        tensor = _one(tensors)
        if self._run is not None and not tensor.is_cuda:
            return self._begun(getattr(self._transfers, verb)(tensor, *rest, self._timeout_s))
        self._require_open()
        if tensor.is_cuda:
            return self._begun(self._state.device.transfer(verb, tensor, *rest))
        self._state.fallback.calls[verb] += 1
        return self._begun(getattr(self._state.fallback.group, verb)(tensors, *rest))

    # --- several at once

    def _start_coalescing(self, device: Any = None) -> None:
        if self._is_stocks(device):
            self._stock._start_coalescing(device)
        else:
            self._together = []

    def _end_coalescing(self, device: Any = None) -> Any:
        if self._is_stocks(device):
            return self._stock._end_coalescing(device)
        works, self._together = self._together or [], None
        return CoalescedWork(works)

    def _is_stocks(self, device: Any) -> bool:
        return self._stock is not None and device is not None and device.type != "cpu"

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier whose error names all the ranks that have not come, on every rank."""
        options = dist.BarrierOptions()
        if hasattr(options, "asyncOp"):  # older torch's has none
            options.asyncOp = False
        if timeout is not None and timeout > timedelta(0):
            options.timeout = timeout
        self._call(VERBS["barrier"], (options,), {}, False)


def _one(tensors: Any) -> Any:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"a send or receive has one tensor, {len(tensors)} were given")
    return tensors[0]


def _devices(value: Any) -> Iterator[str]:
    """The kinds of devices of the tensors in there."""
    if isinstance(value, torch.Tensor):
        yield value.device.type
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _devices(each)


def _is_on_device(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether the first tensor is on a device, or a barrier names one."""
    for value in (*args, *named.values()):
        kind = next(_devices(value), "") or getattr(getattr(value, "device", None), "type", "")
        if kind:
            return kind != "cpu"
    return False


def _is_from_c10d() -> bool:
    """Whether the verb that asks was called by a function of torch.distributed. A thread of C++,
    such as autograd's of a GPU, calls verbs with no Python below them."""
    caller = sys._getframe(1).f_back
    return caller is not None and caller.f_globals is _C10D


def _method(verb: C10dVerb) -> Callable[..., Any]:
    def call(group: MusterProcessGroup, *args: Any, **named: Any) -> Any:
        return group._call(verb, args, named, _is_from_c10d())

    call.__doc__ = f"c10d's {verb.name}; see torch.distributed."
    return call


def _spell() -> None:
    """Each verb under all its names: c10d looks methods up by name, and names have changed."""
    for verb in VERBS.values():
        for spelling in verb.spellings:
            if spelling not in vars(MusterProcessGroup):
                setattr(MusterProcessGroup, spelling, _method(verb))


_spell()
leave_alone(MusterProcessGroup)
