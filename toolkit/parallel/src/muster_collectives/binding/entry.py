"""The core and this interpreter: `mc_run`, `mc_post` and `mc_wait` as builtin functions of it
(csrc/api/python_entry.c), and its signal handlers while a call waits (csrc/group/signals.c).

Through ctypes a call costs about a microsecond more, which is half of a small sum. CPython's stable
interface is enough: the core is compiled without Python's headers and linked with none of it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from muster_collectives.binding import abi

_FUNCTIONS = {
    "number": "PyLong_AsUnsignedLongLong",
    "real": "PyFloat_AsDouble",
    "error": "PyErr_Occurred",
    "save_thread": "PyEval_SaveThread",
    "restore_thread": "PyEval_RestoreThread",
    "code": "PyLong_FromLong",
}
_SIGNALS = {
    "ensure_gil": "PyGILState_Ensure",
    "check_signals": "PyErr_CheckSignals",
    "fetch": "PyErr_Fetch",
    "release": "PyGILState_Release",
}
_METH_FASTCALL = 0x0080

# verb, dtype, op, root, source, target, count, where in_counts, out_counts and blocks lie,
# timeout_s; the code it ended with
Run = Callable[[int, int, int, int, int, int, int, int, int, int, float], int]
# way, peer (any: 0xFFFFFFFF), tag, address, bytes, where the request's number goes, timeout_s
Post = Callable[[int, int, int, int, int, int, float], int]
# request, wait_s, where its status goes, where a failure goes
Wait = Callable[[int, float, int, int], int]

_LOOK_S = 0.001
_Made = TypeVar("_Made", bound=ctypes.Structure)


class _Method(ctypes.Structure):  # PyMethodDef
    _fields_ = (
        ("name", ctypes.c_char_p), ("function", abi.ptr), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


class Entry:
    """One group's functions. `run` must not be called once the group's handle is closed; `post`
    and `wait` end with ECLOSED then."""

    def __init__(self, library: ctypes.CDLL, handle: int | None, failure: int | None) -> None:
        self._place = abi.McEntry(comm=handle, failure=failure)
        new = ctypes.PYFUNCTYPE(ctypes.py_object, abi.ptr, ctypes.py_object, abi.ptr)(
            ("PyCFunction_NewEx", ctypes.pythonapi)
        )
        place = ctypes.addressof(self._place)
        run, post, wait = (new(each, place, None) for each in _methods(library))
        self.run, self.post, self.wait = cast(Run, run), cast(Post, post), cast(Wait, wait)

    def close(self) -> None:
        """`post` and `wait` enter the core no more."""
        self._place.comm = None

    def left(self, timeout_s: float) -> bool:
        """Whether all threads have left `post` and `wait`, after `timeout_s` at most."""
        limit = time.monotonic() + timeout_s
        while self._place.inside and time.monotonic() < limit:
            time.sleep(_LOOK_S)
        return not self._place.inside


@functools.lru_cache(maxsize=8)
def _methods(library: ctypes.CDLL) -> tuple[int, ...]:
    """Where the descriptions lie: for good, as functions made of them may be the last to go."""
    functions = _functions(abi.McPython, _FUNCTIONS)
    library.mc_python(abi.at(functions))
    places = []
    for name in ("run", "post", "wait"):
        function = ctypes.cast(getattr(library, f"mc_python_{name}"), abi.ptr).value
        method = _Method(name.encode(), function, _METH_FASTCALL, None)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
        places.append(ctypes.addressof(method))
    return tuple(places)


class SignalCheck:
    """Lets signal handlers run while a call of one group waits, not only after it: Ctrl-C in a
    collective that waits for a rank which never comes would otherwise be answered when its deadline
    has passed. Must live as long as the group's handle."""

    def __init__(self) -> None:
        thread = threading.main_thread().ident or 0  # the only one that runs handlers
        self._host = _functions(abi.McSignalCheck, _SIGNALS, thread=thread)
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


def _functions(structure: type[_Made], names: Mapping[str, str], **more: int) -> _Made:
    """A structure whose fields are the interpreter's functions of `names` (by field), by value, and
    `more` as it is."""
    found = {
        field: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        for field, name in names.items()
    }
    return structure(**found, **more)
