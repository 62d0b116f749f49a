"""A rank whose last fellow calls something else, case after case, each in a group of its own."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from muster_collectives.core import CollectiveError, Communicator, DType, Op, Verb
from tests.collectives.support.meeting import Meeting

# what most ranks call, and what the last one calls instead: verb, dtype, op, count, root
LIMIT_S = 10.0
USUAL = (Verb.ALL_REDUCE, DType.F32, Op.SUM, 1000, 0)
CASES: dict[str, tuple[tuple[Verb, DType, Op, int, int], tuple[Verb, DType, Op, int, int]]] = {
    "verb": (USUAL, (Verb.ALL_GATHER, DType.F32, Op.SUM, 1000, 0)),
    "operation": (USUAL, (Verb.ALL_REDUCE, DType.F32, Op.MAX, 1000, 0)),
    "size": (USUAL, (Verb.ALL_REDUCE, DType.F32, Op.SUM, 999, 0)),
    "large size": (
        (Verb.ALL_REDUCE, DType.F32, Op.SUM, 1 << 20, 0),
        (Verb.ALL_REDUCE, DType.F32, Op.SUM, 1 << 10, 0),
    ),
    "type": (USUAL, (Verb.ALL_REDUCE, DType.I32, Op.SUM, 1000, 0)),
    "root": (
        (Verb.BROADCAST, DType.F32, Op.SUM, 1000, 0),
        (Verb.BROADCAST, DType.F32, Op.SUM, 1000, 1),
    ),
    "scatter against gather": (
        (Verb.SCATTER, DType.F32, Op.SUM, 1000, 0),
        (Verb.GATHER, DType.F32, Op.SUM, 1000, 0),
    ),
    "barrier": (USUAL, (Verb.BARRIER, DType.U8, Op.SUM, 0, 0)),
}


def main(warm: int) -> None:
    meeting = Meeting()
    said: dict[str, Any] = {}
    for number, (name, (usual, odd)) in enumerate(CASES.items()):
        comm = meeting.world(f"case-{number}")
        for _ in range(warm):
            _call(comm, *USUAL)
        said[name] = _told(comm, *(odd if meeting.rank == meeting.size - 1 else usual))
        if not said[name]["kind"]:  # verbs with a root may end before all have come: then the next
            said[name] = {**_told(comm, *USUAL), "late": True}
        comm.close()
    comm = meeting.world("after")
    _call(comm, *USUAL)
    comm.close()
    meeting.say(cases=said)


def _told(comm: Communicator, verb: Verb, dtype: DType, op: Op, count: int, root: int) -> Any:
    try:
        changed = _call(comm, verb, dtype, op, count, root)
    except CollectiveError as error:
        return {"kind": type(error).__name__, "text": str(error), "ranks": list(error.ranks)}
    return {"kind": "", "text": "", "ranks": [], "changed": changed}


def _call(
    comm: Communicator, verb: Verb, dtype: DType, op: Op, count: int, root: int
) -> bool:  # fmt: skip
    """Whether the result was written. Raises AssertionError when a call that failed has changed its
    input, or has put into the result what came from another rank of the node."""
    mine = 10 + comm.rank
    data = np.full(count * comm.size * 4 + 8, mine, np.uint8)
    out = np.full(count * comm.size * 4 + 8, 5, np.uint8)
    try:
        comm.run(
            verb, source=int(data.ctypes.data), target=int(out.ctypes.data), count=count,
            dtype=dtype, op=op, root=root, timeout_s=LIMIT_S,
        )  # fmt: skip
    except CollectiveError:
        # between nodes the legs inside the nodes come first
        alone = len(set(comm.nodes)) > 1 or bool(np.isin(out, (5, mine)).all())
        if (data != mine).any() or not alone:
            raise AssertionError("data moved in a call that differs between ranks") from None
        raise
    return bool((out != 5).any())


if __name__ == "__main__":
    main(int(sys.argv[1]))
