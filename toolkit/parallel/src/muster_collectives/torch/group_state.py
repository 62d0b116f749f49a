"""What a group holds, and its end. Apart from the group, so that what ends it when nobody has
destroyed it (at the end of the interpreter) does not keep it alive."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from muster_collectives.binding.communicator import Communicator
from muster_collectives.runtime.errors import AbortedError, ClosedError
from muster_collectives.runtime.summary import FOLDER, Identity, Summary
from muster_collectives.runtime.types import Code
from muster_collectives.torch import reports
from muster_collectives.torch.delegates import Device, Fallback
from muster_collectives.torch.works.op_queue import OpQueue
from muster_collectives.torch.works.transfers import Transfers

__all__ = ["GroupState"]


@dataclass
class GroupState:
    """What a process group holds until it is destroyed."""

    identity: Identity
    communicator: Communicator | None
    why: str
    op_queue: OpQueue
    fallback: Fallback
    device: Device
    pid: int = field(default_factory=os.getpid)
    _ending: threading.Lock = field(default_factory=threading.Lock)
    _ended: bool = False
    _aborted: bool = False

    def __post_init__(self) -> None:
        self.transfers = None if self.communicator is None else Transfers(self.communicator)
        self._summary = Summary(self.identity, os.environ.get(FOLDER, "").strip())

    def stats(self) -> reports.GroupStats:
        return reports.take(self.communicator, self.why, self.fallback.calls, self.device.calls)

    def abort(self) -> None:
        """From any thread: what is under way ends with AbortedError, here and on other ranks."""
        self._aborted = True
        if self.communicator is not None:
            self.communicator.abort()
        self.fallback.abort()
        self.device.abort()
        error = AbortedError(
            f"group {self.identity.name!r}, rank {self.identity.rank}: the group was aborted",
            "make the group again (destroy_process_group, init_process_group)",
            group=self.identity.name, rank=self.identity.rank, code=Code.EABORT,
        )  # fmt: skip
        self.op_queue.close(error, finish=False)

    def end(self) -> None:
        """Finishes what was begun, writes the summary, gives everything back. Never raises for
        what a peer did; a second call does nothing, nor does one in a child of the process."""
        with self._ending:
            if self._ended or os.getpid() != self.pid:
                return
            self._ended = True
        error = ClosedError(
            f"group {self.identity.name!r}, rank {self.identity.rank}: the group was destroyed",
            "wait for what was begun with async_op before destroy_process_group",
            group=self.identity.name, rank=self.identity.rank, code=Code.ECLOSED,
        )  # fmt: skip
        self.op_queue.close(error, finish=not self._aborted)
        nodes = self.communicator.nodes if self.communicator is not None else ()
        self._summary.write(lambda: reports.figures(self.stats(), nodes))
        if self.communicator is not None:
            self.communicator.close()
        if self.transfers is not None:
            self.transfers.clear()
        self.fallback.close()
        self.device.close()
