"""Where ranks leave words for each other before a group exists.

`Store` is all that a group needs, so that torch's stores fit as well as ours (rendezvous.py).
"""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """A key-value store that the ranks of a job share."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits until the key is there. Raises TimeoutError (or a subclass, or RuntimeError as
        torch's stores do) after `timeout_s`."""


class PrefixStore:
    """The keys of one group."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def set(self, key: str, value: bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, timeout_s: float) -> bytes:
        return self._store.get(f"{self._prefix}/{key}", timeout_s)


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
