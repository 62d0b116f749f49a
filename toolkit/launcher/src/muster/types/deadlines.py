"""Every time limit of the launcher, with its default and its range. All in seconds, monotonic."""

from __future__ import annotations

from collections.abc import Mapping

from muster.types.errors import Problem
from muster.types.plain import short
from muster.types.values import NamedTuple


class Deadlines(NamedTuple):
    """The time limits of one run, in seconds."""

    join_s: float = 900.0
    stage_s: float = 3600.0
    start_s: float = 120.0
    heartbeat_s: float = 1.0
    lost_after_s: float = 30.0
    reconnect_s: float = 5.0
    report_ack_s: float = 1.0
    failfast_grace_s: float = 15.0
    stop_grace_s: float = 100.0
    stop_drain_s: float = 103.0  # the three below count from the stop, not from one another
    stop_verdict_s: float = 106.0
    stop_total_s: float = 110.0
    stop_hold_s: float = 0.0  # how long an end by a stop signal waits for a stop to be heard of
    drain_s: float = 5.0
    finish_s: float = 60.0
    leave_s: float = 5.0
    idle_s: float = 60.0  # how long a worker may do nothing once its chief has ended; 0: for ever
    stall_wait_s: float = 60.0  # in one collective, then a roll call; 0: none, as for the two below
    stall_idle_s: float = 300.0  # all ranks silent and idle, then a roll call
    stragglers_s: float = 60.0  # between two looks for ranks that hold up the others; 0: none
    hang_s: float = 0.0  # either of both, then the job ends
    refusal_notify_s: float = (
        60.0  # how long a leader with bad input waits to send the outcome to the others
    )

    @property
    def answer_s(self) -> float:
        """How long a heartbeat may go unanswered before another connection is tried, and how
        often one is tried from then on."""
        return min(1.0, self.heartbeat_s / 2)

    @property
    def quiet_after_s(self) -> float:
        """The silence after which another connection is tried."""
        return self.heartbeat_s + self.answer_s

    @property
    def warn_after_s(self) -> float:
        """The silence of a host that deserves a warning: 10 s by default (F28)."""
        return max(2 * self.heartbeat_s, self.lost_after_s / 3)


# Compose kills a container 10 s after SIGTERM.
LOCAL_MODE_STOP = {
    "stop_grace_s": 7.0,
    "stop_drain_s": 7.5,
    "stop_verdict_s": 8.2,
    "stop_total_s": 9.0,
}

# name -> smallest and largest value that a variable may set
RANGES: Mapping[str, tuple[float, float]] = {
    "join_s": (1, 86_400),
    "stage_s": (1, 604_800),
    "start_s": (1, 86_400),
    "heartbeat_s": (0.05, 60),
    "lost_after_s": (0.2, 3_600),
    "reconnect_s": (0.1, 600),
    "failfast_grace_s": (0, 3_600),
    "stop_grace_s": (0, 86_400),
    "stop_total_s": (1, 86_400),
    "stop_hold_s": (0, 60),
    "drain_s": (0, 600),
    "finish_s": (1, 3_600),
    "idle_s": (0, 86_400),
    "stall_wait_s": (0, 604_800),
    "stall_idle_s": (0, 604_800),
    "stragglers_s": (0, 604_800),
    "hang_s": (0, 604_800),
}


def variable(name: str) -> str:
    """The environment variable of a deadline: `join_s` -> `MUSTER_JOIN_S`."""
    return "MUSTER_" + name.upper()


def parse_deadlines(
    environ: Mapping[str, str], local_mode: bool
) -> tuple[Deadlines, tuple[Problem, ...]]:
    """The deadlines of this run and all that is wrong with the variables that change them.

    `local_mode`: the instance type begins with `local`, so the whole stop must fit in 10 s.
    A whole stop that is given has the default's proportions. A stop grace that is given moves
    the three times after it by the same amount, so that it is never above the whole stop. What is
    refused keeps its default, so that a host which joins only to say what is wrong has deadlines
    to do it by.
    """
    base = Deadlines()._replace(**LOCAL_MODE_STOP) if local_mode else Deadlines()
    values, problems = _given(environ)
    if "stop_total_s" in values:
        base = base._replace(**_stop_within(values.pop("stop_total_s")))
    result = base._replace(**values)
    moved = result.stop_grace_s - base.stop_grace_s
    result = result._replace(
        stop_drain_s=base.stop_drain_s + moved,
        stop_verdict_s=base.stop_verdict_s + moved,
        stop_total_s=base.stop_total_s + moved,
    )
    lost_after = variable("lost_after_s")
    beside = {problem.where for problem in problems} & {lost_after, variable("heartbeat_s")}
    if result.lost_after_s >= 2 * result.heartbeat_s:
        return result, tuple(problems)
    if not beside:  # else it may be right with the value that was meant
        what = f"{result.lost_after_s:g} s is under two heartbeats of {result.heartbeat_s:g} s"
        fix = f"set {lost_after} to at least {2 * result.heartbeat_s:g}"
        problems.append(Problem(lost_after, what, fix))
    pair = {"heartbeat_s": base.heartbeat_s, "lost_after_s": base.lost_after_s}
    return result._replace(**pair), tuple(problems)


def _stop_within(total_s: float) -> dict[str, float]:
    """The times of a stop that is over after `total_s`; the default's for 110 s."""
    rest_s = min(10.0, total_s / 5)
    return {
        "stop_grace_s": total_s - rest_s,
        "stop_drain_s": total_s - 0.7 * rest_s,
        "stop_verdict_s": total_s - 0.4 * rest_s,
        "stop_total_s": total_s,
    }


def _given(environ: Mapping[str, str]) -> tuple[dict[str, float], list[Problem]]:
    """The values inside their ranges, and a problem for each of the others."""
    values: dict[str, float] = {}
    problems: list[Problem] = []
    for name, (low, high) in RANGES.items():
        text = environ.get(variable(name))
        if text is None:
            continue
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if low <= value <= high:
            values[name] = value
            continue
        what = f"expected a number of seconds from {low:g} to {high:g}, got {short(text)}"
        fix = f"unset {variable(name)} or set it inside the range"
        problems.append(Problem(variable(name), what, fix))
    return values, problems
