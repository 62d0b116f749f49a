"""How a job ended. Decided once, by the leader, and the same on every host."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Union

from muster.types.errors import RESERVED_EXIT_CODES, STOPPED_EXIT_CODE
from muster.types.values import NamedTuple


class RankFailure(NamedTuple):
    """One rank that did not end well.

    `status`: its exit code, or minus the signal that ended it. `at_s`: time of the evidence (its
    last traceback, else its end) on the leader's monotonic clock. `summary`: the exception of its
    last traceback, or how else it ended, or "". `tail`: the last lines of its error stream.
    `peer_lost`: the error is of the kind that a rank shows when another one went away first.
    `signalled`: it ended after a signal from muster, with an error on its screen from before that.
    """

    host: str
    rank: int
    status: int
    at_s: float
    summary: str
    tail: str
    peer_lost: bool = False
    signalled: bool = False
    log: str = ""
    note: str = ""  # e.g. "killed by the kernel: container memory limit 64 MiB reached"
    fix: str = ""  # "" when nothing better is known than its own lines


class Succeeded(NamedTuple):
    """All ranks ended well."""

    exit_code: int = 0
    headline: str = "all ranks exited 0"


class Failed(NamedTuple):
    """The job failed.

    `headline` is the first line of the failure file, the same on every host.
    """

    exit_code: int
    headline: str
    fix: str
    detail: str = ""
    first: RankFailure | None = None
    stopped_ranks: int = 0
    also_failed: int = 0


class Stopped(NamedTuple):
    """Stopped from outside. `headline` is "" when every rank left in time."""

    by: str
    headline: str = ""
    exit_code: int = STOPPED_EXIT_CODE


Outcome = Union[Succeeded, Failed, Stopped]  # noqa: UP007 - a runtime alias on 3.10


def outcome_to_json(outcome: Outcome) -> list[object]:
    """The outcome as a JSON list: its class name, then its fields."""
    return [type(outcome).__name__, *outcome]


def outcome_from_json(fields: Sequence[object]) -> Outcome:
    """The inverse of `outcome_to_json`. Raises ValueError for anything else."""
    name, *values = fields
    if name == "Succeeded":
        return Succeeded(*values)  # type: ignore[arg-type]
    if name == "Stopped":
        return Stopped(*values)  # type: ignore[arg-type]
    if name == "Failed":
        failed = Failed(*values)  # type: ignore[arg-type]
        first = failed.first
        return failed._replace(first=None if first is None else RankFailure(*first))
    raise ValueError(f"no outcome is called {name!r}")


def said_code(status: int) -> int:
    """The exit code for a status (minus the signal): never one that muster alone says, never 0."""
    code = status if status >= 0 else 128 - status
    return 1 if code in RESERVED_EXIT_CODES or code == 0 else code


def signal_name(number: int) -> str:
    """SIGSEGV for 11; real-time signals by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ended(status: int) -> str:
    """`exit 1`, or the name of the signal that minus `status` is."""
    return f"exit {status}" if status >= 0 else signal_name(-status)
