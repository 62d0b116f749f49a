"""torch's store as a store of the bootstrap."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster_collectives.runtime.store import LAST_LOOK_S

_SHORT_S = 1.0  # a wait of less is one of many, by few ranks, and likely to end without its keys
_FIRST_PAUSE_S, _PAUSE = 0.001, 0.2  # between two looks; more by a share of what has been waited


class TorchStore:
    """Keys begin with `prefix`, where there is one. Raises RuntimeError where the store is gone."""

    def __init__(self, store: Any, prefix: str = "") -> None:
        self._store = dist.PrefixStore(prefix, store) if prefix else store
        self._is_at_once = bool(getattr(self._store, "has_extended_api", bool)())

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits for the value. Raises TimeoutError."""
        if not self._wait([key], timeout_s):
            raise TimeoutError(f"{key} was not set within {timeout_s:.1f} s")
        return bytes(self._store.get(key))

    def set_all(self, values: Mapping[str, bytes]) -> None:
        if self._is_at_once:
            self._store.multi_set(list(values), list(values.values()))
            return
        for key, value in values.items():
            self._store.set(key, value)

    def get_all(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        """Waits until all are there, for `timeout_s` at most: those that are."""
        here = list(keys)
        if timeout_s <= LAST_LOOK_S or (here and not self._wait(here, timeout_s)):
            here = self._there(here)
        if not here:
            return {}
        if self._is_at_once:
            values = self._store.multi_get(here)
        else:
            values = [self._store.get(key) for key in here]
        return {key: bytes(value) for key, value in zip(here, values, strict=True)}

    def _there(self, keys: list[str]) -> list[str]:
        """Those of them that are there: as a rule all but a few, so halves are asked for first."""
        if not keys or self._store.check(keys):
            return keys
        middle = len(keys) // 2
        return self._there(keys[:middle]) + self._there(keys[middle:]) if middle else []

    def _wait(self, keys: list[str], timeout_s: float) -> bool:
        """Whether they are there. Raises RuntimeError for a store that ends the wait itself.

        torch prints two warnings for each of its waits that ends without the keys: a short one is
        made of looks.
        """
        began = time.monotonic()
        if timeout_s < _SHORT_S:
            while not self._store.check(keys):
                waited_s = time.monotonic() - began
                if waited_s >= timeout_s:
                    return False
                pause_s = _FIRST_PAUSE_S + _PAUSE * waited_s
                time.sleep(min(pause_s, timeout_s - waited_s))
            return True
        try:
            self._store.wait(keys, timedelta(seconds=timeout_s))
        except RuntimeError as error:  # a FileStore has no name for its timeout
            # stores round their waits; what has hardly waited has not waited for the keys
            has_waited = time.monotonic() - began >= timeout_s / 2
            if isinstance(error, dist.DistNetworkError) or not has_waited:
                raise
            return False
        return True
