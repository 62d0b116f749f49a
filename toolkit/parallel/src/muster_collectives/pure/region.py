"""Registered memory where there is no core: ordinary memory with the same face."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from muster_collectives.runtime.buffers import memory_at
from muster_collectives.runtime.errors import ResourceError
from muster_collectives.runtime.types import Code

if TYPE_CHECKING:
    from muster_collectives.pure.communicator import PureCommunicator

_WORD_BYTES = 8
_MAX_BYTES = 1 << 46


class PureRegion:
    """`address` 0: memory of its own, zeroed; else memory of the caller."""

    def __init__(self, bytes_: int, address: int) -> None:
        self._memory = None if address else (ctypes.c_char * bytes_)()
        self.address = address if self._memory is None else ctypes.addressof(self._memory)
        self.bytes = bytes_

    @property
    def view(self) -> memoryview:
        if self._memory is not None:
            return memoryview(self._memory).cast("B")
        return memory_at(self.address, self.bytes)

    def release(self) -> None:
        """A view that is in use keeps the memory."""


def register(group: PureCommunicator, bytes_: int, address: int = 0) -> PureRegion:
    """Called and refused by all ranks together. Raises ResourceError on all."""
    region: PureRegion | None = None
    why = "its own message says why"
    try:
        if not 0 < bytes_ <= _MAX_BYTES:
            raise ValueError(f"{bytes_} bytes are no size of a region")
        region = PureRegion(bytes_, address)
    except (ValueError, MemoryError) as error:
        why = str(error) or "no memory"
    word = (bytes_ if region is not None else 0).to_bytes(_WORD_BYTES, "little")
    all_ = bytearray(_WORD_BYTES * group.size)
    group.all_gather(all_, bytearray(word))
    words = [
        int.from_bytes(all_[at : at + _WORD_BYTES], "little")
        for at in range(0, len(all_), _WORD_BYTES)
    ]
    guilty = [rank for rank, each in enumerate(words) if not each or each != max(words)]
    if region is None or guilty:
        raise ResourceError(
            f"group {group.name!r}, rank {group.rank} of {group.size}: registered memory is "
            f"refused by rank {', '.join(map(str, guilty))}: {why}",
            "ask for the same size on all ranks, or use ordinary memory; the group still works",
            group=group.name, rank=group.rank, ranks=guilty, code=Code.EMEM,
        )  # fmt: skip
    return region
