"""Where ranks leave words for each other before a group exists.

`Store` is all that a group needs. A store that can set and get many keys at once (`ManyStore`:
torch's, and ours, rendezvous.py) is asked once for what all ranks say, and not once for each rank.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

LAST_LOOK_S = 0.01  # for what is there already


class Store(Protocol):
    """A key-value store that the ranks of a job share."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits until the key is there. Raises TimeoutError after `timeout_s`."""


class ManyStore(Store, Protocol):
    """A store that answers for many keys at once."""

    def set_all(self, values: Mapping[str, bytes]) -> None: ...

    def get_all(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        """Waits until all are there, for `timeout_s` at most: those that are."""


class PrefixStore:
    """The keys of one group, in any store."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def set(self, key: str, value: bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, timeout_s: float) -> bytes:
        return self._store.get(f"{self._prefix}/{key}", timeout_s)

    def set_all(self, values: Mapping[str, bytes]) -> None:
        set_all(self._store, {f"{self._prefix}/{key}": value for key, value in values.items()})

    def get_all(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        found = get_all(self._store, [f"{self._prefix}/{key}" for key in keys], timeout_s)
        return {key.removeprefix(f"{self._prefix}/"): value for key, value in found.items()}


class LocalStore:
    """For a group of one rank, and for tests in one process: nothing is ever waited for."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str, timeout_s: float) -> bytes:
        if key not in self._values:
            raise TimeoutError(f"{key} is not there")
        return self._values[key]

    def close(self) -> None:
        """There is nothing to end."""


def set_all(store: Store, values: Mapping[str, bytes]) -> None:
    """In the order of `values`, where the store takes one key at a time."""
    at_once = getattr(store, "set_all", None)
    if at_once is not None:
        at_once(values)
        return
    for key, value in values.items():
        store.set(key, value)


def get_all(store: Store, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
    """As `ManyStore.get_all`, of any store."""
    at_once = getattr(store, "get_all", None)
    if at_once is not None:
        found: dict[str, bytes] = at_once(keys, timeout_s)
        return found
    end, found = time.monotonic() + timeout_s, {}
    for key in keys:
        with suppress(TimeoutError):
            found[key] = store.get(key, max(LAST_LOOK_S, end - time.monotonic()))
    return found
