"""What a group holds, and its end. Apart from the group, so that what ends it when nobody has
destroyed it (at the end of the interpreter) does not keep it alive.

The groups behind ours are gloo for what the core does not do, NCCL for CUDA tensors. Both are made
at their first use, which all ranks come to together: what a call needs follows from its verb, dtype
and device.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.binding.communicator import Communicator
from muster_collectives.runtime.errors import AbortedError, ClosedError, CollectiveError
from muster_collectives.runtime.summary import FOLDER, GroupStats, Identity, Summary
from muster_collectives.runtime.types import Code
from muster_collectives.torch.cuda.settings import read_settings
from muster_collectives.torch.ops import views
from muster_collectives.torch.ops.verbs import Arguments, C10dVerb
from muster_collectives.torch.steady import SteadyMemory
from muster_collectives.torch.works.op_queue import OpQueue
from muster_collectives.torch.works.transfers import Transfers
from muster_collectives.torch.works.work import CompletedWork

_log = logging.getLogger("muster_collectives")


class Fallback:
    """Runs what the core does not do, over gloo. `calls` counts by verb what went there."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self.calls: Counter[str] = Counter()
        self._store, self._rank, self._size, self._timeout_s = store, rank, size, timeout_s
        self._group: Any = None
        self._making = threading.Lock()

    @property
    def group(self) -> Any:
        """Collective at its first use."""
        with self._making:
            if self._group is None:
                if not dist.is_gloo_available():
                    raise RuntimeError(
                        "this needs gloo, and torch was built without it: the core does not do it"
                    )
                self._group = dist.ProcessGroupGloo(
                    self._store, self._rank, self._size, timedelta(seconds=self._timeout_s)
                )
            return self._group

    def call(self, verb: C10dVerb, arguments: Arguments) -> Any:
        """A c10d work; raises what gloo raises."""
        group = self.group
        self.calls[verb.name] += 1
        if not views.has_views(arguments.tensors):
            return verb.call_on(group, arguments)
        tensors, written = views.resolved(arguments.tensors)
        verb.call_on(group, Arguments(tensors, arguments.options)).wait()  # rare: not beside others
        for view, plain in written:
            views.write(view, plain)
        outputs = arguments.tensors[0]
        return CompletedWork(outputs if isinstance(outputs, list) else [outputs])

    def set_timeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        if self._group is not None:
            self._group._set_default_timeout(timedelta(seconds=timeout_s))

    def abort(self) -> None:
        _end(self._group, "abort")

    def close(self) -> None:
        group, self._group = self._group, None
        _end(group, "shutdown")


class Device:
    """Runs calls of CUDA tensors over NCCL. `calls` counts by verb what went there;
    `host_group` makes the group that sums in host memory, where that is asked for. `stock`: torch's
    own group for CUDA tensors, where there is one; `direct` the same where it makes every call."""

    def __init__(
        self,
        store: Any,
        rank: int,
        nodes: Sequence[int],
        timeout_s: float,
        host_group: Callable[[], Any],
        stock: Any = None,
    ) -> None:
        self.stock = stock
        self.direct = None if read_settings(os.environ).composes else stock
        self.calls: Counter[str] = Counter()
        self._store, self._rank, self._nodes = store, rank, tuple(nodes)
        self._timeout_s = timeout_s
        self._host_group = host_group
        self._host: Any = None
        self._path: Any = None
        self._making = threading.Lock()

    @property
    def path(self) -> Any:
        """The DevicePath; collective at its first use."""
        with self._making:
            if self._path is None:
                from muster_collectives.torch.cuda import groups as inner
                from muster_collectives.torch.cuda.path import DevicePath
                from muster_collectives.torch.cuda.streams import GroupSum

                settings = read_settings(os.environ, self._timeout_s)
                layout = inner.plan_layout(self._rank, self._nodes)
                cuda, world = torch.device("cuda"), None
                if self.stock is not None:
                    world = self.stock._get_backend(cuda)
                if self.direct is not None:
                    groups = inner.InnerGroups(layout, world)
                else:
                    make = inner.nccl(self._timeout_s)
                    groups = inner.make_groups(self._store, layout, make, world)
                if settings.all_reduce == "host":
                    self._host = GroupSum(self._host_group)
                self._path = DevicePath(groups, settings, self._host)
            return self._path

    def call(self, verb: C10dVerb, arguments: Arguments) -> Any:
        """A c10d work whose wait orders streams."""
        path = self.path
        self.calls[verb.name] += 1
        return path.call(verb, arguments)

    def transfer(self, verb: str, tensor: Any, *rest: Any) -> Any:
        """A send or a receive."""
        path = self.path
        self.calls[verb] += 1
        return path.transfer(verb, tensor, *rest)

    def settler(self) -> Callable[[], None] | None:
        """What waits, on any thread, for the caller's stream; None where no GPU was used. A barrier
        comes after that, as NCCL's does, and not after works that nobody has waited for: their
        peers may come to them only after the barrier. Ranks without device calls need none."""
        if not self.calls or not torch.cuda.is_available():
            return None
        return torch.cuda.current_stream().synchronize  # type: ignore[no-any-return]

    def abort(self) -> None:
        for group in self._groups():
            _end(group, "abort")

    def close(self) -> None:
        """Raises nothing for what still runs: that is said in the log."""
        groups = self._groups()
        path, self._path = self._path, None
        if path is not None:
            try:
                path.close()
            except TimeoutError as error:
                _log.warning("%s", error)
        for group in groups:
            _end(group, "shutdown")

    def _groups(self) -> list[Any]:
        host = None if self._host is None else self._host.group
        found = [self.stock, host]
        if self._path is not None:
            groups = self._path.groups
            found += [groups.intra, groups.inter]
            found += [groups.world] if self.stock is None else []
        return [each for each in found if each is not None]


