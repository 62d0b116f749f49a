"""Finds and loads the compiled core, and makes groups of it."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket
from collections.abc import Callable

from muster_collectives.binding import abi
from muster_collectives.runtime.errors import CoreError
from muster_collectives.runtime.layout import GroupLayout
from muster_collectives.runtime.tuning import Tuning, encode

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


def create(
    library: ctypes.CDLL, layout: GroupLayout, timeout_s: float, handle: ctypes.c_void_p,
    place: abi.FailurePlace, records: int = 0,
) -> int:  # fmt: skip
    """Makes a group of `layout`, whose flight log keeps that many `records`: the code it ended
    with, and 0 with a `handle`."""
    nodes = (ctypes.c_uint32 * layout.size)(*layout.nodes)
    addresses = ctypes.create_string_buffer(layout.addresses.packed)
    raw = abi.McLayout(
        abi=abi.ABI, rank=layout.rank, size=layout.size, node_of=ctypes.addressof(nodes),
        segment_fd=layout.segment_fd,
        addresses=ctypes.addressof(addresses) if layout.addresses else None,
        tuning=raw_tuning(layout.tuning), records=records,
    )  # fmt: skip
    raw.key[:] = layout.key
    place.clear()
    return int(library.mc_create(abi.at(raw), timeout_s, ctypes.byref(handle), place.address))


def open_endpoint(
    library: ctypes.CDLL, hosts: tuple[str, ...], listen: Callable[[], socket.socket]
) -> tuple[int, int]:
    """Where other nodes reach this process for one group that is to be made: the endpoint's number
    and its port. All groups with the same `hosts` have one socket, which `listen` makes where there
    is none yet. Raises OSError."""
    number, port = abi.u64(), abi.u16()

    def ask(fd: int) -> int:
        at = ctypes.byref(number), ctypes.byref(port)
        return int(library.mc_endpoint_open(" ".join(hosts).encode(), fd, *at))

    error = ask(-1)
    if error == errno.ENOENT:
        with listen() as listener:
            error = ask(listener.fileno())
            if not error:
                listener.detach()  # the core's
    if error:
        raise OSError(error, os.strerror(error))
    return number.value, port.value


def raw_tuning(tuning: Tuning) -> abi.McTuning:
    """As the core takes it."""
    return abi.McTuning(**encode(tuning))
