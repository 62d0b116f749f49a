"""What this rank's groups are in at this moment, for whoever looks at a job that stands still.

Muster's agent in a rank asks, on a thread of its own. Nothing here waits, or is kept waiting for.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from muster_collectives.runtime.types import DTYPE_NAMES, Verb

if TYPE_CHECKING:
    from muster_collectives.binding.core_group import CoreGroup

_ALL_WAIT = (
    Verb.BARRIER, Verb.ALL_REDUCE, Verb.ALL_GATHER, Verb.REDUCE_SCATTER, Verb.ALL_TO_ALL,
)  # fmt: skip
_ASKED = 128  # records, whatever is kept: the ranks go on meanwhile, and share the interpreter
groups: weakref.WeakSet[CoreGroup] = weakref.WeakSet()


def calls() -> list[dict[str, object]]:
    """A row for every group that has had a call: the one that runs, else the last one.

    `ranks` and `absent` are ranks of the world; `age_s` counts from the beginning of a call that
    runs, else from its end. Raises RuntimeError where groups are made at this very moment.
    """
    rows = (_row(group) for group in list(groups))
    return [row for row in rows if row is not None]


def arrivals() -> list[tuple[str, tuple[int, ...], list[tuple[int, float]]]]:
    """Of every group its name, its members as ranks of the world, and when this rank came to each
    of its last calls in which all wait for all: number, seconds of the monotonic clock. A call that
    runs is not in it."""
    found = []
    for group in list(groups):
        members, calls = group.world_ranks, []
        if len(members) != group.size or group.size < 2:
            continue
        for record in group.records(_ASKED):  # the newest may be an old one still
            if calls and record.what.seq <= calls[-1][0]:
                break
            if record.what.verb in _ALL_WAIT:
                calls.append((record.what.seq, record.began_s))
        found.append((group.name, members, calls))
    return found


def _row(group: CoreGroup) -> dict[str, object] | None:
    members = group.world_ranks
    now = group.now() if len(members) == group.size else None
    if now is None:
        return None
    what = now.what
    shape = "" if what.verb is Verb.BARRIER else f"{DTYPE_NAMES[what.dtype]}[{what.count}]"
    return {
        "library": "muster", "group": group.name, "ranks": list(members),
        "op": what.verb.name.lower(), "number": what.seq, "shape": shape,
        "running": now.running, "age_s": max(0.0, time.monotonic() - now.since_s),
        "absent": [members[rank] for rank in now.absent],
    }  # fmt: skip
