"""How a worker's script ends: whether the servers hear a goodbye when nobody called `close()`.

A clean end of the interpreter is a goodbye. An exception, and `sys.exit` with another code than 0,
are none: the connection breaks, and the servers tell all others. A handle that is merely collected
says nothing; its connection lives on until the script ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import NoReturn

from muster_parameter_server.exchange import Exchange


class AtEnd:
    """Leaves the servers when the interpreter ends, unless `cancel` was called before."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._pid = os.getpid()
        if not isinstance(sys.exit, _NotedExit):
            sys.exit = _NotedExit()
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=_Forget(exchange))

    def cancel(self) -> None:
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        if os.getpid() != self._pid:
            return
        failed = isinstance(sys.exit, _NotedExit) and sys.exit.failed
        if failed or getattr(sys, "last_value", None) is not None:
            self._exchange.abort()
        else:
            self._exchange.goodbye()


class _NotedExit:
    """Stands in for `sys.exit`: the interpreter tells no one at its end with which code it ends.

    Limits: `raise SystemExit(1)` is not seen; and a `sys.exit(1)` that the script catches counts.
    """

    failed = False

    def __call__(self, status: object = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            self.failed = status is not None and status != 0
        raise SystemExit(status)


class _Forget:
    """In a forked child (a data loader's): closes its copies, or servers would miss our end."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = weakref.ref(exchange)

    def __call__(self) -> None:
        exchange = self._exchange()
        if exchange is not None and exchange.open:
            exchange.abort()
