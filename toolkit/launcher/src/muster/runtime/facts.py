"""Facts of the run, for scripts: who takes part, which attempt it is, when it will be ended.

`train` writes them into the file that RUN_FACTS names, before the ranks start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from muster.types.environment import RUN_FACTS
from muster.types.files import read_object
from muster.types.values import NamedTuple

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")


class RunFacts(NamedTuple):
    """What is known of the run; None, and () for the hosts, where it is not.

    `job`: its name. `host`: this one's; `hosts`: all, the same everywhere. `attempt`: 1 for the
    first start of the job, more after a spot interruption, where the platform says so; `spot`:
    whether it runs on spot capacity. `deadline`: when the platform ends the job at the latest,
    seconds since the epoch, as `time.time()`. `rank`, `local_rank`: this process's;
    `world_size`: ranks of the job's distribution.
    """

    job: str | None = None
    host: str | None = None
    hosts: tuple[str, ...] = ()
    attempt: int | None = None
    spot: bool | None = None
    deadline: float | None = None
    world_size: int | None = None
    rank: int | None = None
    local_rank: int | None = None


def facts() -> RunFacts:
    """The facts of this process's run. Without a job, what variables such as RANK say, else None.

    Never raises. The file is read once.
    """
    found = document()
    hosts = _of(found, "hosts", list)
    rank, local_rank = place(found)
    world_size = _number(_WORLD_SIZE)
    return RunFacts(
        job=_of(found, "job", str) or None,
        host=_of(found, "host", str),
        hosts=tuple(filter(lambda one: isinstance(one, str), hosts or ())),
        attempt=_of(found, "attempt", int),
        spot=_of(found, "spot", bool),
        deadline=_of(found, "deadline", float),
        world_size=_of(found, "world_size", int) if world_size is None else world_size,
        rank=rank,
        local_rank=local_rank,
    )


def document() -> Mapping[str, Any]:
    """The file's content; {} where there is none, or none that can be read."""
    path = os.environ.get(RUN_FACTS)
    try:
        return _read(path) if path else {}
    except OSError:  # no descriptor is left, not even to import what reads JSON
        return {}


def place(found: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """This process's rank and local rank: what its launcher's variables say (a script may have
    started another one), else its place among the ranks of its host."""
    rank, local_rank = _number(_RANK), _number(_LOCAL_RANK)
    ranks = _of(found, "ranks", list) or []
    if local_rank is None and len(ranks) == 1:
        local_rank = 0
    if rank is None and local_rank is not None and local_rank < len(ranks):
        rank = ranks[local_rank] if isinstance(ranks[local_rank], int) else None
    return rank, local_rank


@lru_cache(maxsize=4)
def _read(path: str) -> Mapping[str, Any]:
    return read_object(path)


def _of(found: Mapping[str, Any], key: str, kind: type) -> Any:
    value = found.get(key)
    return value if type(value) is kind else None


def _number(names: tuple[str, ...]) -> int | None:
    texts = (os.environ.get(name, "") for name in names)
    return next((int(t) for t in texts if t.isascii() and t.isdecimal() and len(t) < 10), None)
