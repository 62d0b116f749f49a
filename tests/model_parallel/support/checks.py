"""Checks that all ranks of one job run one after the other, and what each came to.

In the script of the ranks: `give(said_by(CHECKS, begin, over))`; in the test: `failures(results)`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence


def said_by(
    checks: Iterable[Callable[[], None]],
    begin: Callable[[], object],
    end: Callable[[], object] = lambda: None,
) -> dict[str, str]:
    """By name, "" or the traceback of what a check raised. `begin` and `end` around each. One that
    raises is the last one: other ranks are in its midst, and wait for this one until it ends."""
    said = {}
    for check in checks:
        begin()
        try:
            check()
            said[check.__name__] = ""
        except Exception:
            said[check.__name__] = traceback.format_exc()
            print(said[check.__name__], file=sys.stderr, flush=True)
            break
        end()
    return said


def over() -> None:
    """Ends the session, once no rank is at work on it: the collectives of one that is would fail
    when another one hangs up."""
    import muster_modelparallel as smp
    from muster_modelparallel.run import session as sessions

    if sessions.is_initialized():
        smp.barrier()
        sessions.shutdown()


def failures(ranks: Sequence[Mapping[str, str]]) -> str:
    """What failed, by check and rank; "" where nothing did. Raises AssertionError without any."""
    assert ranks and ranks[0]
    return "\n".join(
        f"{name} on rank {rank}:\n{words}"
        for rank, said in enumerate(ranks)
        for name, words in said.items()
        if words
    )
