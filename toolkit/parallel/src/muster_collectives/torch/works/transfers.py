"""Sends and receives of CPU tensors. The core reads and writes their memory by itself until a
transfer is over, so it is kept until then, even if the work itself is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from muster_collectives.binding.communicator import Communicator
from muster_collectives.binding.requests import Request
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.torch.ops.lowered import plain
from muster_collectives.torch.works.follower import Follower
from muster_collectives.torch.works.work import P2PWork

__all__ = ["Transfers"]

_TAGS = 0xFFFFFFFF
_SWEEP = 64  # so many at least before all are looked at


class Transfers:
    """The sends and receives of one group that are under way."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._follower = Follower(communicator.ends)
        self._kept: dict[int, P2PWork] = {}
        self._posting: dict[object, torch.Tensor] = {}
        self._sweep_at = _SWEEP
        self._changing = threading.Lock()  # sends and receives may come from any thread

    def send(self, tensor: Any, peer: int, tag: int, timeout_s: float) -> P2PWork:
        """Raises TypeError for a tensor that is not dense."""
        dense = _dense(tensor).contiguous().resolve_conj().resolve_neg()
        return self._post(self._communicator.post_send, dense, dense, False, peer, tag, timeout_s)

    def receive(self, tensor: Any, peer: int | None, tag: int, timeout_s: float) -> P2PWork:
        """From any rank without a `peer`. Raises TypeError for a tensor that is not dense."""
        dense = _dense(tensor)
        is_direct = dense.is_contiguous() and not dense.is_conj() and not dense.is_neg()
        staged = dense if is_direct else torch.empty(dense.shape, dtype=dense.dtype)
        return self._post(self._communicator.post_recv, dense, staged, True, peer, tag, timeout_s)

    def _post(
        self, post: Callable[..., Request], tensor: torch.Tensor, staged: torch.Tensor,
        is_receive: bool, peer: int | None, tag: int, timeout_s: float,
    ) -> P2PWork:  # fmt: skip
        length, place = staged.numel() * staged.element_size(), object()
        self._posting[place] = staged  # stays there where a signal handler raises before it is kept
        try:
            request = post(staged.data_ptr(), length, peer, tag & _TAGS, timeout_s)
        except CollectiveError:
            del self._posting[place]
            raise
        expects = length if is_receive else None
        work = P2PWork(request, tensor, staged, expects, self._drop, self._follower)
        with self._changing:
            self._let_go()
            if is_receive or not request.done():
                self._kept[id(work)] = work
        del self._posting[place]
        return work

    def clear(self) -> None:
        """After the core's group has ended: nobody reads or writes any more."""
        with self._changing:
            self._kept.clear()
            self._posting.clear()

    def _let_go(self) -> None:
        """Under the lock. What nobody waits for ends in about the order of its beginning."""
        while self._kept:
            first = next(iter(self._kept))
            if not self._kept[first].has_ended():
                break
            del self._kept[first]
        if len(self._kept) >= self._sweep_at:
            self._kept = {key: each for key, each in self._kept.items() if not each.has_ended()}
            self._sweep_at = max(_SWEEP, 2 * len(self._kept))

    def _drop(self, work: P2PWork) -> None:
        with self._changing:
            self._kept.pop(id(work), None)


def _dense(tensor: Any) -> torch.Tensor:
    found = plain(tensor)
    if found is None:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be sent or received")
    return found
