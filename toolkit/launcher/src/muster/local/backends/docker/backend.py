"""Hosts as containers of an engine on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.arguments import UsageError, size_in_words
from muster.local.backends.base import Backend
from muster.local.backends.docker.options import DOCKER, DockerOptions
from muster.local.backends.netns.network import INTERFACE
from muster.local.orders import Containers, HostOrder, Orders
from muster.local.paths import unsuitable
from muster.local.tree import write_tree
from muster.types.machine import Machine

if TYPE_CHECKING:
    from muster.local.faults.means import Means


class Docker(Backend):
    """Hosts that are containers of one image; a run of them always has `request.docker`."""

    name = DOCKER
    interface = INTERFACE
    assumption = "programs are the image's: those of this machine are shown"
    train = ("train",)  # the image's, behind its entrypoint

    @property
    def options(self) -> DockerOptions:
        assert self.request.docker is not None
        return self.request.docker

    def refuses(self, apart: str, say: Callable[[str], None]) -> None:
        if clash := unsuitable(self.folder.path):
            raise UsageError(clash, "name another one with --output")
        from muster.local.backends.docker.preflight import preflight

        preflight(self.options, say)

    def addresses(self) -> dict[str, str]:
        return {}

    def inherited(self, caller: Mapping[str, str]) -> Mapping[str, str]:
        """A container has its image's environment; only settings for `train` reach it."""
        reaching = (name for name in caller if name.startswith("MUSTER_"))
        names = {*reaching, *({"OMP_NUM_THREADS"} & caller.keys())}
        return {name: caller[name] for name in caller if name in names}

    def environ(
        self, environ: Mapping[str, str], caller: Mapping[str, str], host: str
    ) -> dict[str, str]:
        return dict(environ)

    def tree(self, host: str, documents: Mapping[str, object]) -> None:
        write_tree(self.folder.base(host), documents, self.request.channels, mounted=True)

    def orders(self, hosts: tuple[HostOrder, ...], caller: Mapping[str, str]) -> Orders:
        containers = Containers(os.urandom(4).hex(), self.folder.path, *self.options)
        return super().orders(hosts, caller)._replace(containers=containers)

    def means(self, orders: Orders, supervisor: int) -> Means:
        from muster.local.faults.containers import ContainerMeans

        assert orders.containers is not None
        return ContainerMeans(orders.containers.run)

    def differences(self) -> list[str]:
        found = [
            "hosts reach what this machine's containers reach, without a role: S3 needs --env; "
            "they see no accelerator of this machine"
        ]
        return [*found, *(["channels are read-only"] if self.request.channels else [])]

    def limits(self) -> list[str]:
        _, memory_bytes, shm_bytes, cpus, *_ = self.options
        memory = "all memory" if memory_bytes is None else size_in_words(memory_bytes)
        processors = "all processors" if cpus is None else f"{cpus:g} processor{'s' * (cpus != 1)}"
        shm = "half of the memory" if shm_bytes is None else size_in_words(shm_bytes)
        return [f"each host may take {memory}, {processors}, {shm} in /dev/shm"]

    def groups(self) -> tuple[str, ...]:
        return ()  # the engine makes its own

    def threads_per_rank(self) -> int:
        share, cpus = super().threads_per_rank(), self.options.cpus
        if cpus is None:
            return share
        return max(1, min(share, int(cpus / (self.request.processes_per_host or 1))))

    def visible(self, caller: Mapping[str, str]) -> Sequence[str] | None:
        return [self.folder.path]

    def seen(self, machine: Machine) -> Machine:
        return machine._replace(gpus=0, neurons=0, efa=False)

    def hints(self, orders: Orders, facts: Mapping[str, object]) -> tuple[str, ...]:
        """What a person can do with containers that are still there."""
        from muster.local.backends.docker import names as docker_names

        assert orders.containers is not None
        run, left = orders.containers.run, facts.get("left")
        if left == docker_names.KEPT_ALL:
            names = [host.name for host in orders.hosts]
            return tuple(docker_names.look_commands(run, orders.containers.image, names))
        if left == docker_names.LEFT_NOTHING:
            return ()
        return (
            "containers of this run may be left; to remove them:",
            f"  {docker_names.remove_command(run)}",
        )
