"""The end of a run: its exit code, the table of hosts and ranks, and summary.json.

The leader's `train` writes summary.json; here a key `local` is added to it, and when the leader
did not live to write it, a summary that says so takes its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from muster.arguments import USAGE_EXIT_CODE
from muster.local.paths import shown
from muster.local.record.artifacts import Clash, made
from muster.local.session import SessionEnd
from muster.local.show.progress import Progress
from muster.local.show.screen import describe
from muster.types.errors import STOPPED_EXIT_CODE, LaunchError
from muster.types.files import read_object, write_whole
from muster.types.names import counted, listed
from muster.types.plain import columns
from muster.types.run_files import LOGS
from muster.types.values import NamedTuple

if TYPE_CHECKING:
    from muster.local.faults.injector import Landing

SCHEMA = 1
TIMEOUT_EXIT_CODE = 124
SHOWN_CLASHES = 3
_KINDS = {"model": "", "checkpoints": "", "output": "", "code": " that the script wrote there",
          "other": ""}  # fmt: skip


class HostEnd(NamedTuple):
    """How one host of a run ended.

    `status`: exit status of the host's `train`, minus a signal; None when unknown.
    """

    name: str
    status: int | None


class RunEnd(NamedTuple):
    hosts: tuple[HostEnd, ...]
    ending: SessionEnd
    isolation: str
    seconds: float
    timeout_s: float | None
    error: str = ""  # why the hosts could not be made or held, or the record not be written
    error_code: int = LaunchError.exit_code
    notes: tuple[str, ...] = ()
    facts: Mapping[str, object] = {}
    hints: tuple[str, ...] = ()  # lines about what stayed
    reports: tuple[Landing, ...] = ()  # of the faults that were asked for


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
            how = describe(rank.status) + ", stopped" * rank.stopped
            rows.append((host.name, str(rank.number), how, took))
    return [f"  {line}" for line in columns(rows, right=(1, 3))]


def places(run: str, hosts: Sequence[str], checkpoint: str | None) -> list[str]:
    """Where things lie, relative to the current folder when they are below it."""
    lines = []
    try:
        found = made(run, checkpoint)
    except OSError as error:
        found = []
        lines.append(("unread", error.filename or run, f": {error.strerror or error}"))
    for kind, note in _KINDS.items():
        folders = {one.folder: one.files for one in found if one.kind == kind}
        if folders:
            files = counted(sum(folders.values()), "file")
            where = _common(run, list(folders), _pattern(hosts))
            lines.append((kind, where, f" ({files}{note})"))
        elif kind == "model" and not lines:
            lines.append((kind, "none was saved", ""))
    logs = os.path.join(run, _pattern(hosts), LOGS)
    lines += [("logs", logs, ""), ("record", run, "")]
    return [f"  {name:<11} {shown(path)}{note}" for name, path, note in lines]


def _pattern(hosts: Sequence[str]) -> str:
    """The folders of all hosts, as a shell writes them."""
    if len(hosts) == 1:
        return hosts[0]
    return "algo-*" if all(host.startswith("algo-") for host in hosts) else "*"


def _common(run: str, folders: Sequence[str], hosts: str) -> str:
    """One path for folders of several hosts, or for what lies above them."""
    common = os.path.commonpath(folders)
    if common != run or run in folders:
        return common
    places = [os.path.relpath(folder, run).split(os.sep)[1:] for folder in folders]
    return os.path.commonpath([os.path.join(run, hosts, *place) for place in places])


def clashes_in_words(clashes: Sequence[Clash]) -> str:
    """Which host's file is in the model where several have one of that name; "" when none is."""
    if not clashes:
        return ""
    named = [f"{one.path} ({one.taken}'s; also of {', '.join(one.left)})" for one in clashes]
    return f"several hosts saved a model file of one name: {listed(named, SHOWN_CLASHES)}"


def compose(path: str, end: RunEnd, job: str) -> dict[str, object]:
    """What summary.json is to be: what it is, or made up where there is none, and `local`."""
    document = read_object(path)
    if not document:
        text = end.error or "the leader ended without a summary"
        if end.ending.killed:
            text += f": all hosts were killed after {end.ending.by}"
        result = "Stopped" if end.ending.by else "Failed" if exit_code(end) else "Succeeded"
        document = incomplete(job, result, exit_code(end), text)
    elif end.ending.by:
        found = _outcome(document)
        headline = "; ".join(filter(None, [_stopped_by(end), str(found.get("headline") or "")]))
        document["outcome"] = {**found, "exit_code": exit_code(end), "headline": headline}
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
    """Writes it whole or not at all. Raises OSError."""
    write_whole(path, json.dumps(document, indent=2) + "\n")


def settled(path: str, end: RunEnd) -> RunEnd:
    """The end of the run; what stopped it is no more than a note where the job that the summary
    tells of had ended by itself before."""
    result = _outcome(read_object(path)).get("result")
    if not end.ending.by or end.ending.killed or result not in ("Failed", "Succeeded"):
        return end
    note = f"{_stopped_by(end)}, after the job had ended by itself"
    return end._replace(ending=SessionEnd(), notes=(*end.notes, note))


def _outcome(document: Mapping[str, object]) -> Mapping[str, object]:
    found = document.get("outcome")
    return found if isinstance(found, dict) else {}


def headline(document: Mapping[str, object]) -> str:
    return str(_outcome(document).get("headline") or "")


def first_tail(document: Mapping[str, object]) -> str:
    """The last lines of the rank that failed first; "" without one."""
    first = _outcome(document).get("first")
    return str(first.get("tail") or "") if isinstance(first, dict) else ""


def _stopped_by(end: RunEnd) -> str:
    if end.ending.timed_out:
        return f"--timeout {end.timeout_s:g} s reached"
    return "Ctrl-C" if end.ending.by == "SIGINT" else end.ending.by


def last_line(end: RunEnd) -> str:
    """What the screen of a run that was stopped ends with; "" for any other."""
    return f"Stopped: {_stopped_by(end)} (exit code {exit_code(end)})" if end.ending.by else ""


def verdict(end: RunEnd) -> str:
    """The line above the table."""
    code = exit_code(end)
    took = f"{end.seconds:.1f} s"
    if end.ending.by:
        return f"stopped after {took}"
    if code == USAGE_EXIT_CODE and not end.error:
        return f"failed after {took}, exit code {code}, the job's own: the command line was right"
    return f"succeeded in {took}" if code == 0 else f"failed after {took}, exit code {code}"


def leader_first(path: str, names: Sequence[str]) -> list[str]:
    """The hosts, the leader that the summary names before the others."""
    hosts = read_object(path).get("hosts")
    leading = [
        host.get("name")
        for host in (hosts if isinstance(hosts, list) else ())
        if isinstance(host, dict) and host.get("leader")
    ]
    return sorted(names, key=lambda name: name not in leading)
