"""The run folder: made new, or taken over from an earlier run, and locked while in use.

What a job made is never removed unless that was asked for.

Layout (docs/how-to/local.md): summary.json, and of each host events.jsonl, logs/ and opt/ml/.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Sequence
from contextlib import suppress

from muster.arguments import UsageError
from muster.local.record.artifacts import made
from muster.local.record.layout import EARLIER, FRESH_SOURCE, MARK, MOVING, RUNS, SOURCE, SUBMITTED
from muster.types.files import read_object
from muster.types.run_files import EVENTS, SUMMARY
from muster.types.values import NamedTuple

OTHER_PLACE = "name a folder on a disk that can be written: --output DIR, --checkpoint DIR"
_NAMES = {
    "model": "a model",
    "checkpoints": "checkpoints",
    "output": "output",
    "code": "files that its script wrote",
    "other": "other files",
}
PRIVATE = 0o700  # hyperparameters, and what ranks wrote, are private
MAX_JOB_NAME = 63  # SageMaker's limit for a training job's name


class RunFolder(NamedTuple):
    """The folder of one run, locked while the run lasts.

    `path`: absolute, without links. `job`: the name of the job. `lock`: an open descriptor, which
    the host supervisor inherits; no other run can take the folder until both processes have ended.
    """

    path: str
    job: str
    lock: int

    def host(self, name: str, *below: str) -> str:
        """A path in the folder of one host."""
        return os.path.join(self.path, name, *below)

    def events(self, name: str) -> str:
        """The host's events.jsonl."""
        return self.host(name, EVENTS)

    def base(self, name: str) -> str:
        """The host's opt/ml."""
        return self.host(name, "opt", "ml")


def make_run_folder(
    program: str, output: str | None, overwrite: bool = False, now: float | None = None
) -> RunFolder:
    """`muster-runs/TIME-SCRIPT`, or `output`, locked; `overwrite`: also with what an earlier run
    made, which lies there until `clear`.

    Raises UsageError.
    """
    stamp, name = _stamped(program, now)
    try:
        if output is not None:
            path = _take_output(output)
            return _lock(path, job_name(f"{os.path.basename(path)}-{stamp}"), overwrite)
        path = _make_below_runs(name)
        return _lock(path, job_name(os.path.basename(path)), overwrite)
    except OSError as error:
        raise UsageError(f"the run folder cannot be made: {in_words(error)}", OTHER_PLACE) from None


def _stamped(program: str, now: float | None) -> tuple[str, str]:
    """(time, name of the run folder)."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return stamp, f"{stamp}-{os.path.splitext(os.path.basename(program))[0]}"


def planned(program: str, output: str | None) -> str:
    """The path that `make_run_folder` would most likely take."""
    if output is not None:
        return os.path.realpath(output)
    return os.path.join(os.path.realpath(RUNS), _stamped(program, None)[1])


def in_words(error: OSError) -> str:
    """What the system refused, and where."""
    return ": ".join(filter(None, [str(error.filename or ""), error.strerror or str(error)]))


def entries(path: str) -> list[str]:
    """What lies in a run folder, [] where there is none. Raises UsageError for another user's."""
    try:
        return os.listdir(path)
    except PermissionError:
        raise UsageError(_whose(path), "ask as that user, or as root") from None
    except OSError:
        return []


def _whose(path: str) -> str:
    try:
        uid = os.stat(path).st_uid
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = str(uid)
    except OSError as error:
        return f"{path} cannot be read: {in_words(error)}"
    return f"{path} is a run of user {owner}"


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
            os.mkdir(path, PRIVATE)
            break
        except FileExistsError:
            number += 1
    return path


def link_latest(folder: RunFolder) -> None:
    """Turns `muster-runs/latest` to the run in one step; something else of that name stays, and
    where no link can be made there is none."""
    runs, name = os.path.split(folder.path)
    link = os.path.join(runs, "latest")
    if runs != os.path.realpath(RUNS) or (os.path.lexists(link) and not os.path.islink(link)):
        return
    fresh = os.path.join(runs, f".latest-{os.getpid()}")
    with suppress(OSError):
        os.symlink(name, fresh)
        os.replace(fresh, link)


def clear(folder: RunFolder) -> None:
    """Deletes the earlier run: from here on the folder is this run's. Raises OSError."""
    _empty(folder.path, (MARK, FRESH_SOURCE))
    begin(folder)


def set_aside(folder: RunFolder) -> None:
    """Moves the earlier run below EARLIER, until `drop_earlier`; `discard` brings it back. One that
    lies there already, of a submit that was killed, is the one to keep. Raises OSError, and then
    all is where it was."""
    path = folder.path
    earlier, moving = (os.path.join(path, name) for name in (EARLIER, MOVING))
    if os.path.exists(os.path.join(path, SUBMITTED)):
        drop_earlier(path)
    _bring_back(path)
    try:
        _move_all(path, moving, (MARK, FRESH_SOURCE, MOVING))
        if os.path.isdir(moving):
            os.rename(moving, earlier)
    except BaseException:
        with suppress(OSError):
            _bring_back(path)
        raise


def begin(folder: RunFolder) -> None:
    """Puts the code in place that was packed for this run, if any. Raises OSError."""
    fresh, source = (os.path.join(folder.path, name) for name in (FRESH_SOURCE, SOURCE))
    os.ftruncate(folder.lock, 0)
    os.write(folder.lock, f"{folder.job}\n".encode())
    os.mkdir(os.path.dirname(source))
    with suppress(FileNotFoundError):
        os.rename(fresh, source)


