"""What a person is answered: looks and the verdict as JSON, and as text for the record. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.run.observe.looks import RankLook, StackFrame
from muster.run.observe.pace import OwnTime, StepPace
from muster.run.observe.query import Collector
from muster.run.observe.rollcall import RollVerdict, call_roll
from muster.run.observe.wording import (
    BUSY_SHARE,
    doing,
    is_gone,
    is_idle,
    is_stopped,
    ranges,
    spot,
    text_of,
)


def state_of(look: RankLook) -> str:
    """One word or two: ended 0, stopped, disk, computes, idle, works."""
    if look.ended is not None:
        return f"ended {look.ended}"
    if is_gone(look):
        return "ended"
    if is_stopped(look):
        return "stopped"
    if look.process.state == "D":
        return "disk"
    if look.process.state == "?":
        return "unknown"
    if look.process.cpu_share >= BUSY_SHARE:
        return "computes"
    return "idle" if is_idle(look) else "works"


def verdict_of(found: Collector) -> RollVerdict:
    """The verdict over what has come."""
    return call_roll(found.looks, found.silent())


def state_answer(
    looks: Sequence[RankLook], silent: Mapping[int, str], pace: StepPace | None = None
) -> dict[str, Any]:
    """The answer to `state`: a row for each rank. `pace`: as it was last looked at."""
    own: Mapping[int, OwnTime] = {} if pace is None else pace.own
    rows = [
        {
            "host": look.host,
            "rank": look.rank,
            "pid": look.process.pid,
            "step": look.answer.step,
            "rate": look.answer.rate,
            "silent_s": round(look.silent_s, 1),
            "state": state_of(look),
            "cpu_share": look.process.cpu_share,
            "ended": look.ended,
            "own_s": own[look.rank].median_s if look.rank in own else None,
            "own_p95_s": own[look.rank].p95_s if look.rank in own else None,
            "slow": pace is not None and look.rank in pace.slow,
        }
        for look in sorted(looks, key=lambda look: look.rank)
    ]
    return {"ranks": rows, **_silent(silent)}


def stacks_answer(
    verdict: RollVerdict,
    looks: Sequence[RankLook],
    shown: Sequence[RankLook],
    silent: Mapping[int, str],
) -> dict[str, Any]:
    """The answer to `stacks`: the verdict, and the stacks of `shown`, each with the ranks of the
    roll call, `looks`, that are where it was."""
    alike = _same(looks)
    same = {rank: ranks for ranks in alike.values() for rank in ranks}
    stacks = [
        {
            "rank": look.rank,
            "host": look.host,
            "same": ranges(same.get(look.rank, [look.rank])),
            "does": doing(look),
            "how": look.answer.how,
            "threads": [
                {
                    "name": thread.name,
                    "main": thread.is_main,
                    "frames": [list(frame) for frame in thread.frames],
                }
                for thread in look.answer.threads
            ],
        }
        for look in sorted(shown, key=lambda look: look.rank)
    ]
    return {"verdict": verdict._asdict(), "stacks": stacks, **_silent(silent)}


def as_text(answer: Mapping[str, Any]) -> str:
    """The answer to `stacks` for a person. All of it comes from the job: shown as text."""
    lines = [f"roll call: {text_of(answer['verdict']['sentence'], 2000)}"]
    for one in answer["stacks"]:
        alike = "" if one["same"] == str(one["rank"]) else f" (like it: {one['same']})"
        lines += [
            "",
            f"rank {one['rank']} on {text_of(one['host'])} {text_of(one['does'], 300)}{alike}",
        ]
        if not one["threads"]:
            lines.append("  no stack: " + _WHY.get(one["how"], "its agent did not answer"))
        for thread in one["threads"]:
            if not thread["main"]:
                lines.append(f"  thread {text_of(thread['name'])}")
            lines += [_line(StackFrame(*f)) for f in thread["frames"] if "<frozen " not in f[0]]
    if answer.get("silent"):
        lines += ["", f"did not answer: {', '.join(map(text_of, answer['silent']))}"]
    return "\n".join(lines) + "\n"


_WHY = {
    "none": "no agent in it (another program than Python, `python -I` or `-S`, or its script has "
    "closed descriptors that it did not open)",
    "silent": "its agent did not answer",
}


def _line(frame: StackFrame) -> str:
    line = f":{frame.line}" if frame.line else ""
    return f"    {text_of(frame.file, 160)}{line} {text_of(frame.function)}".rstrip()


def _kind(look: RankLook) -> tuple[object, ...]:
    main = tuple(spot(one) for one in look.answer.threads if one.is_main)
    return (look.answer.how, main) if main else (look.answer.how, state_of(look))


def _same(looks: Sequence[RankLook]) -> dict[tuple[object, ...], list[int]]:
    found: dict[tuple[object, ...], list[int]] = {}
    for look in looks:
        found.setdefault(_kind(look), []).append(look.rank)
    return found


def _silent(silent: Mapping[int, str]) -> dict[str, Any]:
    """The names of hosts that did not answer, if there are any."""
    return {"silent": sorted(set(silent.values()))} if silent else {}
