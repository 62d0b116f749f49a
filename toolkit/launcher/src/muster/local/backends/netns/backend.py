"""Hosts in namespaces of this kernel, with a network of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from muster.arguments import UsageError
from muster.local import caches
from muster.local.backends.base import LOOPBACK, Backend
from muster.local.backends.netns.network import INTERFACE, host_address
from muster.local.environment import kept_paths, on_this_machine
from muster.local.orders import HostOrder, Orders
from muster.local.paths import HOME, unsuitable
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.types.machine import Interface, Machine


class Netns(Backend):
    """Hosts with their own network, mounts, processes, host name and IPC."""

    name = "netns"
    interface = INTERFACE
    is_offline = True

    def refuses(
        self, request: Request, folder: RunFolder, apart: str, say: Callable[[str], None]
    ) -> None:
        if reason := self.missing(request, folder):
            raise UsageError(
                f"--isolation netns is not possible here: {reason}", "use --isolation process"
            )

    def missing(self, request: Request, folder: RunFolder) -> str:
        """Why this machine has no such hosts, by a trial; "" where it has. Raises UsageError for a
        way out that was asked for and cannot be."""
        from muster.local.hosts import why_not_isolated

        reason = unsuitable(folder.path) or why_not_isolated(folder.path)
        if not reason and request.internet:
            from muster.local.backends.netns.internet import find_pasta

            find_pasta()
        return reason

    def addresses(self, names: Iterable[str]) -> dict[str, str]:
        return {name: host_address(host_index) for host_index, name in enumerate(names)}

    def environ(
        self, environ: Mapping[str, str], caller: Mapping[str, str], folder: RunFolder, host: str
    ) -> dict[str, str]:
        made = on_this_machine(environ, caller, folder.host(host, "site"))
        made = {name: value for name, value in made.items() if not name.startswith("XDG_")}
        made.setdefault("PYTHONUSERBASE", _user_base())
        made.update(HOME=HOME, TMPDIR="/tmp")
        made.setdefault(caches.INDUCTOR, f"{HOME}/.cache/torchinductor")
        return made

    def tree(
        self, request: Request, folder: RunFolder, host: str, documents: Mapping[str, object]
    ) -> None:
        super().tree(request, folder, host, documents)
        os.makedirs(folder.host(host, "site"), exist_ok=True)

    def place(self, folder: RunFolder, host: str) -> str:
        return "/"

    def orders(
        self,
        request: Request,
        folder: RunFolder,
        hosts: tuple[HostOrder, ...],
        caller: Mapping[str, str],
    ) -> Orders:
        pasta = ""
        if request.internet:
            from muster.local.backends.netns.internet import find_pasta

            pasta = find_pasta()
        return Orders(
            self.name,
            hosts,
            kept_paths(caller),
            (folder.path,),
            request.channels,
            checkpoint=request.checkpoint or "",
            caches=caches.find_caches(caller),
            pasta=pasta,
        )

    def differences(self, request: Request) -> list[str]:
        way_out = "this machine's network, without a role: S3 needs --env"
        nothing = "nothing else: no internet, no S3"
        found = [f"hosts reach one another and {way_out if request.internet else nothing}"]
        return [*found, *(["channels are read-only"] if request.channels else [])]

    def visible(self, folder: RunFolder, caller: Mapping[str, str]) -> Sequence[str] | None:
        return [folder.path, *kept_paths(caller)]

    def seen(self, machine: Machine, names: tuple[str, ...]) -> Machine:
        link = Interface(INTERFACE, self.addresses(names)[names[0]])
        return machine._replace(interfaces=(Interface(LOOPBACK, "127.0.0.1"), link))


def _user_base() -> str:
    import site

    return site.getuserbase()
