"""Memory that a program sums in place or sends again and again, such as DDP's buckets, is
registered where it lies: ranks of a node work in each other's, and nothing is staged.

It keeps its address and its content. It has to be torch's own and private: not a file's, not seen
by another process or by a GPU's driver, not given out as a NumPy array.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from muster_collectives.binding.communicator import Communicator

LEAST_BYTES = 1 << 20  # the core's MC_ADOPT_LEAST
_TIMES = 4  # calls until it counts as steady: DDP has cut its buckets anew by then
_PAGE = 4096


class _Registered(NamedTuple):
    storage: weakref.ref[torch.UntypedStorage]
    place: int
    at_its_end: weakref.finalize[..., Any]
    end: Callable[[bool], None]


class SteadyMemory:
    """What `core` has summed and sent so far: by its storage and where it lies there."""

    def __init__(self, core: Communicator) -> None:
        self.core = core
        self._times: dict[tuple[int, int, int, bool], int] = {}
        self._registered: list[_Registered] = []

    def note(self, tensor: Tensor, *, sends: bool = False) -> None:
        """A sum or a send of this tensor, of LEAST_BYTES or more, begins."""
        self._leave_what_has_moved()
        storage = tensor.untyped_storage()  # torch keeps this object for as long as the memory
        place, bytes_ = tensor.data_ptr(), tensor.nbytes
        key = id(storage), place, bytes_, sends
        before = self._times.get(key, 0)
        if before >= _TIMES:
            return
        self._times[key] = before + 1
        if not before:
            weakref.finalize(storage, self._times.pop, key, None).atexit = False
        elif before + 1 == _TIMES and _is_own(storage) and _is_private(place, bytes_):
            end = self.core.adopt(place, bytes_, sends=sends)
            if end is not None:
                at_its_end = weakref.finalize(storage, end, False)
                at_its_end.atexit = False
                begin = storage.data_ptr()
                self._registered.append(_Registered(weakref.ref(storage), begin, at_its_end, end))

    def _leave_what_has_moved(self) -> None:
        """`share_memory_` and `resize_` give a storage other memory, and free what it had."""
        gone = []
        for each in self._registered:
            storage = each.storage()
            if storage is not None and storage.data_ptr() == each.place:
                continue
            gone.append(each)
            if storage is not None and each.at_its_end.detach():
                each.end(True)
        for each in gone:
            self._registered.remove(each)


def _is_own(storage: torch.UntypedStorage) -> bool:
    """Whether torch has allocated it, for this process alone."""
    return storage.resizable() and not storage.is_shared() and not torch.cuda.is_initialized()


def _is_private(address: int, bytes_: int) -> bool:
    """Whether its whole pages are anonymous memory that no other process sees. Without /proc or a
    free descriptor nobody can tell, and the sum goes on as ever."""
    with suppress(OSError):
        return _is_anonymous(address, bytes_)
    return False


def _is_anonymous(address: int, bytes_: int) -> bool:
    begin, end = -(-address // _PAGE) * _PAGE, (address + bytes_) // _PAGE * _PAGE
    for first, last, access, inode, name in _mappings():
        if first <= begin < last:
            if access != "rw-p" or inode != "0" or name.startswith("[stack"):
                return False
            begin = last
        if begin >= end:
            return True
    return False


def _mappings() -> Iterator[tuple[int, int, str, str, str]]:
    """Of this process: begin, end, access, inode, name."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split(maxsplit=5)
            first, _, last = words[0].partition("-")
            yield int(first, 16), int(last, 16), words[1], words[4], "".join(words[5:])
