"""Hosts as plain processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from muster.arguments import UsageError
from muster.local.backends.base import LOOPBACK, Backend
from muster.local.orders import Orders
from muster.local.tree import share_checkpoints

if TYPE_CHECKING:
    from muster.local.faults.means import Means


class Process(Backend):
    """Hosts that share all of this machine but the run folder."""

    name = "process"
    interface = LOOPBACK
    has_own_ml = False
    shares_network = True
    assumption = (
        "every run gets addresses of its own in 127.0.0.0/8 and every host a folder of its own:"
        " the addresses shown are an example, the folders those of the first host"
    )

    def refuses(self, apart: str, say: Callable[[str], None]) -> None:
        if apart:
            raise UsageError(apart, "use --isolation netns or docker, or --hosts 1")

    def addresses(self) -> dict[str, str]:
        """A random corner of the loopback network."""
        high, low = os.urandom(2)
        network = f"127.{1 + high % 254}.{low}"
        names = self.request.host_names
        return {name: f"{network}.{number}" for number, name in enumerate(names, start=1)}

    def environ(
        self, environ: Mapping[str, str], caller: Mapping[str, str], host: str
    ) -> dict[str, str]:
        made = super().environ(environ, caller, host)
        return {**made, "SAGEMAKER_BASE_DIR": self.folder.base(host)}

    def tree(self, host: str, documents: Mapping[str, object]) -> None:
        super().tree(host, documents)
        if self.request.checkpoint is not None:
            share_checkpoints(self.folder.base(host), self.request.checkpoint)

    def means(self, orders: Orders, supervisor: int) -> Means:
        from muster.local.faults.processes import ProcessMeans

        return ProcessMeans(supervisor, orders)

    def differences(self) -> list[str]:
        found = [
            "hosts share /tmp, /dev/shm, caches and this machine's name; the names algo-1, ... do "
            "not resolve, addresses are of the loopback network",
            "the literal /opt/ml is not the host's: scripts must use the SM_* variables",
        ]
        if self.request.checkpoint:
            found.append(
                "--checkpoint is the folder `checkpoints` beside the one that SM_MODEL_DIR names: "
                "what a script writes to the literal /opt/ml/checkpoints is not kept there"
            )
        if self.request.channels:
            found.append("channels are links to your own folders: what a script writes stays")
        return found
