"""Who failed first, and what to call it: pure, over the evidence of all hosts."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from muster.run.base.evidence import frames
from muster.run.channel.messages import HostError, RankEnd
from muster.types.errors import HangError, PeerError
from muster.types.names import listed
from muster.types.outcome import (
    Failed,
    Outcome,
    RankFailure,
    Stopped,
    Succeeded,
    said_code,
    signal_name,
)
from muster.types.values import NamedTuple

NAMED_LIMIT = 3


class Loss(NamedTuple):
    """A host that went away. `at_s`: when it was last known to be there (leader's clock)."""

    host: str
    at_s: float
    why: str


def first_failure(failures: Sequence[RankFailure]) -> RankFailure | None:
    """The failure that began it: by evidence, victims and ranks that muster ended yielding.

    A rank that shows an error of its own comes before one that was signalled while its error was
    on the screen, and both before ranks that only lost a peer; then the earliest evidence wins.
    """
    return min(failures, key=_order, default=None)


def _order(failure: RankFailure) -> tuple[bool, bool, float]:
    return (failure.peer_lost, failure.signalled, failure.at_s)


def decide(
    failures: Sequence[RankFailure],
    losses: Sequence[Loss],
    errors: Sequence[HostError],
    stopped_by: str,
    ends: Sequence[tuple[str, RankEnd]],
    grace_s: float,
    outside: Collection[str] = frozenset(),
) -> Outcome:
    """The outcome of the job once nothing of it runs any more.

    `stopped_by`: who asked from outside, when that came before any failure. `ends`: every rank
    that ended, with its host. `grace_s`: what a stop from outside left them. `outside`: hosts that
    take no part in the distribution.
    """
    ended = [end for _, end in ends]
    first = first_failure(failures)
    loss = min(losses, key=lambda loss: loss.at_s, default=None)
    if loss is not None and (
        first is None or first.peer_lost or first.signalled or loss.at_s <= first.at_s
    ):
        return with_stopped(lost_host(loss), ended)
    if stopped_by:
        return Stopped(stopped_by, _forced_headline(ends, grace_s))
    host_error = min(errors, key=lambda one: one.victim, default=None)
    own_error = first is not None and not first.peer_lost
    if host_error is not None and not (host_error.victim and own_error):
        return with_stopped(from_host_error(host_error, len(errors) - 1), ended)
    if first is not None:
        inside = [one for one in ends if one[0] not in outside]
        return with_stopped(_from_rank(first, failures, inside), ended)
    idle = sum(end.stopped for end in ended)  # only the end of rank 0 is a reason to stop them
    if idle:
        ranks = "idle one" if idle == 1 else "idle ones"
        return Succeeded(headline=f"all ranks exited 0 but {idle} {ranks}, ended after rank 0")
    return Succeeded()


def with_stopped(outcome: Outcome, ends: Sequence[RankEnd]) -> Outcome:
    """The outcome of a failure with the number of those ranks that muster stopped."""
    if not isinstance(outcome, Failed):
        return outcome
    return outcome._replace(stopped_ranks=sum(end.stopped for end in ends))


def lost_host(loss: Loss) -> Failed:
    """The outcome when a host was lost."""
    return Failed(
        PeerError.exit_code,
        f"PeerError: lost {loss.host} ({loss.why})",
        f"look at the log and the failure reason of {loss.host}; retrying is useful when the "
        "machine or its network failed",
    )


def placed(host_error: HostError, host: str, hosts: int) -> HostError:
    """The error with the name of the host that had it first, where there are several."""
    if host_error.kind == HangError.__name__:  # of the whole job
        return host_error
    if hosts == 1 or re.search(rf"\b{re.escape(host)}\b", host_error.message):
        return host_error
    return host_error._replace(message=f"{host_error.message} (on {host})")


def from_host_error(host_error: HostError, others: int = 0) -> Failed:
    """The outcome of a failure that is not a rank's."""
    return Failed(
        host_error.exit_code,
        f"{host_error.kind}: {host_error.message}",
        host_error.fix,
        host_error.detail,
        also_failed=others,
    )


def _from_rank(
    first: RankFailure, failures: Sequence[RankFailure], ends: Sequence[tuple[str, RankEnd]]
) -> Failed:
    own = [f for f in failures if not f.peer_lost and not f.signalled]
    also = max(0, len(own) - 1) if first in own else 0
    first = _with_the_one_that_left(first, ends)
    code = exit_code(first)
    said = f"exit code {code}"
    if first.status != code and first.status >= 0:
        said = f"exit code {first.status} of the script, reported as {code}"
    what = first.note or first.summary or "it ended without an error message"
    if first.status < 0 and not first.note and not first.signalled:
        name = signal_name(-first.status)
        number = f"signal {-first.status}"
        killed = f"killed by {number}" + ("" if name == number else f" {name}")
        what = f"{what} [{name}]" if first.summary else killed
    headline = f"UserScriptError: {what} ({first.host} rank {first.rank}, {said})"
    if also:
        headline += f" and {also} more"
    return Failed(
        code,
        headline,
        first.fix or f"see the last lines of rank {first.rank}",
        first=first,
        also_failed=also,
    )


def _with_the_one_that_left(first: RankFailure, ends: Sequence[tuple[str, RankEnd]]) -> RankFailure:
    """The failure of a rank that only lost a peer, with the rank that had left it: one that ended
    with 0, by itself and before it."""
    lived_s = next((end.duration_s for _, end in ends if end.rank == first.rank), None)
    left = [
        (host, end)
        for host, end in ends
        if not (end.status or end.stopped) and lived_s is not None and end.duration_s <= lived_s
    ]
    if not first.peer_lost or not left:
        return first
    host, end = min(left, key=lambda one: one[1].duration_s)
    return first._replace(
        summary=f"rank {end.rank} on {host} exited with 0 after {end.duration_s:.1f} s while rank "
        f"{first.rank} {_was_in(first.tail)}",
        fix=f"find out why rank {end.rank} left earlier: all ranks must make the same calls "
        "(unequal data: DistributedSampler, DDP's join(); an early return or exit)",
    )


def _was_in(tail: str) -> str:
    """What the rank waited for, by the innermost call of torch.distributed in its traceback."""
    calls = [
        frame.function
        for frame in frames(tail)
        if frame.path.endswith("distributed/distributed_c10d.py")
    ]
    return f"was still in {calls[-1]}" if calls else "still waited for it"


def exit_code(failure: RankFailure) -> int:
    """The job's exit code for this failure: the script's own, unless muster alone says that one.

    100 to 106 and 143 become 1, as does a rank ended by a SIGTERM.
    """
    return 1 if failure.signalled else said_code(failure.status)


def _forced_headline(ends: Sequence[tuple[str, RankEnd]], grace_s: float) -> str:
    forced = [(host, end) for host, end in ends if end.forced]
    if not forced:
        return ""
    named = listed((f"{host} rank {end.rank}" for host, end in forced), NAMED_LIMIT)
    return (
        f"StoppedError: {len(forced)} of {len(ends)} ranks did not stop in {grace_s:g} s ({named})"
    )
