"""From a failure of the core to the error that a person reads (pure)."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from muster_collectives.runtime.errors import OF_CODE, CollectiveError
from muster_collectives.runtime.types import Code, Failure, RankStatus, Record

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
DESCRIPTORS_FIX = (
    "give the process more open files (`ulimit -n`; of a container `--ulimit nofile=65536`), or "
    "close groups that are no longer used"
)
_SHOWN_RANKS = 16
_SHOWN_RECORDS = 4

_FIXES = {
    Code.EINVAL: "look at the arguments of this call; the group still works",
    Code.ETIMEOUT: "see what the named ranks do instead of this operation: every rank must make "
    "the same calls in the same order; if they are only slow, give a longer timeout",
    Code.EPEER: "look at the output of the named rank first: it ended before the others were done",
    Code.EMISMATCH: "make the same call with the same size, type and root on every rank",
    Code.EABORT: "make the group again, or end; this rank did as it was told",
    Code.ENET: "see that the ranks' hosts reach each other (COLLECTIVES_INTERFACE says over what)",
    Code.ECHECK: "the network or a host's memory changes bytes: take the named rank's host out",
    Code.EMEM: "give the job more memory, or use smaller buffers",
    Code.ESYS: "the reason above is the system's; limits of descriptors, threads and memory are "
    "the usual cause (ulimit -a)",
    Code.EFORK: "make a group of its own in the child, or start it with spawn instead of fork",
    Code.ECLOSED: "make the group again before using it",
}


def error_of(
    failure: Failure,
    group: str,
    rank: int,
    size: int,
    records: Sequence[Record] = (),
    call: str = "",
) -> CollectiveError:
    """The exception for `failure`: which group, rank, operation, what happened, the fix.

    `call` says in words what was called where `failure.mine` cannot: sends and receives.
    """
    operation = failure.mine.seq if failure.mine and not call else 0
    where = f"group {group!r}, rank {rank} of {size}"
    if operation:
        where += f", operation {operation}"
    if call or failure.mine:
        where += f", {call or failure.mine}"
    kind = OF_CODE.get(failure.code, CollectiveError)
    last = "; ".join(str(record) for record in records[-_SHOWN_RECORDS:])
    return kind(
        f"{where}: {_what(failure, rank)}",
        _fix(failure),
        group=group,
        rank=rank,
        ranks=guilty(failure),
        code=failure.code,
        operation=operation,
        last=last,
    )


def _fix(failure: Failure) -> str:
    if failure.sys_errno in NO_DESCRIPTOR:
        return DESCRIPTORS_FIX
    return _FIXES.get(failure.code, "")


def guilty(failure: Failure) -> tuple[int, ...]:
    """The ranks that the failure names."""
    kinds = {
        Code.ETIMEOUT: (RankStatus.MISSING,),
        Code.EPEER: (RankStatus.DEAD, RankStatus.LEFT),
        Code.EMISMATCH: (RankStatus.DIFFERENT,),
        Code.ENET: (RankStatus.DEAD, RankStatus.LEFT, RankStatus.MISSING),
        Code.ECHECK: (RankStatus.DIFFERENT,),
    }.get(failure.code, ())
    named = tuple(rank for rank, mark in enumerate(failure.rank_status) if mark in kinds)
    if not named and failure.rank >= 0:
        return (failure.rank,)
    return named


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 1 and 3`, `ranks 0, 1, 2 and 40 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:_SHOWN_RANKS]]
    if len(ranks) > _SHOWN_RANKS:
        return f"ranks {', '.join(shown)} and {len(ranks) - _SHOWN_RANKS} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _differs(failure: Failure, rank: int, named: tuple[int, ...]) -> str:
    """`named`: who called something else, as far as it is known."""
    who = ranks_text(named) if named else "another rank"
    if failure.other is None or str(failure.mine) != str(failure.other):
        return f"{who} called {_other(failure)}"
    if failure.reported_by in (-1, *named):  # uneven parts: lengths are no part of what is told
        other = who if named and rank not in named else "another rank"
        return f"{other} has parts of other lengths for this rank, in {failure.other}"
    # this rank agrees with the one that is named: the finder is the one that differs
    return (f"rank {failure.reported_by} called something else than {who}, which called "
            f"{failure.other} as this rank did")  # fmt: skip


def _what(failure: Failure, rank: int) -> str:
    named = guilty(failure)
    if failure.code is Code.EMISMATCH and rank in named:
        # seen from the rank that differs it is the finder whose call is the other one
        named = (failure.reported_by,) if failure.reported_by >= 0 else ()
    told = f" (found by rank {failure.reported_by})" if failure.reported_by >= 0 else ""
    after = f", after {failure.waited_s:.2f} s{told}"
    who = ranks_text(named) if named else "another rank"
    if failure.code is Code.ETIMEOUT:
        return f"{who} {'has' if len(named) < 2 else 'have'} not come{_given_up(failure)}{after}"
    if failure.code is Code.EPEER:
        return f"{who} {_gone(failure, named)}{after}"
    if failure.code is Code.EMISMATCH:
        return _differs(failure, rank, named) + told
    if failure.code is Code.EABORT:
        by = f"by {who}" if named else "here or on another rank"
        return f"aborted {by}{after}"
    if failure.code is Code.ENET:
        to = f" with {who}" if named else ""
        return f"the connection{to} failed{_system(failure)}{after}"
    if failure.code is Code.ECHECK:
        return f"what {who} sent arrived changed: the checksum is wrong{after}"
    own = _OWN.get(failure.code, f"failed with code {int(failure.code)}")
    if failure.code is Code.ESYS and failure.sys_errno in NO_DESCRIPTOR:
        own = f"{who if named else 'this process'} has no descriptor left"
    return own + _system(failure)


_OWN = {
    Code.EINVAL: "the call is wrong: a type or operation that does not go together, a root outside "
    "of the group, overlapping buffers, or sizes that do not fit",
    Code.EMEM: "no memory",
    Code.ESYS: "a system call failed",
    Code.EFORK: "this process is a child of the one that made the group",
    Code.ECLOSED: "the group is closed",
}


def _given_up(failure: Failure) -> str:
    """Where the finder was in a later call than this rank."""
    other = failure.other
    return f" to operation {other.seq}, {other}" if other is not None and other.seq else ""


def _gone(failure: Failure, named: Sequence[int]) -> str:
    many = len(named) > 1
    left = {rank for rank, mark in enumerate(failure.rank_status) if mark is RankStatus.LEFT}
    if named and left.issuperset(named):
        return "have left the group" if many else "has left the group"
    return "are dead" if many else "is dead"


def _other(failure: Failure) -> str:
    mine, other = failure.mine, failure.other
    if other is None or mine is None:
        return "something else"
    number = "" if mine.seq == other.seq else f" as operation {other.seq}"
    return f"{other}{number}, this rank {mine}"


def _system(failure: Failure) -> str:
    return f" ({os.strerror(failure.sys_errno)})" if failure.sys_errno else ""