def _end(group: Any, how: str) -> None:
    with suppress(RuntimeError):  # gloo of some versions has no abort
        getattr(group, how, lambda: None)()


@dataclass
class GroupState:
    """What a process group holds until it is destroyed. `split` makes a group of some of its ranks
    around a stock one."""

    identity: Identity
    communicator: Communicator | None
    why: str
    op_queue: OpQueue
    fallback: Fallback
    device: Device
    split: Callable[..., Any]
    pid: int = field(default_factory=os.getpid)
    _aborted: bool = False

    def __post_init__(self) -> None:
        core = self.communicator
        self.steady = None if core is None else SteadyMemory(core)
        self.transfers = None if self.steady is None else Transfers(self.steady)
        self._summary = Summary(self.identity, os.environ.get(FOLDER, "").strip())

    def stats(self) -> GroupStats:
        """The counters now."""
        elsewhere = self.why, dict(self.fallback.calls), dict(self.device.calls)
        core = self.communicator
        if core is None:
            return GroupStats("gloo", (), None, (), *elsewhere)
        try:
            return GroupStats(core.transport, core.nodes, core.stats(), core.waits_s(), *elsewhere)
        except CollectiveError:  # closed or in a child: nothing to read
            return GroupStats(core.transport, core.nodes, None, (), *elsewhere)

    def abort(self) -> None:
        """From any thread: what is under way ends with AbortedError, here and on other ranks."""
        self._aborted = True
        if self.communicator is not None:
            self.communicator.abort()
        self.fallback.abort()
        self.device.abort()
        fix = "make the group again (destroy_process_group, init_process_group)"
        self._close_queue(AbortedError, "aborted", fix, Code.EABORT)

    def _close_queue(self, kind: type[CollectiveError], what: str, fix: str, code: Code) -> None:
        """Operations that are under way get the error."""
        name, rank = self.identity.name, self.identity.rank
        text = f"group {name!r}, rank {rank}: the group was {what}"
        error = kind(text, fix, group=name, rank=rank, code=code)
        self.op_queue.close(error, finish=not self._aborted)

    def end(self) -> None:
        """Finishes what was begun, writes the summary, gives everything back; called once, by the
        group's finalizer. Never raises for what a peer did. Nothing in a child of the process."""
        if os.getpid() != self.pid:
            return
        fix = "wait for what was begun with async_op before destroy_process_group"
        self._close_queue(ClosedError, "destroyed", fix, Code.ECLOSED)
        self._summary.write(self.stats)
        if self.communicator is not None:
            self.communicator.close()
        if self.transfers is not None:
            self.transfers.clear()
        self.fallback.close()
        self.device.close()
