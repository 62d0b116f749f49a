"""Finds the run that is meant among those that run, and asks one of its hosts."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any

from muster.arguments import UsageError
from muster.local.record import history, layout, runfolder
from muster.run.base import procfs
from muster.run.observe import control
from muster.run.observe.control import Inquiry
from muster.types.names import TYPED, did_you_mean, listed
from muster.types.plain import printable
from muster.types.values import NamedTuple

CONTAINER = "output/data/muster"  # below SAGEMAKER_BASE_DIR or /opt/ml


class LiveRun(NamedTuple):
    """A run that can be asked. `folders`: of the hosts that listen."""

    path: str
    folders: tuple[str, ...]

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def find(name: str | None) -> LiveRun:
    """The run by its name below `muster-runs` or its path; without one, the only one that runs
    here. Raises UsageError."""
    if name is not None:
        return _named(name)
    found, refused = [], None
    for path in _candidates():
        try:
            run = _live(path)
        except UsageError as error:  # another user's; one's own may run beside it
            refused = error
            continue
        if run is not None:
            found.append(run)
    if len(found) == 1:
        return found[0]
    if found:
        names = listed(run.name for run in found)
        raise UsageError(f"{len(found)} runs are running: {names}", "name one of them")
    if refused is not None:
        raise refused
    raise UsageError(
        f"no run can be asked here: none below {os.path.realpath(layout.RUNS)} or "
        f"{_container()} is running",
        "a run answers from 0.3 s after its ranks have started; name its folder if it is elsewhere",
    )


def listens_here(path: str) -> bool:
    """Whether a host of the run can be asked on this machine. Raises UsageError for another
    user's."""
    return _live(path) is not None


def goes_on(path: str) -> bool:
    """Whether the folder is of a job that runs on this machine: a host listens in it or beside
    it."""
    try:
        return any(map(listens_here, (path, os.path.dirname(os.path.realpath(path)))))
    except UsageError:  # another user's
        return False


def ask(run: LiveRun, request: Inquiry) -> dict[str, Any]:
    """The answer of the first host that gives one. Raises UsageError, which names hosts whose
    `train` is stopped: without the first of a job no other can answer."""
    said, fix = "", "it may have ended just now; try again"
    whys: list[str] = []
    stopped: list[str] = []
    for folder in run.folders:
        host = os.path.basename(folder)
        try:
            pid = control.listener_pid(folder)
            if (found := procfs.stat(pid)) is not None and found.state in "Tt":
                whys.append(f"the train of {host} is stopped")
                stopped.append(str(pid))
                continue
            answer = control.ask(folder, request)
        except (OSError, ValueError) as error:
            whys.append(f"{host}: {error or type(error).__name__}")
            continue
        if "error" not in answer:
            return answer
        said, fix = (printable(str(answer.get(key, ""))) for key in ("error", "fix"))
        break
    if stopped:
        fix = f"kill -CONT {' '.join(stopped)} continues it"
    why = "; ".join([said or "does not answer", *whys])
    raise UsageError(f"{run.name}: {why}", fix)


def count_here(run: LiveRun, ranks: Sequence[dict[str, Any]]) -> None:
    """Puts the PIDs of these ranks as they count here: simulated hosts and containers have a
    namespace of their own. None for one that cannot be seen from here."""
    found: dict[str, dict[int, int] | None] = {}
    for host in {rank["host"] for rank in ranks}:
        folder = os.path.join(run.path, host)
        if os.path.isdir(folder):  # else it is on another machine
            try:
                found[host] = procfs.pids_inside(control.listener_pid(folder))
            except OSError:
                found[host] = {}  # it does not listen yet, or has just ended
    for rank in ranks:
        pids = found.get(rank["host"])
        if pids is not None:
            rank["pid"] = pids.get(rank["pid"])


def _container() -> str:
    return os.path.join(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml", CONTAINER)


def _candidates() -> list[str]:
    """Folders of runs, the running ones of `muster local` first."""
    root = os.path.realpath(layout.RUNS)
    try:
        names = sorted(name for name in os.listdir(root) if name != history.LATEST)
    except OSError:
        names = []
    paths = [os.path.join(root, name) for name in names]
    return [path for path in paths if not history.is_over(path)] + [_container()]


def _live(path: str) -> LiveRun | None:
    """The run, if a host of it listens. Raises UsageError for another user's."""
    names = sorted(runfolder.entries(path), key=lambda name: (len(name), name))
    folders = [os.path.join(path, name) for name in names]
    listening = tuple(folder for folder in folders if _listens(folder))
    return LiveRun(path, listening) if listening else None


def _listens(folder: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.lstat(os.path.join(folder, control.NAME)).st_mode):
            return False
        control.connected(folder, 1.0).close()
    except OSError:
        return False
    return True


def _named(name: str) -> LiveRun:
    places = [os.path.join(layout.RUNS, name), name] if name else []
    for path in map(os.path.realpath, filter(os.path.isdir, places)):
        found = _live(path)
        if found is not None:
            return found
        if os.path.exists(os.path.join(path, layout.MARK)) and not history.is_over(path):
            fix = "a run answers from 0.3 s after its ranks have started"
            raise UsageError(f"{name} cannot be asked yet", fix)
        raise UsageError(f"{name} is not running", "muster history lists the runs that ended")
    known = [os.path.basename(path) for path in _candidates()[:-1]]
    guess = did_you_mean(name, known, likeness=TYPED)
    running = f"running: {listed(known)}" if known else "no run is running here"
    raise UsageError(f"no run {name!r}{guess}", running)
