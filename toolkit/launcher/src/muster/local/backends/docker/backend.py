"""Hosts as containers of an engine on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from muster.arguments import UsageError
from muster.local.backends.base import Backend
from muster.local.backends.docker.options import DOCKER, DockerOptions, size_in_words
from muster.local.backends.netns.network import INTERFACE
from muster.local.orders import Containers, HostOrder, Orders
from muster.local.paths import unsuitable
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.local.tree import write_tree
from muster.types.machine import Machine


class Docker(Backend):
    """Hosts that are containers of one image; a run of them always has `request.docker`."""

    name = DOCKER
    interface = INTERFACE
    train = ("train",)  # the image's, behind its entrypoint

    def refuses(
        self, request: Request, folder: RunFolder, apart: str, say: Callable[[str], None]
    ) -> None:
        if clash := unsuitable(folder.path):
            raise UsageError(clash, "name another one with --output")
        from muster.local.backends.docker.preflight import preflight

        preflight(_options(request), say)

    def addresses(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def inherited(self, caller: Mapping[str, str]) -> Mapping[str, str]:
        """A container has its image's environment; only settings for `train` reach it."""
        reaching = (name for name in caller if name.startswith("MUSTER_"))
        names = {*reaching, *({"OMP_NUM_THREADS"} & caller.keys())}
        return {name: caller[name] for name in caller if name in names}

    def environ(
        self, environ: Mapping[str, str], caller: Mapping[str, str], folder: RunFolder, host: str
    ) -> dict[str, str]:
        return dict(environ)

    def tree(
        self, request: Request, folder: RunFolder, host: str, documents: Mapping[str, object]
    ) -> None:
        write_tree(folder.base(host), documents, request.channels, mounted=True)

    def orders(
        self,
        request: Request,
        folder: RunFolder,
        hosts: tuple[HostOrder, ...],
        caller: Mapping[str, str],
    ) -> Orders:
        made_of = Containers(os.urandom(4).hex(), folder.path, **_options(request)._asdict())
        checkpoint = request.checkpoint or ""
        return Orders(
            self.name,
            hosts,
            channels=request.channels,
            containers=made_of,
            checkpoint=checkpoint,
        )

    def differences(self, request: Request) -> list[str]:
        found = [
            "hosts reach what this machine's containers reach, without a role: S3 needs --env; "
            "they see no accelerator of this machine"
        ]
        return [*found, *(["channels are read-only"] if request.channels else [])]

    def limits(self, request: Request) -> list[str]:
        options = _options(request)
        memory = "all memory"
        if options.memory_bytes is not None:
            memory = size_in_words(options.memory_bytes)
        cpus = "all processors"
        if options.cpus is not None:
            cpus = f"{options.cpus:g} processor{'s' * (options.cpus != 1)}"
        shm = "half of the memory"
        if options.shm_bytes is not None:
            shm = size_in_words(options.shm_bytes)
        return [f"each host may take {memory}, {cpus}, {shm} in /dev/shm"]

    def visible(self, folder: RunFolder, caller: Mapping[str, str]) -> Sequence[str] | None:
        return [folder.path]

    def seen(self, machine: Machine, names: tuple[str, ...]) -> Machine:
        return machine._replace(gpus=0, neurons=0, efa=False)

    def hints(self, orders: Orders, facts: Mapping[str, object]) -> tuple[str, ...]:
        """What a person can do with containers that are still there."""
        from muster.local.backends.docker.names import (
            KEPT_ALL,
            LEFT_NOTHING,
            look_commands,
            remove_command,
        )

        assert orders.containers is not None
        run, left = orders.containers.run, facts.get("left")
        if left == KEPT_ALL:
            names = [host.name for host in orders.hosts]
            return tuple(look_commands(run, orders.containers.image, names))
        if left == LEFT_NOTHING:
            return ()
        return ("containers of this run may be left; to remove them:", f"  {remove_command(run)}")


def _options(request: Request) -> DockerOptions:
    assert request.docker is not None
    return request.docker
