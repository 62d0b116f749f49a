"""torch's store as the core wants it, and how the ranks of a group find each other in it.

A store may be older than the group: a job that destroys its groups and makes them again uses the
same names, and a name may come back with other members. What an earlier life has left in the store
must not be taken for an answer, so a group first agrees on a prefix that was never used (`meet`).
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster_collectives.runtime.errors import RendezvousError

_LOOK_S = 0.002
_LOOK_MOST_S = 0.1
_GRACE_S = 5.0


class TorchStore:
    """A torch store as a store of the bootstrap; keys begin with `prefix`."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def set(self, key: str, value: bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits for the value. Raises TimeoutError."""
        return _get(self._store, f"{self._prefix}/{key}", timeout_s)


def _get(store: Any, key: str, timeout_s: float) -> bytes:
    try:
        store.wait([key], timedelta(seconds=max(0.001, timeout_s)))
    except dist.DistStoreError as error:
        raise TimeoutError(f"{key} was not set within {timeout_s:.1f} s ({error})") from error
    return bytes(store.get(key))


def meet(
    store: Any, rank: int, size: int, name: str, word: str, timeout_s: float
) -> tuple[str, tuple[str, ...]]:
    """(a prefix that no other life of this group has, the words of all ranks).

    Every rank but 0 says hello with a number of its own and waits for the answer to that number;
    rank 0 answers each hello that it sees until a rank has come to the new prefix. So neither an
    old hello nor an old answer can mislead. Raises RendezvousError with the ranks that are missing.
    """
    end = time.monotonic() + timeout_s
    if rank == 0:
        life = secrets.token_hex(8)
        for other in range(1, size):
            try:
                _await(store, other, life, end)
            except TimeoutError as error:
                raise _missing(store, size, life, other, name) from error
        return life, _exchange(store, rank, size, f"{life}/word", word, end)
    number = secrets.token_hex(8)
    store.set(f"hello/{rank}", number)
    try:
        answer = f"answer/{rank}/{number}"
        life = _get(store, answer, end - time.monotonic()).decode()
        _forget(store, answer)
        return life, _exchange(store, rank, size, f"{life}/word", word, end)
    except TimeoutError as error:
        raise RendezvousError(
            f"group {name!r}, rank {rank} of {size}: not all ranks came to make the group, after "
            f"{timeout_s:.1f} s",
            "the error of rank 0 names who is missing; every member must make the group",
            group=name, rank=rank,
        ) from error  # fmt: skip


def _await(store: Any, other: int, life: str, end: float) -> None:
    """Until rank `other` has come to `life`. Raises TimeoutError."""
    answered, pause_s = "", _LOOK_S
    while True:
        left_s = end - time.monotonic()
        number = _get(store, f"hello/{other}", left_s).decode()  # the first is worth a wait
        if number != answered:
            store.set(f"answer/{other}/{number}", life)
            answered = number
        if store.check([f"{life}/word/{other}"]):
            return
        if left_s <= 0:
            raise TimeoutError(f"rank {other} said hello, and then nothing")
        time.sleep(min(pause_s, left_s))
        pause_s = min(_LOOK_MOST_S, pause_s * 1.5)


def _missing(store: Any, size: int, life: str, first: int, name: str) -> RendezvousError:
    ranks = [first]
    ranks += [other for other in range(first + 1, size) if not store.check([f"hello/{other}"])]
    return RendezvousError(
        f"group {name!r}, rank 0 of {size}: rank{'s' if len(ranks) > 1 else ''} "
        f"{', '.join(map(str, ranks))} did not come to make the group",
        "every member must make the group (init_process_group, new_group) in the same order",
        group=name, rank=0, ranks=ranks,
    )  # fmt: skip


def vote(
    store: Any, rank: int, size: int, life: str, word: str, timeout_s: float
) -> tuple[str, ...]:
    """The words of all ranks. Raises TimeoutError if one does not come: on ranks other than 0 a
    little later, so that what rank 0 says last is still heard."""
    end = time.monotonic() + timeout_s + (_GRACE_S if rank else 0.0)
    return _exchange(store, rank, size, f"{life}/vote", word, end)


def _exchange(
    store: Any, rank: int, size: int, prefix: str, word: str, end: float
) -> tuple[str, ...]:
    """The words of all ranks, which rank 0 gathers. Raises TimeoutError."""
    if rank:
        store.set(f"{prefix}/{rank}", word)
        found = json.loads(_get(store, f"{prefix}/all", end - time.monotonic()))
        return tuple(str(each) for each in found)
    words = [word]
    for other in range(1, size):
        key = f"{prefix}/{other}"
        words.append(_get(store, key, end - time.monotonic()).decode())
        _forget(store, key)
    store.set(f"{prefix}/all", json.dumps(words))
    return tuple(words)


def _forget(store: Any, key: str) -> None:
    with suppress(RuntimeError, AttributeError):  # not every store can
        store.delete_key(key)
