"""Hosts as plain processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from muster.arguments import UsageError
from muster.local.backends.base import LOOPBACK, Backend
from muster.local.environment import on_this_machine
from muster.local.orders import HostOrder, Orders
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.local.tree import share_checkpoints


class Process(Backend):
    """Hosts that share all of this machine but the run folder."""

    name = "process"
    interface = LOOPBACK
    has_own_ml = False
    shares_network = True

    def refuses(
        self, request: Request, folder: RunFolder, apart: str, say: Callable[[str], None]
    ) -> None:
        if apart:
            raise UsageError(apart, "use --isolation netns or docker, or --hosts 1")

    def addresses(self, names: Iterable[str]) -> dict[str, str]:
        """A random corner of the loopback network."""
        high, low = os.urandom(2)
        network = f"127.{1 + high % 254}.{low}"
        return {name: f"{network}.{number}" for number, name in enumerate(names, start=1)}

    def environ(
        self, environ: Mapping[str, str], caller: Mapping[str, str], folder: RunFolder, host: str
    ) -> dict[str, str]:
        made = on_this_machine(environ, caller, folder.host(host, "site"))
        return {**made, "SAGEMAKER_BASE_DIR": folder.base(host)}

    def tree(
        self, request: Request, folder: RunFolder, host: str, documents: Mapping[str, object]
    ) -> None:
        super().tree(request, folder, host, documents)
        if request.checkpoint is not None:
            share_checkpoints(folder.base(host), request.checkpoint)
        os.makedirs(folder.host(host, "site"), exist_ok=True)

    def orders(
        self,
        request: Request,
        folder: RunFolder,
        hosts: tuple[HostOrder, ...],
        caller: Mapping[str, str],
    ) -> Orders:
        return Orders(self.name, hosts)

    def differences(self, request: Request) -> list[str]:
        found = [
            "hosts share /tmp, /dev/shm, caches and this machine's name; the names algo-1, ... do "
            "not resolve, addresses are of the loopback network",
            "the literal /opt/ml is not the host's: scripts must use the SM_* variables",
        ]
        if request.checkpoint:
            found.append(
                "--checkpoint is the folder `checkpoints` beside the one that SM_MODEL_DIR names: "
                "what a script writes to the literal /opt/ml/checkpoints is not kept there"
            )
        if request.channels:
            found.append("channels are links to your own folders: what a script writes stays")
        return found
