"""What all ranks do as one: it works on all of them or is an error on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.run import objects

T = TypeVar("T")


def together(act: Callable[[], T], what: str) -> list[T]:
    """What `act` returns on each rank, by rank. Raises CheckpointError on all ranks when it raises
    on any, with the text of the first that did; where it did, what it raised is the cause."""
    result: T | None = None
    failed: Exception | None = None
    try:
        result = act()
    except Exception as error:  # whatever it is, the others must not wait for this rank
        failed = error
    text = "" if failed is None else str(failed) or type(failed).__name__
    said = objects.allgather((text, result), objects.CommGroup.WORLD)
    for rank, (why, _) in enumerate(said):
        if why:
            raise CheckpointError(f"{what}: rank {rank}: {why}") from failed
    return [one for _, one in said]
