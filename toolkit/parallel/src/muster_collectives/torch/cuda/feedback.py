"""What int8 rounded away of a tensor, for the next sum of that tensor."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Feedback:
    """Rounding errors that are added to the next call. By the place in a storage, for as long as
    that storage lives.

    Two buckets of one length have errors of their own, and memory that is given away and comes back
    as another tensor begins with none: the weak reference keeps the storage's identity, not its
    memory. A tensor that is made anew for every call has no use of it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[StorageWeakRef, int, int], Tensor] = {}

    def of(self, tensor: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """The error of this contiguous tensor; `make` makes that of one not seen before."""
        storage = StorageWeakRef(tensor.untyped_storage())
        key = (storage, tensor.storage_offset(), tensor.numel())
        found = self._kept.get(key)
        if found is None:
            # 4 bytes for each value of a shard: those of tensors that are gone go first
            self._kept = {key: kept for key, kept in self._kept.items() if not key[0].expired()}
            found = self._kept[key] = make()
        return found

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        self._kept.clear()
