"""What happened, why, and what to do next: in words, from facts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from muster.report.cells import mapping, number, sequence, whole
from muster.report.values import PhaseSpan, RankRow
from muster.types.names import counted
from muster.types.plain import size_text
from muster.types.values import NamedTuple

PHASES = {"join": "joins", "stage": "stages code", "plan": "plans", "ready": "waits for hosts",
          "spawn": "starts ranks", "watch": "ranks run", "report": "reports", "stop": "stops ranks",
          "verdict": "agrees on the end", "leave": "leaves"}  # fmt: skip
STARTS = ("join", "stage", "plan", "ready", "spawn")
SLOW_START_S = 30.0
WORTH = 0.05  # of the whole run, to be said
_AT = re.compile(r'File "([^"\n]{1,300})", line (\d{1,9}), in (\S{1,100})')


class VerdictInput(NamedTuple):
    """What the verdict is made of. `stalls`: sentences; `odd`: metric and first step at which it
    was no finite number."""

    summary: Mapping[str, object]
    live: bool
    seconds: float | None
    hosts: int
    ranks: tuple[RankRow, ...]
    phases: tuple[PhaseSpan, ...]
    stalls: tuple[str, ...]
    odd: tuple[tuple[str, float], ...]


class FirstFailure(NamedTuple):
    """What failed first. `where`: file and line, or ""; `tail`: its last lines; `log`: the file."""

    host: str
    rank: int | None
    end: str
    summary: str
    where: str
    tail: str
    log: str


class RunVerdict(NamedTuple):
    """`level`: good, bad, warn. `why` and `next`: sentences."""

    level: str
    headline: str
    why: tuple[str, ...]
    next: tuple[str, ...]


def judge(facts: VerdictInput) -> tuple[RunVerdict, FirstFailure | None]:
    """The verdict, and the failure where there is one."""
    outcome = mapping(facts.summary.get("outcome"))
    result = str(outcome.get("result") or "")
    if facts.live:
        return _running(facts), None
    if not result or (facts.summary.get("complete") is False and result != "Stopped"):
        return _lost(facts, outcome), None
    if result == "Succeeded":
        return _succeeded(facts), None
    if result == "Stopped":
        return _stopped(facts, outcome), None
    failure = _failure(facts, outcome)
    return _failed(facts, outcome, failure), failure


def _size(facts: VerdictInput) -> str:
    took = "" if facts.seconds is None else f" after {duration(facts.seconds)}"
    ranks = f"{counted(len(facts.ranks), 'rank')} on " if facts.ranks else ""
    return f"{ranks}{counted(facts.hosts, 'host')}{took}"


def _succeeded(facts: VerdictInput) -> RunVerdict:
    """Verdict, why and next of a run that succeeded."""
    why = list(_where_time_went(facts))
    odd = list(_odd(facts))
    level = "warn" if odd else "good"
    todo = ["Look for what makes it so: rate, data, or precision."] if odd else ["Nothing to do."]
    if (start := _start_s(facts)) > max(SLOW_START_S, (facts.seconds or 0.0) / 2):
        todo = [f"The start took {duration(start)}: see the phases below."]
    return RunVerdict(level, f"The job succeeded: {_size(facts)}", (*odd, *why, *_stood(facts)),
                   tuple(todo))  # fmt: skip


def _stopped(facts: VerdictInput, outcome: Mapping[str, object]) -> RunVerdict:
    """Of a run that was stopped from outside: by whom, and what was left."""
    by = outcome.get("by") or mapping(facts.summary.get("local")).get("ended_by")
    who = f" by {by}" if isinstance(by, str) and by else ""
    why = [
        str(outcome.get("headline") or ""),
        *_stood(facts),
        *_odd(facts),
        *_where_time_went(facts),
    ]
    todo = ["Run it again, or give it more time, if that was not intended."]
    if facts.stalls:
        todo = ["Look at the rank that the sentence above names: the others waited for it."]
    return RunVerdict("warn", f"The job was stopped{who}: {_size(facts)}",
                   tuple(filter(None, why)), tuple(todo))  # fmt: skip


def _running(facts: VerdictInput) -> RunVerdict:
    """Of a run that still writes, or whose end is not known yet."""
    still = [one for one in facts.ranks if not one.end]
    why = [f"{counted(len(still), 'rank')} of {len(facts.ranks)} still running."]
    return RunVerdict("warn", f"The job is running: {_size(facts)}", (*why, *_stood(facts),
                   *_odd(facts)), ("Make the report again when it has ended.",))  # fmt: skip


def _lost(facts: VerdictInput, outcome: Mapping[str, object]) -> RunVerdict:
    """Of a run whose end nobody recorded."""
    why = []
    if headline := str(outcome.get("headline") or ""):
        why.append(f"{headline}.")
    last = {one.host: one.name for one in facts.phases}
    for name in dict.fromkeys(last.values()):
        hosts = [host for host, phase in last.items() if phase == name]
        some = hosts[0] if len(hosts) == 1 else counted(len(hosts), "host")
        why.append(f"The last that {some} recorded: {PHASES.get(name, name)}.")
    open_ = [one for one in facts.ranks if not one.end]
    if open_:
        why.append(f"The end of {counted(len(open_), 'rank')} is not recorded, first rank "
                   f"{open_[0].rank} on {open_[0].host}.")  # fmt: skip
    peak = max((one.peak_memory_bytes or 0.0 for one in facts.ranks), default=0.0)
    if peak:
        why.append(f"A rank held up to {size_text(peak)} of memory.")
    todo = ("Look whether the machine or container was killed from outside, or had no memory left "
            "(dmesg, the platform's log).",
            "Get the records of the other hosts, if this is not all of it.")  # fmt: skip
    took = "" if facts.seconds is None else f", last heard of after {duration(facts.seconds)}"
    what = f"How the job ended is not in the record: {_size(facts._replace(seconds=None))}{took}"
    return RunVerdict("bad", what,
                   (*why, *_stood(facts), *_odd(facts)), todo)  # fmt: skip


def _failed(
    facts: VerdictInput, outcome: Mapping[str, object], failure: FirstFailure | None
) -> RunVerdict:
    """Of a run that failed: its first failure, and what to do."""
    headline = str(outcome.get("headline") or "The job failed")
    why: list[str] = []
    if failure is not None and failure.rank is not None:
        what = failure.summary or failure.end
        headline = f"Rank {failure.rank} on {failure.host} failed: {what}"
        where = f", at {failure.where}" if failure.where else ""
        end = failure.end.replace("exit ", "exit code ")
        why.append(f"It ended with {end} after {_rank_time(facts, failure.rank)}{where}.")
    elif failure is not None:
        why.append(f"{failure.summary or failure.end} on {failure.host}.")
    first = mapping(outcome.get("first"))
    why += filter(None, [str(first.get("note") or "")])
    if first.get("peer_lost"):
        why.append("It says that it lost another rank: that may be the first to look at.")
    if also := whole(outcome.get("also_failed")):
        who = "more rank" if first else "more host"
        why.append(f"{counted(also, who)} failed, too.")
    if stopped := whole(outcome.get("stopped_ranks")):
        why.append(f"muster stopped {counted(stopped, 'other rank')} because of it.")
    fix = str(first.get("fix") or outcome.get("fix") or "")
    todo = [fix[:1].upper() + fix[1:]] if fix and not fix.startswith("see the last lines") else []
    if failure is not None and (failure.where or failure.tail):
        look = f"Open {failure.where}" if failure.where else "Read"
        todo.append(
            f"{look}: the last lines of the failure are below." if failure.tail else f"{look}."
        )
    if failure is not None and failure.log:
        todo.append(f"All that it wrote: {failure.log}")
    return RunVerdict("bad", headline, (*why, *_stood(facts), *_odd(facts)),
                   tuple(todo) or ("Look at the events below.",))  # fmt: skip


def _failure(facts: VerdictInput, outcome: Mapping[str, object]) -> FirstFailure | None:
    first = mapping(outcome.get("first"))
    if not first:
        return None
    rank, status = whole(first.get("rank")), whole(first.get("status"))
    ends = {one.rank: one.end for one in facts.ranks}
    tail = str(first.get("tail") or "")
    return FirstFailure(
        host=str(first.get("host") or "?"),
        rank=rank,
        end=ends.get(rank, "") if rank is not None and ends.get(rank) else f"status {status}",
        summary=str(first.get("summary") or ""),
        where=_place(tail),
        tail=tail,
        log=str(first.get("log") or ""),
    )


def _place(tail: str) -> str:
    """Where a traceback ends, but above what is installed: `train.py:4 in main`."""
    found = list(_AT.finditer(tail))
    own = [one for one in found if "/site-packages/" not in one[1] and "/lib/python" not in one[1]]
    for one in reversed(own or found):
        return f"{one[1].rpartition('/')[2]}:{one[2]} in {one[3]}"
    return ""


def _rank_time(facts: VerdictInput, rank: int) -> str:
    said = (mapping(one) for one in sequence(facts.summary.get("ranks")))
    took = next((number(one.get("seconds")) for one in said if one.get("rank") == rank), None)
    return "an unknown time" if took is None else duration(took)


def _stood(facts: VerdictInput) -> Iterator[str]:
    if facts.stalls:
        yield f"Before that the job stood still: {facts.stalls[-1]}"


def _odd(facts: VerdictInput) -> Iterator[str]:
    for name, step in facts.odd[:3]:
        yield f"{name} is NaN or infinite, for the first time at step {step:g}."


def _start_s(facts: VerdictInput) -> float:
    """Of the slowest host."""
    per: dict[str, float] = {}
    for one in facts.phases:
        per[one.host] = per.get(one.host, 0.0) + one.took_s * (one.name in STARTS)
    return max(per.values(), default=0.0)


def _where_time_went(facts: VerdictInput) -> Iterator[str]:
    """What took the time beside the work of the ranks, if it was much."""
    start = _start_s(facts)
    if facts.seconds and start > facts.seconds * WORTH:
        yield (f"Until all ranks ran it took {duration(start)}, "
               f"{min(1.0, start / facts.seconds):.0%} of the whole.")  # fmt: skip
    runs = max((one.took_s for one in facts.phases if one.name == "watch"), default=0.0)
    if runs:
        yield f"The ranks ran for {duration(runs)}."


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
