"""In the host supervisor: plain processes, all of whose orphans stay below it."""

from __future__ import annotations

import errno
import os

from muster.local.orders import Orders
from muster.local.supervisor import hold, start_host
from muster.run.child.rank_shim import become_subreaper


def start(orders: Orders, up: int) -> int:
    """Starts the hosts and holds them until all have ended. Raises OSError."""
    if not become_subreaper():
        raise OSError(errno.EPERM, "orphans would leave their host", "prctl")
    parent = os.getpid()
    hosts = {start_host(order, parent): index for index, order in enumerate(orders.hosts)}
    return hold(orders, up, hosts)
