"""At the end of a job: which metric definitions of its request never matched what ranks wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from os.path import dirname, join

from muster.plan.launchplan import LaunchPlan
from muster.train.metric_match import BROKEN, NEVER, NUMBER, TEXT
from muster.types.job import Job
from muster.types.plain import short
from muster.types.run_files import LOGS

LIMIT_S = 5.0
SHOWN = 5  # definitions that a line names
_HOW = "docs/how-to/metrics.md"


def warnings_of(job: Job, plan: LaunchPlan, record: str) -> list[str]:
    """Lines for the log; [] where the request has no definitions that can be seen, or no record was
    kept. Takes LIMIT_S at most: expressions are foreign, so another process applies them."""
    definitions = job.platform.metrics if job.platform is not None else ()
    if not definitions or not record:
        return []
    logs = _logs(job, plan, record)
    found = _apply(definitions, logs)
    if found is None:
        return []
    return _lines(definitions, found, job.cluster.me.name, job.cluster.is_leader)


def _logs(job: Job, plan: LaunchPlan, record: str) -> list[list[str]]:
    """Each log of this host, and the prefix that its lines have on the screen: the platform reads
    that, so what is not shown there counts for nothing."""
    shown, host = job.settings.shown, job.cluster.me.name
    ranks = [slot.rank for slot in plan.ranks_of(job.cluster.current)]
    if shown.ranks is not None:
        ranks = [rank for rank in ranks if shown.ranks.has(rank, plan.world_size)]
    folder = join(record, host, LOGS)
    return [
        [join(folder, f"rank-{rank}.{stream}"), f"[{host}:{rank}] " if shown.prefix else ""]
        for rank in ranks
        for stream in ("out", "out.tail", "err", "err.tail")
    ]


def _apply(
    definitions: Sequence[tuple[str, str]], logs: list[list[str]], limit_s: float = LIMIT_S
) -> dict[str, str] | None:
    """Name -> how far it got, as far as that was known in time; None where it could not be
    tried."""
    program = join(dirname(__file__), "metric_match.py")
    asked = json.dumps({"definitions": definitions, "logs": logs}).encode()
    try:
        made = subprocess.run(
            [sys.executable, "-I", "-S", program],
            input=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
        if made.returncode > 0:
            return None
        answer = made.stdout
    except subprocess.TimeoutExpired as late:
        answer = late.stdout or b""
    except OSError:
        return None
    found = {}
    for line in answer.splitlines():
        try:
            name, how = json.loads(line)
        except ValueError:
            continue
        found[name] = how
    return found


def _lines(
    definitions: Sequence[tuple[str, str]], found: dict[str, str], host: str, leads: bool
) -> list[str]:
    names = list(dict.fromkeys(name for name, _ in definitions))
    by = {
        how: [name for name in names if found.get(name) == how]
        for how in (NEVER, TEXT, NUMBER, BROKEN)
    }
    if not leads:  # the leader has rank 0, which is to be the one that prints
        if not by[NUMBER]:
            return []
        what = f"metric definitions match lines of {host} too: {_named(by[NUMBER])}"
        return [f"{what}; each host that prints adds points: let rank 0 alone do it ({_HOW})"]
    late = [name for name in names if name not in found]
    said = (
        (by[NEVER], f"matched nothing that ranks of {host} wrote"),
        (by[TEXT], f"captured no number on {host}: put one in its first group, such as ([0-9.]+)"),
        (by[BROKEN], "is no regular expression of Python's and was not tried"),
        (late, f"was not tried to its end within {LIMIT_S:g} s: its expression may be slow"),
    )
    return [f"metric definition {_named(some)} {what} ({_HOW})" for some, what in said if some]


def _named(names: Sequence[str]) -> str:
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(short, names[:SHOWN])) + rest
