"""Finds and loads the compiled core."""

from __future__ import annotations

import ctypes
import functools
import os

from muster_collectives.binding import abi

INSTALLED = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_native", "libmuster_core.so"
)


class NoCore(Exception):  # noqa: N818
    """There is no core that this process can use; the text says why."""


def load(path: str = "") -> ctypes.CDLL:
    """The core at `path`, or the installed one. Raises NoCore with the reason."""
    return _load(path or INSTALLED)


@functools.lru_cache(maxsize=8)
def _load(path: str) -> ctypes.CDLL:
    if not os.path.exists(path):
        raise NoCore(f"{path} is not there (it is made when muster-parallel is installed where "
                     "there is a C compiler)")  # fmt: skip
    try:
        library = abi.declare(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:
        raise NoCore(f"{path} cannot be used: {error}") from error
    found = int(library.mc_abi())
    if found != abi.ABI:
        raise NoCore(f"{path} has interface {found}, and {abi.ABI} is due: install it again")
    return library
