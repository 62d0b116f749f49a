"""What a forward pass keeps for its backward pass, in the host's memory between the two.

Keys offload_activations, sm_activation_offloading and activation_loading_horizon; the mechanism is
torch's hooks for saved tensors. Copies run beside computing, on streams of their own.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from muster_modelparallel.errors import StepError

LEAST_BYTES = 1 << 16
"""Smaller tensors stay: a copy would cost more than their memory is worth."""
MOST_LEAVING = 3
"""Tensors that are on the GPU still while they are copied."""


class Offload:
    """Moves what passes save out of the memory of `device`, and back ahead of its use.

    horizon: how far ahead, in actions of a pipeline or in tensors of one pass. `offloaded_bytes`
    counts what has gone. Needs a GPU to be of use; on a CPU it copies from memory to memory.
    """

    def __init__(self, device: torch.device, horizon: int, least_bytes: int = LEAST_BYTES) -> None:
        self.horizon = horizon
        self.least_bytes = least_bytes
        self.offloaded_bytes = 0
        self.device = device
        self._leaving: deque[tuple[torch.Tensor, torch.cuda.Event, torch.cuda.Stream]] = deque()
        has_streams = device.type == "cuda"
        self.leaving = torch.cuda.Stream(device) if has_streams else None
        self.coming = torch.cuda.Stream(device) if has_streams else None

    def leave(self, tensor: torch.Tensor, left: torch.cuda.Event) -> None:
        """Keeps the tensor until it has been copied. Computing waits for the oldest of those that
        are being copied: without that it would take new memory, far ahead of the copies."""
        stream = torch.cuda.current_stream(self.device)
        self._leaving.append((tensor.detach(), left, stream))
        self.let_go(MOST_LEAVING)

    def let_go(self, but: int = 0) -> None:
        """Of the tensors that are being copied, but for so many."""
        while len(self._leaving) > but:
            _, oldest, stream = self._leaving.popleft()
            stream.wait_event(oldest)

    @contextmanager
    def saving(self, staying: Iterable[torch.Tensor], loads_ahead: bool) -> Iterator[SavedTensors]:
        """Inside, what a forward pass saves leaves, but for `staying` (parameters and others that
        are there anyhow) and views of them. loads_ahead: backward brings the next ones back with
        each that it uses; else `SavedTensors.load` does."""
        saved = SavedTensors(self, staying, loads_ahead)
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
            yield saved


class SavedTensors:
    """What one forward pass saved, in its order."""

    def __init__(
        self, offload: Offload, staying: Iterable[torch.Tensor], loads_ahead: bool
    ) -> None:
        self._offload = offload
        self._staying = {_storage(tensor) for tensor in staying}
        self._loads_ahead = loads_ahead
        # the graph keeps what it needs of them alive; what it has let go of needs no loading
        self._away: list[weakref.ref[_Away]] = []
        self._known: weakref.WeakValueDictionary[Any, _Away] = weakref.WeakValueDictionary()

    def load(self) -> None:
        """Begins to bring everything back."""
        for each in self._away:
            if (away := each()) is not None:
                away.load()

    def pack(self, tensor: torch.Tensor) -> Any:
        """The tensor with its version where it stays; what stands for it where it leaves."""
        if not self._leaves(tensor):
            # without its graph: an output that its own node holds would never be freed
            return tensor if tensor.is_leaf else tensor.detach(), tensor._version
        # several operations may save one tensor; one that is gone may have had its memory
        key = (
            tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor._version,
        )  # fmt: skip
        away = self._known.get(key)
        if away is None or away.source.expired():
            away = self._known[key] = _Away(self._offload, tensor, len(self._away))
            self._away.append(weakref.ref(away))
        return away

    def unpack(self, packed: Any) -> Any:
        """The tensor; those that backward is likely to use next are on their way then. Raises
        StepError for one that was changed meanwhile, of which torch's own check does not know."""
        if not isinstance(packed, _Away):
            tensor, version = packed
            if tensor._version != version:
                raise StepError(
                    f"a tensor of shape {tuple(tensor.shape)} that backward needs was changed in "
                    f"place after the forward pass (version {tensor._version}, saved {version})",
                    "make a new tensor: x = x * 2 in place of x *= 2",
                )
            return tensor
        found = packed.take()
        if self._loads_ahead:
            first = max(0, packed.place - self._offload.horizon)
            for each in reversed(self._away[first : packed.place]):
                if (away := each()) is not None:
                    away.load()
        return found

    def _leaves(self, tensor: torch.Tensor) -> bool:
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        if not is_plain or tensor.device != self._offload.device:
            return False
        whole_bytes = tensor.untyped_storage().nbytes()  # less than its own where it is expanded
        is_worth_it = self._offload.least_bytes <= tensor.nbytes <= whole_bytes
        return is_worth_it and _storage(tensor) not in self._staying


class _Away:
    """A tensor in the host's memory. `place`: its number in its pass, `source`: whose memory it
    left."""

    def __init__(self, offload: Offload, tensor: torch.Tensor, place: int) -> None:
        self.place = place
        self.source = StorageWeakRef(tensor.untyped_storage())
        self._offload = offload
        self._loaded: torch.Tensor | None = None  # on its way back, or there, and not used yet
        self._used: weakref.ref[torch.Tensor] | None = None
        self._event: Any = None
        self._stream: Any = None  # whose memory it has when it is back
        stream = offload.leaving
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=stream is not None)
        offload.offloaded_bytes += tensor.nbytes
        if stream is None:
            self._host.copy_(tensor.detach())
            return
        stream.wait_stream(torch.cuda.current_stream(offload.device))
        with torch.cuda.stream(stream):
            self._host.copy_(tensor.detach(), non_blocking=True)
            self._left = stream.record_event()
        offload.leave(tensor, self._left)

    def load(self) -> None:
        """Begins to bring it back. Its memory is of the stream that uses it."""
        if self._loaded is not None or (self._used is not None and self._used() is not None):
            return
        stream = self._offload.coming
        self._offload.let_go()
        self._loaded = torch.empty_like(self._host, device=self._offload.device)
        if stream is None:
            self._loaded.copy_(self._host)
            return
        self._stream = torch.cuda.current_stream(self._offload.device)
        stream.wait_stream(self._stream)
        stream.wait_event(self._left)
        with torch.cuda.stream(stream):
            self._loaded.copy_(self._host, non_blocking=True)
            self._event = stream.record_event()

    def take(self) -> torch.Tensor:
        """The tensor, for the current stream. It is kept as long as whoever takes it does."""
        used = self._used and self._used()
        if used is not None:
            return used
        self.load()
        found, self._loaded = self._loaded, None
        assert found is not None
        if self._event is not None:
            stream = torch.cuda.current_stream(self._offload.device)
            stream.wait_event(self._event)
            if stream != self._stream:
                found.record_stream(stream)
        self._used = weakref.ref(found)
        return found

    def __del__(self) -> None:
        """One that was loaded and never used: its memory is not given away amid the copy."""
        if self._loaded is not None and self._event is not None:
            self._stream.wait_event(self._event)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
