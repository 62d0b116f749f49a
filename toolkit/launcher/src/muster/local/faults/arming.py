"""The faults of a request, made ready for its hosts."""

from __future__ import annotations

from collections.abc import Sequence

from muster.local.backends.base import Backend
from muster.local.faults.injector import Injector
from muster.local.faults.means import Means
from muster.local.faults.spec import Fault
from muster.local.hosts import Hosts
from muster.local.orders import Orders


def arm(backend: Backend, faults: Sequence[Fault], orders: Orders, hosts: Hosts) -> Injector:
    """The thread that does the faults of a run, not started yet."""
    names = backend.request.host_names

    def ended() -> list[str]:
        return [names[index] for index in list(hosts.statuses)]

    means = _means(backend, orders, hosts.pid)
    return Injector(faults, backend.folder, names, means, ended)


def _means(backend: Backend, orders: Orders, supervisor: int) -> Means:
    if orders.containers is not None:
        from muster.local.faults.containers import ContainerMeans

        return ContainerMeans(orders.containers.run)
    from muster.local.faults.processes import NamespaceMeans, ProcessMeans

    mark = "MUSTER_INSTALL_TARGET"
    marks = {host.name: f"{mark}={host.environ[mark]}".encode() for host in orders.hosts}
    if backend.shares_network:
        return ProcessMeans(supervisor, marks)
    addresses = {host.name: host.address for host in orders.hosts}
    return NamespaceMeans(supervisor, marks, addresses, backend.interface)
