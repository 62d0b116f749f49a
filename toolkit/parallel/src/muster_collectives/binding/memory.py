"""Registered memory: each rank's region, mapped by all ranks of its node.

All ranks of the group take the same steps and agree on each by a small all-gather, so a rank that
cannot is an error on all of them and nothing is left over. Between nodes the core stages.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from muster_collectives.binding import abi, shared_memory
from muster_collectives.runtime.errors import CollectiveError, ResourceError
from muster_collectives.runtime.layout import ShmMethod
from muster_collectives.runtime.messages import DESCRIPTORS_FIX, NO_DESCRIPTOR
from muster_collectives.runtime.types import Code, Failure

if TYPE_CHECKING:
    from muster_collectives.binding.communicator import Communicator

# bytes, pid, descriptor, inode, device, whether it went well, path
_OFFER = struct.Struct("=QqqQQB95s")
_MAX_BYTES = 1 << 46


class Region:
    """Memory that the ranks of the node have in common: collectives on it copy less. This rank's
    own part has `bytes` at `address`."""

    def __init__(
        self, group: Communicator, address: int, own: mmap.mmap | None, bytes_: int
    ) -> None:
        self.address = address
        self.bytes = bytes_
        self._group = group
        self._own = own
        self._number = -1  # the core does not know it
        self._others: list[mmap.mmap] = []
        self._is_released = False

    @property
    def view(self) -> memoryview:
        """This rank's own part, writable."""
        if self._own is not None:
            return memoryview(self._own)[: self.bytes]
        return memoryview((ctypes.c_char * self.bytes).from_address(self.address)).cast("B")

    def release(self) -> None:
        """By all ranks together. A view that is still in use keeps its memory."""
        if self._is_released:
            return
        self._is_released = True
        if self._number < 0 or self._group.region_drop(self._number):
            self._group.regions.discard(self)
            self.unmap()

    def register(self, fd: int, path: str, failed: str) -> Region:
        """Offers, maps what the others offer, registers; three agreements. `failed`: why this rank
        cannot. Raises on all ranks if one cannot, and leaves nothing over."""
        group, others = self._group, self._others
        try:
            offers = _exchange(group, fd, self.bytes, path, failed)
            node = group.nodes[group.rank]
            members = [rank for rank in range(group.size) if group.nodes[rank] == node]
            bases = []
            try:
                for rank in members:
                    if rank != group.rank:
                        others.append(_map_of(offers[rank]))
                    bases.append(self.address if rank == group.rank else _address(others[-1]))
            except (OSError, ValueError) as error:
                failed = f"rank {rank}'s region cannot be mapped: {error}"
            _agree(group, failed)
            # from here on all peers have it open: the name may go
            try:
                self._number = _add(group, bases, self.bytes)
            except CollectiveError as error:
                failed = error.message
            _agree(group, failed)
        except BaseException:
            self.release()
            raise
        # the core reads peers' memory until it is told otherwise, so the group holds it
        group.regions.add(self)
        return self

    def unmap(self) -> None:
        """The core does not know it any more."""
        self._is_released = True
        for mapped in self._others:
            _unmap(mapped)
        self._others.clear()
        if self._own is not None:
            _unmap(self._own)
            self._own = None


def allocate(group: Communicator, bytes_: int) -> Region:
    """See Communicator.allocate."""
    own: mmap.mmap | None = None
    words: dict[str, Any] = {}
    fd = -1
    failed = ""
    try:
        size = _checked(bytes_)
        is_file = group.shm_method is ShmMethod.FILE  # others reach no memfd of this rank
        found = shared_memory.huge(size) if group.huge_pages and not is_file else None
        if found is not None:
            fd = found
        else:
            fd, words = shared_memory.offer(ShmMethod.FILE if is_file else ShmMethod.MEMFD, size)
        own = _map(fd)
    except (OSError, ValueError) as error:
        failed = f"no region of {bytes_} bytes: {error}"
    region = Region(group, _address(own) if own is not None else 0, own, bytes_)
    try:
        return region.register(fd, str(words.get("path", "")), failed)
    finally:
        shared_memory.withdraw(words)
        shared_memory.close(fd)


