"""The core's `mc_run` as a builtin function of this interpreter (csrc/entry.c).

Through ctypes a call costs about a microsecond more, which is half of a small sum. CPython's stable
interface is enough: the core is compiled without Python's headers and linked with none of it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import cast

from muster_collectives.core import abi, interpreter

_FUNCTIONS = {
    "number": "PyLong_AsUnsignedLongLong",
    "real": "PyFloat_AsDouble",
    "error": "PyErr_Occurred",
    "let_go": "PyEval_SaveThread",
    "hold": "PyEval_RestoreThread",
    "code": "PyLong_FromLong",
}
_METH_FASTCALL = 0x0080

# verb, dtype, op, root, source, target, count, where in_counts and out_counts lie, timeout_s; the
# code it ended with
Run = Callable[[int, int, int, int, int, int, int, int, int, float], int]


class _Method(ctypes.Structure):  # PyMethodDef
    _fields_ = (
        ("name", ctypes.c_char_p), ("function", abi.ptr), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


class Entry:
    """One group's `run`; must not be called once the group's handle is closed."""

    def __init__(self, library: ctypes.CDLL, handle: int | None, failure: int | None) -> None:
        self._place = abi.McEntry(comm=handle, failure=failure)
        new = ctypes.PYFUNCTYPE(ctypes.py_object, abi.ptr, ctypes.py_object, abi.ptr)(
            ("PyCFunction_NewEx", ctypes.pythonapi)
        )
        self.run = cast(Run, new(_method(library), ctypes.addressof(self._place), None))


@functools.lru_cache(maxsize=8)
def _method(library: ctypes.CDLL) -> int:
    """Where the description lies: for good, as functions made of it may be the last to go."""
    functions = interpreter.functions(abi.McPython, _FUNCTIONS)
    library.mc_python(abi.at(functions))
    function = ctypes.cast(library.mc_python_run, abi.ptr).value
    method = _Method(b"run", function, _METH_FASTCALL, None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
    return ctypes.addressof(method)
