"""A backend of torch.distributed that keeps NCCL's order, over gloo, for tensors of any device.

What two ranks of one group send each other runs one after another, in the order in which it was
asked for, whichever way it goes: a receive holds up the sends behind it until its message has come.
The first call between two ranks of a group waits until the other has come there, too.
Ranks that share a GPU, which NCCL refuses, can use it: tensors travel by way of the CPU.

    ordered.register()
    dist.init_process_group("ordered")
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

LIMIT_S = 60.0
_COLLECTIVES = (
    "allreduce", "broadcast", "allgather", "_allgather_base", "reduce", "reduce_scatter",
    "_reduce_scatter_base", "alltoall_base", "gather", "scatter", "barrier",
)  # fmt: skip


def register() -> None:
    """Makes the backend "ordered" known."""
    dist.Backend.register_backend("ordered", _OrderedGroup, devices=["cpu", "cuda"])


class _OrderedWork(dist._Work):  # type: ignore[misc]  # a class of C++
    """Done when its turn has come and gone; `wait` lets the current stream wait, as NCCL's does."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result
        self._ended = threading.Event()
        self._copied: Any = None
        self._error: BaseException | None = None

    def run(self, act: Callable[[], Any]) -> None:
        try:
            self._copied = act()
        except BaseException as error:
            self._error = error
        self._ended.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._ended.wait(LIMIT_S):
            raise RuntimeError(f"not done after {LIMIT_S} s: it waits for its turn")
        if self._error is not None:
            raise self._error
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
        return True

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Any:
        self.wait()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future


class _OrderedGroup(dist.ProcessGroup):  # type: ignore[misc]  # a class of C++
    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._group_name, self._store = rank, size, "", store
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=LIMIT_S))
        # what goes between this rank and another, and what all do together: by number, -1 for all
        self._turns: dict[int, ThreadPoolExecutor] = {}

    def getGroupName(self) -> str:  # noqa: N802
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._group_name = name

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "ordered"

    getRank, getSize, getBackendName = rank, size, name  # noqa: N815

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def shutdown(self) -> None:
        for turn in self._turns.values():
            turn.shutdown(wait=False, cancel_futures=True)

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        call = partial(self._gloo.send, dstRank=dst, tag=tag)
        return self._later(dst, call, (tensors,), {}, writes=False)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self._later(src, partial(self._gloo.recv, srcRank=src, tag=tag), (tensors,), {})

    def _later(
        self, peer: int, call: Callable[..., Any], args: tuple[Any, ...],
        named: Mapping[str, Any], writes: bool = True,
    ) -> Any:  # fmt: skip
        pairs: list[tuple[Any, Any]] = []
        on_cpu = [_on_cpu(each, pairs) for each in args]
        begun = torch.cuda.Event() if pairs else None
        if begun is not None:
            begun.record()
        work = _OrderedWork([given for given, _ in pairs] or args[0] if args else None)
        act = partial(_carry, call, on_cpu, named, pairs, begun, writes)
        if peer not in self._turns:
            self._turns[peer] = ThreadPoolExecutor(1)
            if peer >= 0:
                self._store.set(f"{self._rank} meets {peer}", "")
                limit = timedelta(seconds=LIMIT_S)
                self._store.wait([f"{peer} meets {self._rank}"], limit)
        self._turns[peer].submit(work.run, act)
        return work


def _collective(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **named: Any) -> Any:
        return self._later(-1, getattr(self._gloo, name), args, named)

    return call


for _name in _COLLECTIVES:
    setattr(_OrderedGroup, _name, _collective(_name))


def _on_cpu(value: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """The same with room on the CPU for each tensor of a GPU; `pairs` collects both."""
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(each, pairs) for each in value)
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    pairs.append((value, torch.empty(value.shape, dtype=value.dtype, device="cpu")))
    return pairs[-1][1]


def _carry(
    call: Callable[..., Any], args: list[Any], named: Mapping[str, Any], pairs: Any, begun: Any,
    writes: bool,
) -> Any:  # fmt: skip
    """One call over gloo, there and back for what is on a GPU; the event after which it is back.
    What a send only reads stays as it is: a graph may have saved it."""
    if begun is None:
        call(*args, **named).wait()
        return None
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        begun.synchronize()
        for given, room in pairs:
            room.copy_(given)
        call(*args, **named).wait()
        for given, room in pairs if writes else ():
            given.copy_(room)
        copied = torch.cuda.Event()
        copied.record()
    return copied