def leave(folder: RunFolder) -> None:
    """Gives up a run before `clear`: an earlier one in the folder stays, a new folder goes."""
    with suppress(OSError):
        os.unlink(os.path.join(folder.path, FRESH_SOURCE))
    _close_unused(folder)


def discard(folder: RunFolder, kept: Sequence[str] = (EARLIER, MOVING)) -> None:
    """Removes a run, as far as that can be done. One that was set aside for it, unless it goes,
    too, is back then."""
    with suppress(OSError):
        _empty(folder.path, (MARK, *kept))
    with suppress(OSError):
        _bring_back(folder.path)
    _close_unused(folder)


def drop_earlier(path: str) -> None:
    """Deletes, as far as that can be done, the run that was set aside in a run folder."""
    import shutil

    shutil.rmtree(os.path.join(path, EARLIER), ignore_errors=True)


def _close_unused(folder: RunFolder) -> None:
    """Removes the folder if nothing but the mark is in it, and unlocks it."""
    with suppress(OSError):
        if os.listdir(folder.path) == [MARK]:
            os.unlink(os.path.join(folder.path, MARK))
            os.rmdir(folder.path)
    os.close(folder.lock)


def _take_output(output: str) -> str:
    """The folder, which is new, empty, or of an earlier run; all else is refused."""
    os.makedirs(os.path.dirname(output), exist_ok=True)
    if not os.path.exists(output):
        os.mkdir(output, PRIVATE)
    path = os.path.realpath(output)
    mine = os.path.isfile(os.path.join(path, MARK))
    if not mine and (not os.path.isdir(path) or os.listdir(path)):
        raise UsageError(
            f"--output: {output} is a file, or holds files that are not of a run of muster",
            "name an empty or a new folder",
        )
    return path


def _lock(path: str, job: str, overwrite: bool) -> RunFolder:
    """Takes the folder as it is. Raises UsageError and OSError, and then it stays so, unlocked."""
    mark = hold(path)
    try:
        _refuse_another_engine_s(path)
        if not overwrite:
            _refuse_what_was_made(path)
    except (UsageError, OSError):
        os.close(mark)
        raise
    return RunFolder(path, job, mark)


def hold(path: str) -> int:
    """The folder's lock, as a descriptor. Raises UsageError while another run has it, OSError."""
    import fcntl

    mark = os.open(os.path.join(path, MARK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(mark)
        raise UsageError(f"{path} is in use by another run", "name another folder") from None
    except OSError as error:
        os.close(mark)
        raise OSError(error.errno, f"it cannot be locked: {error.strerror}", path) from None
    return mark


def _refuse_what_was_made(path: str) -> None:
    """Raises UsageError where a job left something that is not to be had again."""
    found = list(dict.fromkeys(_NAMES[one.kind] for one in made(path)))
    if found:
        raise UsageError(
            f"{path} is an earlier run and holds {', '.join(found)}",
            "name another folder, or add --overwrite to delete all that is in it",
        )


def _refuse_another_engine_s(path: str) -> None:
    """Raises UsageError for a job that was submitted, and runs or may begin yet: in an emptied
    folder nobody would find it again."""
    if has_busy_hosts(path):
        raise UsageError(f"{path} is in use by its job, which runs", "name another folder")
    submitted, over = (os.path.exists(os.path.join(path, one)) for one in (SUBMITTED, SUMMARY))
    over = over or read_object(os.path.join(path, SUBMITTED)).get("code") is not None
    if submitted and not over:
        why = f"{path} was submitted to another engine, and the job may begin yet"
        fix = f"muster submit --cancel {path} ends it, --status {path} asks whether it has ended"
        raise UsageError(why, fix)


def has_busy_hosts(path: str) -> bool:
    """Whether hosts of another engine, which hold a folder each, are at work in a run folder."""
    if not os.path.exists(os.path.join(path, SUBMITTED)):
        return False
    hosts = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    marked = [host for host in hosts if os.path.exists(os.path.join(host, MARK))]
    return not all(map(is_free, marked))


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


def _bring_back(path: str) -> None:
    """A run that was set aside, in place of all else but a job that was taken; one that was on its
    way, out or back, beside what has stayed or come back. Raises OSError."""
    earlier, moving, taken = (os.path.join(path, name) for name in (EARLIER, MOVING, SUBMITTED))
    if os.path.isdir(earlier) and not os.path.exists(taken):
        _empty(path, (MARK, FRESH_SOURCE, EARLIER))
        os.rename(earlier, moving)
    if os.path.isdir(moving):
        _move_all(moving, path)
        os.rmdir(moving)


def _move_all(path: str, place: str, kept: Sequence[str] = ()) -> None:
    """What lies in one folder, but for `kept`, to another of the same disk. Raises OSError."""
    names = [name for name in os.listdir(path) if name not in kept]
    if names:
        os.makedirs(place, PRIVATE, exist_ok=True)
    for name in names:
        os.rename(os.path.join(path, name), os.path.join(place, name))


def _empty(path: str, kept: Sequence[str] = (MARK,)) -> None:
    import shutil

    for entry in os.scandir(path):
        if entry.name in kept:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
