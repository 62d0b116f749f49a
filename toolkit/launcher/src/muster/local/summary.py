"""The end of a run: its exit code, the table of hosts and ranks, and summary.json.

The leader's `train` writes summary.json; here a key `local` is added to it, and when the leader
did not live to write it, a summary that says so takes its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.local.progress import Progress
from muster.local.screen import describe
from muster.local.session import Ending
from muster.spec.errors import STOPPED_EXIT_CODE, LaunchError

SCHEMA = 1
TIMEOUT_EXIT_CODE = 124


class HostEnd(NamedTuple):
    """`status`: exit status of the host's `train`, minus a signal; None when nobody knows."""

    name: str
    status: int | None


class RunEnd(NamedTuple):
    hosts: tuple[HostEnd, ...]
    ending: Ending
    isolation: str
    seconds: float
    timeout_s: float | None
    error: str = ""  # why the hosts could not be made or held, or the record not be written
    error_code: int = LaunchError.exit_code
    notes: tuple[str, ...] = ()
    facts: Mapping[str, object] = {}
    hints: tuple[str, ...] = ()  # lines about what stayed


def exit_code(end: RunEnd) -> int:
    """The job's: that of the hosts, the first that is not 0 when they disagree."""
    if end.ending.timed_out:
        return TIMEOUT_EXIT_CODE
    if end.ending.killed:
        return STOPPED_EXIT_CODE
    if end.error:
        return end.error_code
    codes = [_as_exit_code(host.status) for host in end.hosts]
    return next((code for code in codes if code), 0)


def _as_exit_code(status: int | None) -> int:
    if status is None:
        return 128 + 9
    return status if status >= 0 else 128 - status


def disagreement(end: RunEnd) -> str:
    """One sentence when hosts ended differently, else ""."""
    if end.error or end.ending.killed or len({host.status for host in end.hosts}) < 2:
        return ""
    each = ", ".join(f"{host.name} {describe(host.status)}" for host in end.hosts)
    return f"hosts disagree about the end: {each}"


def table(end: RunEnd, progress: Progress) -> list[str]:
    """Hosts and ranks, how each ended and after how long; columns aligned."""
    rows = [("host", "rank", "end", "seconds")]
    for host in end.hosts:
        ranks = progress.ranks_of(host.name)
        if not ranks:
            rows.append((host.name, "-", describe(host.status), "-"))
        for rank in ranks:
            took = "-" if rank.seconds is None else f"{rank.seconds:.1f}"
            rows.append((host.name, str(rank.number), describe(rank.status), took))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"  {name:<{widths[0]}}  {rank:>{widths[1]}}  {ended:<{widths[2]}}  {took:>{widths[3]}}"
        for name, rank, ended, took in rows
    ]


def places(run: str, model: str) -> list[str]:
    """Where things lie, relative to the current folder when they are below it."""
    found = [("model", model, _contents(model)), ("logs", os.path.join(run, "logs"), "")]
    found.append(("record", run, ""))
    return [f"  {name:<7} {shown(path)}{note}" for name, path, note in found]


def shown(path: str) -> str:
    """The shorter of the absolute path and the one from here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _contents(folder: str) -> str:
    try:
        count = sum(len(files) for _, _, files in os.walk(folder))
    except OSError:
        count = 0
    return " (empty)" if count == 0 else f" ({count} file{'' if count == 1 else 's'})"


def complete(path: str, end: RunEnd, job: str) -> dict[str, object]:
    """summary.json with the key `local`; written whole or not at all, also if it was missing.

    Raises OSError.
    """
    document = compose(path, end, job)
    write(path, document)
    return document


def compose(path: str, end: RunEnd, job: str) -> dict[str, object]:
    """What summary.json is to be: what it is, or made up where there is none, and `local`."""
    document = _read(path)
    if document is None:
        text = end.error or "the leader ended without a summary"
        if end.ending.killed:
            text += f": all hosts were killed after {end.ending.by}"
        result = "Stopped" if end.ending.by else "Failed" if exit_code(end) else "Succeeded"
        document = incomplete(job, result, exit_code(end), text)
    document["local"] = {
        "isolation": end.isolation,
        "seconds": round(end.seconds, 3),
        "exit_code": exit_code(end),
        "ended_by": end.ending.by,
        "note": _note(end),
        "killed": end.ending.killed,
        "hosts": [{"host": host.name, "status": host.status} for host in end.hosts],
        **end.facts,
    }
    return document


def _note(end: RunEnd) -> str:
    timeout = [f"timeout after {end.timeout_s:g} s"] if end.ending.timed_out else []
    return "; ".join([*timeout, *filter(None, [end.error]), *end.notes])


def incomplete(job: str, result: str, code: int, headline: str) -> dict[str, object]:
    """The summary of a run whose leader wrote none."""
    outcome = {"result": result, "exit_code": code, "headline": headline}
    return {"schema": SCHEMA, "job": job, "outcome": outcome, "complete": False}


def write(path: str, document: Mapping[str, object]) -> None:
    """Writes it whole or not at all."""
    fresh = f"{path}.new"
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    os.replace(fresh, path)


def _read(path: str) -> dict[str, object] | None:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def verdict(end: RunEnd) -> str:
    """The one line that closes a run."""
    code = exit_code(end)
    took = f"{end.seconds:.1f} s"
    if end.ending.timed_out:
        return f"timeout after {end.timeout_s:g} s, exit code {code}"
    if end.ending.by:
        return f"stopped by {end.ending.by} after {took}, exit code {code}"
    return f"succeeded in {took}" if code == 0 else f"failed after {took}, exit code {code}"


def leader_of(document: Mapping[str, object], names: Sequence[str]) -> str:
    """The host whose model folder counts, as the summary names it, else the first."""
    hosts = document.get("hosts")
    for host in hosts if isinstance(hosts, list) else ():
        if isinstance(host, dict) and host.get("leader") and host.get("name") in names:
            return str(host["name"])
    return names[0]
