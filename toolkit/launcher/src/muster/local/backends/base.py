"""What a backend is: one way to make the hosts of a run on this machine."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.arguments import size_in_words
from muster.local import memory
from muster.local.orders import HostOrder, Orders
from muster.local.paths import ML
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.local.tree import write_tree
from muster.types.files import search_path
from muster.types.machine import Machine

if TYPE_CHECKING:
    from muster.local.faults.means import Means

LOOPBACK = "lo"


class Backend(ABC):
    """The hosts of one run, as the desk sees them: a folder here and its name in `choice`.

    Beside it lies `start.py`, whose `start(orders, up)` makes the hosts and holds them until all
    have ended. It runs in the host supervisor, which imports nothing else of a backend. What is
    not abstract here is that of hosts which run this machine's programs.

    `name`: as --isolation has it. `interface`: the network interface of its hosts. `has_own_ml`:
    hosts have an /opt/ml of their own. `shares_network`: they share the ports of this machine.
    `is_offline`: what they need is installed before they start, unless they get a way out.
    `assumption`: what `muster plan` cannot know of its hosts.
    """

    name: str
    interface: str
    has_own_ml: bool = True
    shares_network: bool = False
    is_offline: bool = False
    assumption: str = ""
    train: tuple[str, ...] = (sys.executable, "-m", "muster", "train")  # PID 1 of a host

    def __init__(self, request: Request, folder: RunFolder) -> None:
        self.request = request
        self.folder = folder

    @abstractmethod
    def refuses(self, apart: str, say: Callable[[str], None]) -> None:
        """Raises UsageError where hosts of this kind cannot hold the job.

        `apart`: why several hosts must have a network of their own each, or "".
        """

    @abstractmethod
    def addresses(self) -> dict[str, str]:
        """Host name -> address; {} where hosts are found by their names."""

    def inherited(self, caller: Mapping[str, str]) -> Mapping[str, str]:
        """The part of the caller's environment that hosts have."""
        return caller

    def environ(
        self, environ: Mapping[str, str], caller: Mapping[str, str], host: str
    ) -> dict[str, str]:
        """The environment of one host, with what this kind of host adds to it or leaves out: the
        caller's interpreter and packages, and the host's own packages before them."""
        site = self.folder.host(host, "site")
        return {
            **environ,
            "MUSTER_INSTALL_TARGET": site,
            "PYTHONPATH": search_path(site, caller.get("PYTHONPATH", "")),
            "PATH": search_path(os.path.dirname(sys.executable), caller.get("PATH", os.defpath)),
        }

    def tree(self, host: str, documents: Mapping[str, object]) -> None:
        """Writes one host's opt/ml. Raises OSError."""
        write_tree(self.folder.base(host), documents, self.request.channels)
        os.makedirs(self.folder.host(host, "site"), exist_ok=True)

    def place(self, host: str) -> str:
        """Where a host's `train` starts."""
        return self.folder.host(host)

    def orders(self, hosts: tuple[HostOrder, ...], caller: Mapping[str, str]) -> Orders:
        """What the host supervisor is to start. May raise UsageError."""
        channels, checkpoint = self.request.channels, self.request.checkpoint or ""
        return Orders(self.name, hosts, channels=channels, checkpoint=checkpoint)

    @abstractmethod
    def differences(self) -> list[str]:
        """What its hosts do not share with SageMaker, one sentence each."""

    def limits(self) -> list[str]:
        """What each host may take of this machine, in a sentence if there is a limit."""
        limit = self.request.memory_bytes
        return [f"each host may take {size_in_words(limit)} of memory"] if limit else []

    def groups(self) -> tuple[str, ...]:
        """Control groups for the hosts, made now; () where none are needed. Raises UsageError."""
        limit = self.request.memory_bytes
        return memory.make_groups(self.request.host_names, limit) if limit else ()

    def threads_per_rank(self) -> int:
        """Processors for each rank: all hosts share this machine's, and each would take all."""
        return max(1, len(os.sched_getaffinity(0)) // self.request.ranks_at_least)

    def visible(self, caller: Mapping[str, str]) -> Sequence[str] | None:
        """Folders that hosts see below temporary ones of their own; None where they have none."""
        return None

    def seen(self, machine: Machine) -> Machine:
        """This machine as a host sees it."""
        return machine

    def base(self, host: str) -> str:
        """A host's opt/ml as it sees it."""
        return ML if self.has_own_ml else self.folder.base(host)

    @abstractmethod
    def means(self, orders: Orders, supervisor: int) -> Means:
        """How faults are done to its hosts. `supervisor`: pid of their host supervisor."""

    def hints(self, orders: Orders, facts: Mapping[str, object]) -> tuple[str, ...]:
        """Commands for what is still there after the run."""
        return ()
