"""How a worker's script ends: whether the servers hear a goodbye when nobody called `close()`.

A clean end of the interpreter is a goodbye. An exception is none: the connection breaks, and the
servers tell all others. Python notes the exception that ends a script in `sys.last_value`; muster's
launcher notes an exit code other than 0 there too, which Python itself tells nobody. A handle that
is merely collected says nothing; its connection lives on until the script ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from functools import partial

from muster_parameter_server.client.exchange import Exchange


class AtEnd:
    """Leaves the servers when the interpreter ends, unless `cancel` was called before."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._pid = os.getpid()
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=partial(_forget, weakref.ref(exchange)))

    def cancel(self) -> None:
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        if os.getpid() != self._pid:
            return
        if getattr(sys, "last_value", None) is not None:
            self._exchange.abort()
        else:
            self._exchange.goodbye()


def _forget(known: weakref.ref[Exchange]) -> None:
    """In a forked child (a data loader's): closes its copies, or servers would miss our end."""
    exchange = known()
    if exchange is not None and exchange.open:
        exchange.abort()
