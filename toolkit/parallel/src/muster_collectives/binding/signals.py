"""Signal handlers of this interpreter run while a foreign call waits, not only after it.

Ctrl-C in a collective that waits for a rank which never comes would otherwise be answered when its
deadline has passed. The core is given CPython's own functions for it (csrc/group/signals.c).
"""

from __future__ import annotations

import ctypes
import threading

from muster_collectives.binding import abi, interpreter

_FUNCTIONS = {
    "ensure_gil": "PyGILState_Ensure",
    "check_signals": "PyErr_CheckSignals",
    "fetch": "PyErr_Fetch",
    "release": "PyGILState_Release",
}


class SignalCheck:
    """Lets signal handlers run while a call of one group waits. Must live
    as long as the group's handle."""

    def __init__(self) -> None:
        thread = threading.main_thread().ident or 0  # the only one that runs handlers
        self._host = interpreter.functions(abi.McSignalCheck, _FUNCTIONS, thread=thread)
        self.address = ctypes.addressof(self._host)
        self._restore = ctypes.PYFUNCTYPE(None, abi.ptr, abi.ptr, abi.ptr)(
            ("PyErr_Restore", ctypes.pythonapi)
        )

    def raise_pending(self) -> None:
        """Raises what a handler has raised during the call that has just ended, if one has."""
        kept = tuple(self._host.kept)
        if kept[0]:
            self._host.kept[:] = (None, None, None)
            self._restore(*kept)