def adopt(
    group: Communicator, address: int, bytes_: int, sends: bool
) -> Callable[[bool], None] | None:
    """See Communicator.adopt."""
    if group.shm_method is ShmMethod.FILE:  # others reach no memfd of this rank
        return None
    made = ctypes.c_void_p()
    with group.inside() as handle:
        code = group.library.mc_adopt(handle, address, bytes_, sends, ctypes.byref(made))
    return None if code else functools.partial(group.library.mc_adopted_end, made)


def _add(group: Communicator, bases: Sequence[int], bytes_: int) -> int:
    """The region's number; `bases[i]` is where local rank i's part is mapped here."""
    array = (ctypes.c_void_p * len(bases))(*bases)
    number = ctypes.c_uint32()
    with group.alone() as handle:
        code = group.library.mc_region_add(
            handle, ctypes.addressof(array), bytes_, ctypes.byref(number)
        )
    if code:
        raise group.error(Failure(abi.code_of(code)), f"registration of {bytes_} bytes")
    return number.value


def _exchange(
    group: Communicator, fd: int, bytes_: int, path: str, failed: str
) -> list[tuple[Any, ...]]:
    inode = device = 0
    if not failed:
        facts = os.fstat(fd)
        inode, device = facts.st_ino, facts.st_dev
    mine = _OFFER.pack(max(bytes_, 0), os.getpid(), fd, inode, device, not failed, path.encode())
    out = bytearray(_OFFER.size * group.size)
    group.all_gather(out, bytearray(mine))
    offers = [_OFFER.unpack_from(out, rank * _OFFER.size) for rank in range(group.size)]
    guilty = [rank for rank, offer in enumerate(offers) if not offer[5]]
    if guilty:
        raise _refused(group, guilty, failed)
    different = [rank for rank, offer in enumerate(offers) if offer[0] != offers[0][0]]
    if different:
        raise _refused(
            group, different,
            f"it asked for {offers[different[0]][0]} bytes and rank 0 for {offers[0][0]}",
        )  # fmt: skip
    return offers


def _agree(group: Communicator, failed: str) -> None:
    """Raises on all ranks if one has failed."""
    out = bytearray(group.size)
    group.all_gather(out, bytearray([not failed]))
    guilty = [rank for rank, is_well in enumerate(out) if not is_well]
    if guilty:
        raise _refused(group, guilty, failed)


def _refused(group: Communicator, guilty: Sequence[int], why: str) -> ResourceError:
    who = ", ".join(str(rank) for rank in guilty)
    fix = "use ordinary memory, or ask for less" if why else "do what its message says"
    if any(os.strerror(code) in why for code in NO_DESCRIPTOR):
        fix = DESCRIPTORS_FIX
    return ResourceError(
        f"group {group.name!r}, rank {group.rank} of {group.size}: registered memory is refused by "
        f"rank {who}: {why or 'its own message says why'}",
        f"{fix}; the group still works",
        group=group.name, rank=group.rank, ranks=guilty, code=Code.EMEM,
    )  # fmt: skip


def _map_of(offer: tuple[Any, ...]) -> mmap.mmap:
    bytes_, pid, number, inode, device, _, path = offer
    name = path.rstrip(b"\0").decode()
    words = f"/proc/{pid}/fd/{number}" if not name else shared_memory.checked_path(name)
    fd = os.open(words, os.O_RDWR | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if (facts.st_ino, facts.st_dev) != (inode, device):
            raise ValueError("it is another file")
        if facts.st_size < bytes_:
            raise ValueError("it is shorter than it should be")
        return _map(fd)
    finally:
        os.close(fd)


def _map(fd: int) -> mmap.mmap:
    # All of it, a page more than was asked for: sums of regions that lie a power of two apart take
    # a third longer, and regions are mapped one beside the other.
    whole = os.fstat(fd).st_size
    mapped = mmap.mmap(fd, whole, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with suppress(OSError, AttributeError, ValueError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _unmap(mapped: mmap.mmap) -> None:
    with suppress(BufferError):  # a view is in use: the memory goes with the last one
        mapped.close()


def _address(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def _checked(bytes_: int) -> int:
    if not 0 < bytes_ <= _MAX_BYTES:
        raise ValueError(f"{bytes_} bytes are no size of a region")
    return bytes_
