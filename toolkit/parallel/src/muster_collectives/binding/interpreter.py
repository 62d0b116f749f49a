"""Functions of this interpreter's stable interface, by value, for the core."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TypeVar

Made = TypeVar("Made", bound=ctypes.Structure)


def functions(structure: type[Made], names: Mapping[str, str], **more: int) -> Made:
    """A structure whose fields are the functions of `names` (by field), and `more` as it is."""
    found = {
        field: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        for field, name in names.items()
    }
    return structure(**found, **more)
