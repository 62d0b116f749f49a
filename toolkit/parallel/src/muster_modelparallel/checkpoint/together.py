"""What all ranks do as one: it works on all of them or is an error on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from muster_modelparallel.errors import CheckpointError, ExchangeError
from muster_modelparallel.run import objects
from muster_modelparallel.run.session import current

T = TypeVar("T")
_ROUNDS = 4  # in the time that ranks wait for each other, of those that are still at work


def together(act: Callable[[], T], what: str) -> list[T]:
    """What `act` returns on each rank, by rank. Raises CheckpointError on all ranks when it raises
    on any, with the text of the first that did; where it did, what it raised is the cause."""
    return at_length(lambda _: act(), what)


def at_length(act: Callable[[Callable[[], None]], T], what: str) -> list[T]:
    """As `together`, of an act that may take longer than ranks wait for each other: it calls what
    it is given whenever it has got further, and so the others know that it has."""
    pause_s = current().mesh.objects_timeout_s / _ROUNDS
    said_at = time.monotonic()

    def get_further() -> None:
        nonlocal said_at
        if time.monotonic() - said_at > pause_s:
            objects.allgather(None, objects.CommGroup.WORLD)
            said_at = time.monotonic()

    result: T | None = None
    failed: Exception | None = None
    try:
        result = act(get_further)
    except ExchangeError:
        raise
    except Exception as error:  # whatever it is, the others must not wait for this rank
        failed = error
    text = "" if failed is None else str(failed) or type(failed).__name__
    said: list[tuple[str, T] | None] = [None]
    while None in said:
        said = objects.allgather((text, result), objects.CommGroup.WORLD)
    ended = [each for each in said if each is not None]
    for rank, (why, _) in enumerate(ended):
        if why:
            raise CheckpointError(f"{what}: rank {rank}: {why}") from failed
    return [one for _, one in ended]
