"""What a backend is: one way to make the hosts of a run on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from muster.local.orders import HostOrder, Orders
from muster.local.paths import ML
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.local.tree import write_tree
from muster.types.machine import Machine

LOOPBACK = "lo"


class Backend(Protocol):
    """One way to make hosts, as the desk sees it: a folder here and its name in `choice`.

    Beside it lies `start.py`, whose `start(orders, up)` makes the hosts and holds them until all
    have ended. It runs in the host supervisor, which imports nothing else of a backend.

    `name`: as --isolation has it. `interface`: the network interface of its hosts. `has_own_ml`:
    hosts have an /opt/ml of their own. `shares_network`: they share the ports of this machine.
    `is_offline`: what they need is installed before they start.
    """

    name: str
    interface: str
    has_own_ml: bool = True
    shares_network: bool = False
    is_offline: bool = False
    train: tuple[str, ...] = (sys.executable, "-m", "muster", "train")  # PID 1 of a host

    def refuses(
        self, request: Request, folder: RunFolder, apart: str, say: Callable[[str], None]
    ) -> None:
        """Raises UsageError where hosts of this kind cannot hold the job.

        `apart`: why several hosts must have a network of their own each, or "".
        """

    def addresses(self, names: Iterable[str]) -> dict[str, str]:
        """Host name -> address; {} where hosts are found by their names."""

    def inherited(self, caller: Mapping[str, str]) -> Mapping[str, str]:
        """The part of the caller's environment that hosts have."""
        return caller

    def environ(
        self, environ: Mapping[str, str], caller: Mapping[str, str], folder: RunFolder, host: str
    ) -> dict[str, str]:
        """The environment of one host, with what this kind of host adds to it or leaves out."""

    def tree(
        self, request: Request, folder: RunFolder, host: str, documents: Mapping[str, object]
    ) -> None:
        """Writes one host's opt/ml. Raises OSError."""
        write_tree(folder.base(host), documents, request.channels)

    def place(self, folder: RunFolder, host: str) -> str:
        """Where a host's `train` starts."""
        return folder.host(host)

    def orders(
        self,
        request: Request,
        folder: RunFolder,
        hosts: tuple[HostOrder, ...],
        caller: Mapping[str, str],
    ) -> Orders:
        """What the host supervisor is to start. May raise UsageError."""

    def differences(self, request: Request) -> list[str]:
        """What its hosts do not share with SageMaker, one sentence each."""

    def limits(self, request: Request) -> list[str]:
        """What each host may take of this machine, in a sentence if there is a limit."""
        if not request.memory_bytes:
            return []
        from muster.local.backends.docker.options import size_in_words

        return [f"each host may take {size_in_words(request.memory_bytes)} of memory"]

    def visible(self, folder: RunFolder, caller: Mapping[str, str]) -> Sequence[str] | None:
        """Folders that hosts see below temporary ones of their own; None where they have none."""
        return None

    def seen(self, machine: Machine, names: tuple[str, ...]) -> Machine:
        """This machine as a host sees it."""
        return machine

    def base(self, folder: RunFolder, host: str) -> str:
        """A host's opt/ml as it sees it."""
        return ML if self.has_own_ml else folder.base(host)

    def hints(self, orders: Orders, facts: Mapping[str, object]) -> tuple[str, ...]:
        """Commands for what is still there after the run."""
        return ()
