"""The runs that were kept: which there are, how they ended, and how one is removed."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter

from muster.arguments import UsageError
from muster.local.record import layout, runfolder
from muster.local.record.artifacts import made
from muster.local.record.command_file import CommandLine, read_command
from muster.report.cells import mapping, number, text, whole
from muster.types.errors import word_of
from muster.types.files import read_object
from muster.types.names import TYPED, did_you_mean
from muster.types.run_files import SUMMARY
from muster.types.values import NamedTuple

LATEST = "latest"
MOST_S = 1e9  # a run that lasted longer is none: its record is spoilt


class Run(NamedTuple):
    """An earlier run of `muster local` or `muster submit`.

    `state`: running, succeeded, failed, stopped, or lost when no process survived to say; submitted
    while another engine has it and has not begun. `code` and `seconds`: None unless it has ended.
    """

    path: str
    state: str
    code: int | None
    seconds: float | None
    headline: str
    hosts: tuple[str, ...]
    command: CommandLine | None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def command_line(self) -> str:
        if not self.command:
            return "-"
        return f"muster {self.command.command} {shlex.join(self.command.argv)}"

    @property
    def started(self) -> str:
        if not self.command:
            return "-"
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.command.started))


def runs() -> list[Run]:
    """All runs below `muster-runs`, the newest first. Raises UsageError."""
    root = os.path.realpath(layout.RUNS)
    try:
        paths = [os.path.join(root, name) for name in os.listdir(root) if name != LATEST]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"the runs cannot be read: {runfolder.in_words(error)}") from None
    found = [read_run(path) for path in paths if is_run(path)]
    return sorted(found, key=lambda run: (_started(run), run.name), reverse=True)


def _started(run: Run) -> float:
    if run.command:
        return run.command.started
    try:
        return os.stat(run.path).st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def find_run(name: str) -> Run:
    """By its name below `muster-runs`, by a path, or `latest`. Raises UsageError."""
    for path in (os.path.join(layout.RUNS, name), name):
        if name and is_run(path):
            return read_run(os.path.realpath(path))
    runfolder.entries(name)
    known = [run.name for run in runs()]
    if name == LATEST and known:
        return read_run(os.path.realpath(os.path.join(layout.RUNS, known[0])))
    if not known:
        raise UsageError(
            f"there are no runs in {os.path.realpath(layout.RUNS)}",
            "go to the folder that you started `muster local` in, or name a run folder",
        )
    guess = did_you_mean(name, known, likeness=TYPED)
    raise UsageError(f"no run {name!r}{guess}", "muster history lists them")


def is_run(path: str) -> bool:
    """Whether the folder is one that a run took."""
    return os.path.isfile(os.path.join(path, layout.MARK))


def read_run(path: str) -> Run:
    """What the folder says; a field that cannot be read is empty. The job may have written there,
    and the folder may go at any time."""
    summary = read_object(os.path.join(path, SUMMARY))
    local, outcome = mapping(summary.get("local")), mapping(summary.get("outcome"))
    kept = os.path.join(path, layout.SUBMITTED)
    unknown = "submitted" if os.path.exists(kept) else "lost"
    ended = whole(read_object(kept).get("code"))
    if ended is not None:  # its engine said so; no host had begun, or could write a summary
        unknown = word_of(ended)
    state = (text(outcome.get("result")) or unknown).lower()
    if not is_over(path):
        state = "running"
    code, seconds = whole(local.get("exit_code")), number(local.get("seconds"))
    codes = (code, whole(outcome.get("exit_code")), ended)
    return Run(
        path=path,
        state=state,
        code=next((one for one in codes if one is not None), None),
        seconds=seconds if seconds is not None and 0 <= seconds < MOST_S else None,
        headline=text(outcome.get("headline")),
        hosts=tuple(name for name in _names(path) if os.path.isdir(f"{path}/{name}/opt/ml")),
        command=read_command(path),
    )


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path), key=lambda name: (len(name), name))  # algo-2, algo-10
    except OSError:
        return []


def is_over(path: str) -> bool:
    """Whether no process holds the run's folder any more; then all has been written."""
    try:
        return runfolder.is_free(path) and not runfolder.has_busy_hosts(path)
    except OSError:
        return True


def _refuse_unless(sure: bool, run: Run) -> None:
    """Raises UsageError for a run that its job uses, and, while not `sure`, for one that holds, or
    may hold, what a job made."""
    if run.state == "running":
        raise UsageError(f"{run.name} is in use by its job", "wait for its end, or stop it")
    if sure:
        return
    if run.state == "submitted":
        fix = f"muster submit --cancel {run.name}, or add --yes"
        raise UsageError(f"{run.name} was submitted, and may begin yet", fix)
    try:
        kinds = Counter[str]()
        for one in made(run.path):
            kinds[one.kind] += one.files
    except OSError as error:
        why = f"what is in {run.name} cannot be read: {runfolder.in_words(error)}"
        raise UsageError(why, "see whose files are in it, or add --yes to delete them") from None
    if kinds:
        found = ", ".join(f"{kind}: {files}" for kind, files in kinds.items())
        raise UsageError(
            f"{run.name} holds files that its job made ({found})", "add --yes to delete them"
        )


def remove(run: Run, sure: bool) -> None:
    """Removes the run's folder, and `latest` where that is the run.

    Raises UsageError for one that is in use, or that holds what a job made while not `sure`.
    """
    try:
        folder = runfolder.RunFolder(run.path, "", runfolder.hold(run.path))
    except OSError as error:
        raise UsageError(f"{run.name} cannot be removed: {runfolder.in_words(error)}") from None
    try:
        _refuse_unless(sure, run)
    except UsageError:
        os.close(folder.lock)
        raise
    link = os.path.join(os.path.dirname(run.path), LATEST)
    if os.path.islink(link) and os.path.realpath(link) == run.path:
        os.unlink(link)
    runfolder.discard(folder, kept=())
    if os.path.exists(run.path):
        raise UsageError(f"{run.path} could not be removed whole", "see whose files are in it")
