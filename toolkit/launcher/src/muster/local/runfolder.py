"""The run folder: made new, or taken over from an earlier run of ours, and locked while in use.

Layout (architecture.md, "What a person sees"): summary.json, events.jsonl, logs/, HOST/opt/ml/.
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from muster.commands.arguments import UsageError

RUNS = "muster-runs"
MARK = ".muster-run"
SOURCE = "source/sourcedir.tar.gz"
SUMMARY = "summary.json"
EVENTS = "events.jsonl"
MAX_JOB_NAME = 63  # SageMaker's limit for a training job's name


class RunFolder(NamedTuple):
    """`path`: absolute, without links. `job`: the name of the job. `lock`: an open descriptor; no
    other run can have the folder until this process and the holder, which gets it, too, ended."""

    path: str
    job: str
    lock: int

    def host(self, name: str, *below: str) -> str:
        """A path in the folder of one host."""
        return os.path.join(self.path, name, *below)

    def base(self, name: str) -> str:
        """The host's opt/ml."""
        return self.host(name, "opt", "ml")


def make_run_folder(program: str, output: str | None, now: float | None = None) -> RunFolder:
    """`muster-runs/TIME-SCRIPT`, or `output`. Raises UsageError."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    stem = os.path.splitext(os.path.basename(program))[0]
    try:
        if output is not None:
            path = _take_output(output)
            return _lock(path, job_name(f"{os.path.basename(path)}-{stamp}"))
        path = _make_below_runs(f"{stamp}-{stem}")
    except OSError as error:
        raise UsageError(
            f"the run folder cannot be made: {error.filename}: {error.strerror}",
            "name a writable one with --output DIR",
        ) from None
    return _lock(path, job_name(os.path.basename(path)))


def job_name(text: str) -> str:
    """The text as a name that SageMaker would take for a training job."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
    return name[-MAX_JOB_NAME:].strip("-") or "job"


def _make_below_runs(name: str) -> str:
    runs = os.path.realpath(RUNS)
    if not os.path.isdir(runs):
        os.makedirs(runs, exist_ok=True)
        with open(os.path.join(runs, ".gitignore"), "w", encoding="ascii") as file:
            file.write("*\n")
    number = 1
    while True:
        path = os.path.join(runs, name if number == 1 else f"{name}-{number}")
        try:
            os.mkdir(path)
            break
        except FileExistsError:
            number += 1
    return path


def link_latest(folder: RunFolder) -> None:
    """Turns `muster-runs/latest` to the run in one step; something else of that name stays."""
    runs, name = os.path.split(folder.path)
    link = os.path.join(runs, "latest")
    if runs != os.path.realpath(RUNS) or (os.path.lexists(link) and not os.path.islink(link)):
        return
    fresh = os.path.join(runs, f".latest-{os.getpid()}")
    os.symlink(name, fresh)
    os.replace(fresh, link)


def discard(folder: RunFolder) -> None:
    """Removes a run that never began."""
    _empty(folder.path)
    os.unlink(os.path.join(folder.path, MARK))
    os.rmdir(folder.path)
    os.close(folder.lock)


def _take_output(output: str) -> str:
    """The folder, empty. What an earlier run of ours left in it is removed, all else refused."""
    os.makedirs(output, exist_ok=True)
    path = os.path.realpath(output)
    if os.listdir(path) and not os.path.isfile(os.path.join(path, MARK)):
        raise UsageError(
            f"--output: {output} holds files that are not of a run of muster",
            "name an empty or a new folder",
        )
    return path


def _lock(path: str, job: str) -> RunFolder:
    import fcntl

    mark = os.open(os.path.join(path, MARK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(mark)
        raise UsageError(f"{path} is in use by another run", "name another folder") from None
    _empty(path)
    os.ftruncate(mark, 0)
    os.write(mark, f"{job}\n".encode())
    return RunFolder(path, job, mark)


def is_free(path: str) -> bool:
    """Whether no run holds the folder. Raises OSError, FileNotFoundError when there is none."""
    import fcntl

    mark = os.open(os.path.join(path, MARK), os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(mark)
    return True


def _empty(path: str) -> None:
    import shutil

    for entry in os.scandir(path):
        if entry.name == MARK:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
