"""Streams on which the legs of a call run side by side. On processors all legs run in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class SideStream:
    """A side stream of one device; the caller's stream never waits for the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def on(self) -> Iterator[None]:
        """What is issued inside runs in this lane."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def follow(self, other: SideStream | None = None) -> None:
        """What is issued from now on runs after what is in the other lane (none: the caller's)."""
        if self._stream is None:
            return
        first = other._stream if other is not None else torch.cuda.current_stream(self.device)
        self._stream.wait_stream(first)

    def uses(self, tensors: Iterable[Tensor]) -> None:
        """Memory of the caller's is not given away while this lane works on it."""
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(self._stream)

    def mark(self) -> Any:
        """An event at this point of the lane; None on a processor."""
        if self._stream is None:
            return None
        return self._stream.record_event()


class SideStreams:
    """Three lanes of a device, made at first use: into the node, between nodes, out of the node."""

    def __init__(self, device: torch.device) -> None:
        self.near, self.far, self.out = SideStream(device), SideStream(device), SideStream(device)

    def begin(self, tensors: Iterable[Tensor]) -> None:
        """Every lane starts after what the caller has issued so far."""
        held = list(tensors)
        for side_stream in (self.near, self.far, self.out):
            side_stream.follow()
            side_stream.uses(held)

    def end(self) -> SideStream:
        """A lane that is done when all are."""
        self.out.follow(self.near)
        self.out.follow(self.far)
        return self.out
