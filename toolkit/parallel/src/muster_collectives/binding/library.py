"""Finds and loads the compiled core."""

from __future__ import annotations

import ctypes
import functools
import os

from muster_collectives.binding import abi
from muster_collectives.runtime.errors import CoreError

INSTALLED = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_native", "libmuster_core.so"
)
_FIX = "install muster-parallel from its wheel, or where there is a C compiler"


def load(path: str = "") -> ctypes.CDLL:
    """The core at `path`, or the installed one. Raises CoreError with the reason."""
    return _load(path or INSTALLED)


@functools.lru_cache(maxsize=8)
def _load(path: str) -> ctypes.CDLL:
    if not os.path.exists(path):
        raise CoreError(f"there is no compiled core at {path}", _FIX)
    try:
        library = ctypes.CDLL(path)
        found = int(library.mc_abi())
        if found == abi.ABI:
            return abi.declare(library)
    except (OSError, AttributeError) as error:
        raise CoreError(f"the compiled core {path} cannot be loaded: {error}", _FIX) from error
    raise CoreError(f"the compiled core {path} has interface {found}, and {abi.ABI} is due", _FIX)
