"""Tensors in registered memory: the ranks of a node work in each other's, nothing is staged.

Registering is collective: all ranks of a group do it together, at the same place between the same
calls, with the same sizes. Where it cannot be done (another backend, no shared memory) tensors are
ordinary and the same calls work, with the copies of the staged algorithms.
"""

from __future__ import annotations

import ctypes
import logging
import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from muster_collectives.binding.communicator import Communicator
from muster_collectives.binding.memory import Region
from muster_collectives.runtime.errors import ResourceError
from muster_collectives.torch.group import MusterProcessGroup

_LOG = logging.getLogger("muster_collectives")
_PAGE = 4096
LEAST_BYTES = 64 << 10  # of smaller tensors the copies do not matter


def registering(group: Any) -> Communicator | None:
    """The group's core, where it can register memory and another rank is there to gain from it."""
    if not isinstance(group, MusterProcessGroup) or group.size() < 2:
        return None
    return group.communicator


def allocate(group: Any, bytes_: int) -> Region | None:
    """Registered memory, zeroed. Collective. None on every rank where one of them cannot; raises
    what any call of a broken group raises."""
    core = registering(group)
    if core is None:
        return None
    with group.exclusive():
        try:
            return core.allocate(bytes_)
        except ResourceError as error:
            _refused(error, bytes_)
            return None


class RegisteredPool:
    """Places for tensors that come and go, such as those of FSDP.

    Of each size there are `slots` places, registered at the first requests of that size, until
    `limit_bytes` are; the requests are the same on all ranks, so the registering is. A request that
    finds no free place gets ordinary memory. After the group's end the memory
    is ordinary.
    """

    def __init__(
        self, group: Any, slots: int = 2, limit_bytes: int = 1 << 30, least_bytes: int = LEAST_BYTES
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}: 1 or more")
        self._group, self._slots = group, slots
        self._left_bytes, self._least_bytes = limit_bytes, least_bytes
        self._places: dict[int, list[_Place]] = {}
        self.registered = 0  # requests that got registered memory
        self.ordinary = 0

    def empty(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of any content; collective at the first requests of a size."""
        count = math.prod(int(each) for each in size)
        place = None
        if device.type == "cpu" and count * dtype.itemsize >= self._least_bytes:
            place = self._place(count * dtype.itemsize)
        if place is None:
            self.ordinary += 1
            return torch.empty(*size, dtype=dtype, device=device)
        self.registered += 1
        return place.lend(count, dtype).view(*size)

    def close(self) -> None:
        """Gives the memory back; collective. Raises RuntimeError while a tensor lies in it."""
        places = [place for each in self._places.values() for place in each]
        if any(place.lent for place in places):
            raise RuntimeError(
                "tensors still lie in registered memory: drop them before the pool is closed"
            )
        if registering(self._group) is not None:
            with self._group.exclusive():
                for place in places:
                    place.region.release()
        self._places.clear()

    def _place(self, bytes_: int) -> _Place | None:
        rounded = -(-bytes_ // _PAGE) * _PAGE
        places = self._places.setdefault(rounded, [])
        if len(places) < self._slots and self._left_bytes >= rounded:
            region = allocate(self._group, rounded)
            if region is None:
                self._left_bytes = 0  # on every rank
            else:
                self._left_bytes -= rounded
                places.append(_Place(region))
                return places[-1]
        for place in places:
            if not place.lent:
                places.remove(place)
                places.append(place)  # the one that rested longest comes first
                return place
        return None


class _Place:
    """A region that is lent to one tensor at a time."""

    def __init__(self, region: Region) -> None:
        self.region, self.lent = region, False
        self._view = region.view  # keeps the memory even when the group ends before the tensors

    def lend(self, count: int, dtype: torch.dtype) -> Tensor:
        # gone when the tensor and all views of it are
        lease = (ctypes.c_char * (count * dtype.itemsize)).from_buffer(self._view)
        self.lent = True
        weakref.finalize(lease, self._back).atexit = False
        return torch.frombuffer(lease, dtype=dtype, count=count)

    def _back(self) -> None:
        self.lent = False


def _refused(error: ResourceError, bytes_: int) -> None:
    _LOG.warning("%d bytes cannot be registered, they are staged instead: %s", bytes_, error)
