"""Hosts in namespaces of this kernel, with a network of their own."""

from __future__ import annotations

import site
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.arguments import UsageError
from muster.local import caches
from muster.local.backends.base import LOOPBACK, Backend
from muster.local.backends.netns.network import INTERFACE, host_address
from muster.local.environment import kept_paths
from muster.local.orders import HostOrder, Orders
from muster.local.paths import HOME, unsuitable
from muster.types.machine import Interface, Machine

if TYPE_CHECKING:
    from muster.local.faults.means import Means


class Netns(Backend):
    """Hosts with their own network, mounts, processes, host name and IPC."""

    name = "netns"
    interface = INTERFACE
    is_offline = True

    def refuses(self, apart: str, say: Callable[[str], None]) -> None:
        if reason := self.missing():
            raise UsageError(
                f"--isolation netns is not possible here: {reason}", "use --isolation process"
            )

    def missing(self) -> str:
        """Why this machine has no such hosts, by a trial; "" where it has. Raises UsageError for a
        way out that was asked for and cannot be."""
        from muster.local.hosts import why_not_isolated

        reason = unsuitable(self.folder.path) or why_not_isolated(self.folder.path)
        if not reason and self.request.internet:
            from muster.local.backends.netns.internet import find_pasta

            find_pasta()
        return reason

    def addresses(self) -> dict[str, str]:
        return {
            name: host_address(host_index)
            for host_index, name in enumerate(self.request.host_names)
        }

    def environ(
        self, environ: Mapping[str, str], caller: Mapping[str, str], host: str
    ) -> dict[str, str]:
        made = super().environ(environ, caller, host)
        made = {name: value for name, value in made.items() if not name.startswith("XDG_")}
        made.setdefault("PYTHONUSERBASE", site.getuserbase())
        made.update(HOME=HOME, TMPDIR="/tmp")
        made.setdefault(caches.INDUCTOR, f"{HOME}/.cache/torchinductor")
        return made

    def place(self, host: str) -> str:
        return "/"

    def orders(self, hosts: tuple[HostOrder, ...], caller: Mapping[str, str]) -> Orders:
        pasta = ""
        if self.request.internet:
            from muster.local.backends.netns.internet import find_pasta

            pasta = find_pasta()
        return (
            super()
            .orders(hosts, caller)
            ._replace(
                kept=kept_paths(caller),
                writable=(self.folder.path,),
                caches=caches.find_caches(caller),
                pasta=pasta,
            )
        )

    def means(self, orders: Orders, supervisor: int) -> Means:
        from muster.local.faults.processes import NamespaceMeans

        return NamespaceMeans(supervisor, orders, self.interface)

    def differences(self) -> list[str]:
        request = self.request
        way_out = "this machine's network, without a role: S3 needs --env"
        nothing = "nothing else: no internet, no S3"
        found = [f"hosts reach one another and {way_out if request.internet else nothing}"]
        return [*found, *(["channels are read-only"] if request.channels else [])]

    def visible(self, caller: Mapping[str, str]) -> Sequence[str] | None:
        return [self.folder.path, *kept_paths(caller)]

    def seen(self, machine: Machine) -> Machine:
        link = Interface(INTERFACE, host_address(0))
        return machine._replace(interfaces=(Interface(LOOPBACK, "127.0.0.1"), link))
