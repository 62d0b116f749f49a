"""Sends and receives of CPU tensors. The core reads and writes their memory by itself until a
transfer is over, so it is kept until then, whoever still holds the work."""

from __future__ import annotations

import threading
from typing import Any

import torch

from muster_collectives.core.communicator import Communicator
from muster_collectives.torch.follower import Follower
from muster_collectives.torch.plan import plain
from muster_collectives.torch.work import Posted

__all__ = ["Transfers"]

_TAGS = 0xFFFFFFFF
_SWEEP = 64  # so many at least before all are looked at


class Transfers:
    """Those of one group."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._follower = Follower(communicator.ends)
        self._kept: dict[int, Posted] = {}
        self._sweep_at = _SWEEP
        self._changing = threading.Lock()  # sends and receives may come from any thread

    def send(self, tensor: Any, peer: int, tag: int, timeout_s: float) -> Posted:
        """Raises TypeError for a tensor that is not dense."""
        dense = _dense(tensor).contiguous().resolve_conj().resolve_neg()
        length = dense.numel() * dense.element_size()
        request = self._communicator.post_send(
            dense.data_ptr(), length, peer, tag & _TAGS, timeout_s
        )
        work = Posted(request, dense, dense, None, self._drop, self._follower)
        return work if request.done() else self._keep(work)

    def receive(self, tensor: Any, peer: int | None, tag: int, timeout_s: float) -> Posted:
        """From any rank without a `peer`. Raises TypeError for a tensor that is not dense."""
        dense = _dense(tensor)
        is_direct = dense.is_contiguous() and not dense.is_conj() and not dense.is_neg()
        staged = dense if is_direct else torch.empty(dense.shape, dtype=dense.dtype)
        length = staged.numel() * staged.element_size()
        request = self._communicator.post_recv(
            staged.data_ptr(), length, peer, tag & _TAGS, timeout_s
        )
        return self._keep(Posted(request, dense, staged, length, self._drop, self._follower))

    def clear(self) -> None:
        """After the core's group has ended: nobody reads or writes any more."""
        with self._changing:
            self._kept.clear()

    def _keep(self, work: Posted) -> Posted:
        with self._changing:
            while self._kept:  # what nobody waits for ends in about the order of its beginning
                first = next(iter(self._kept))
                if not self._kept[first].has_ended():
                    break
                del self._kept[first]
            if len(self._kept) >= self._sweep_at:
                kept = self._kept.items()
                self._kept = {key: each for key, each in kept if not each.has_ended()}
                self._sweep_at = max(_SWEEP, 2 * len(self._kept))
            self._kept[id(work)] = work
        return work

    def _drop(self, work: Posted) -> None:
        with self._changing:
            self._kept.pop(id(work), None)


def _dense(tensor: Any) -> torch.Tensor:
    found = plain(tensor)
    if found is None:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be sent or received")
    return found
