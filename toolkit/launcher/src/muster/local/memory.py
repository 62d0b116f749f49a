"""`--memory` without a container engine: a control group for each host, of version 1 or 2.

Linux lets a user make groups only where somebody gave that user a part of the tree; where nobody
did, the reason is said and nothing starts.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Sequence

from muster.arguments import UsageError, size_in_words
from muster.stage.machine.cgroup import Cgroups

PREFIX = "muster-"  # then the process that made it, then the host
MEMBERS = "cgroup.procs"
REMOVE_LIMIT_S = 2.0
POLL_S = 0.01


def make_groups(names: Sequence[str], limit_bytes: int) -> tuple[str, ...]:
    """A folder of the kernel for each host; what joins it has that much memory and no swap.

    Raises UsageError where none can be made.
    """
    reasons: dict[str, str] = {}
    for parent in Cgroups().folders("memory"):
        made: list[str] = []
        try:
            _remove_abandoned(parent)
            pass_on(parent)
            for name in names:
                made.append(os.path.join(parent, f"{PREFIX}{os.getpid()}-{name}"))
                os.mkdir(made[-1])
                _limit(made[-1], limit_bytes)
            _try_to_join(made[0])
            return tuple(made)
        except OSError as error:
            remove_groups(made)
            reasons[f"{error.filename or parent}: {error.strerror}"] = ""
    found = "; ".join(reasons) or "no control group of this process has a memory controller"
    raise UsageError(
        f"--memory: no control group can be made here: {found}",
        "run as root, or as `systemd-run --user --scope -p Delegate=yes muster local ...`, or use "
        "--isolation docker",
    )


def pass_on(parent: str, controller: str = "memory") -> None:
    """Version 2: groups below get the controller only when their parent says so, which it may as
    long as it has no process itself. One that holds this process alone, as a scope of systemd's,
    gets another group for it, below the scope, which stays until the scope is removed.

    Raises OSError, and then nothing has changed.
    """
    control = os.path.join(parent, "cgroup.subtree_control")
    if not os.path.exists(control):
        return
    with open(control, encoding="ascii") as file:
        if controller in file.read().split():
            return
    try:
        _write(control, f"+{controller}")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        below = os.path.join(parent, f"{PREFIX}{os.getpid()}-itself")
        os.mkdir(below)
        try:
            join(below)
            _write(control, f"+{controller}")
        except OSError:
            join(parent)
            _removed(below)
            raise


def _limit(group: str, limit_bytes: int) -> None:
    if os.path.exists(os.path.join(group, "memory.max")):
        _write(os.path.join(group, "memory.max"), str(limit_bytes))
        swap, none = "memory.swap.max", "0"
    else:
        _write(os.path.join(group, "memory.limit_in_bytes"), str(limit_bytes))
        swap, none = "memory.memsw.limit_in_bytes", str(limit_bytes)
    if os.path.exists(os.path.join(group, swap)):  # a kernel may count no swap
        _write(os.path.join(group, swap), none)


def _try_to_join(group: str) -> None:
    """Raises OSError where a process cannot be moved into the group."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            join(group)
            code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if number := os.waitstatus_to_exitcode(status):
        raise OSError(abs(number), os.strerror(abs(number)), os.path.join(group, MEMBERS))


def join(group: str) -> None:
    """Moves this process into the group. Raises OSError."""
    _write(os.path.join(group, MEMBERS), "0")


def kill_notes(groups: Iterable[str], limit_bytes: int) -> list[str]:
    """A sentence for each host of which the kernel killed a process for memory."""
    limit = size_in_words(limit_bytes)
    return [
        f"{group.rpartition(PREFIX)[2].partition('-')[2]}: the kernel killed for memory: "
        f"--memory is {limit} for each host"
        for group in groups
        if Cgroups.kills_in(group)
    ]


def remove_groups(groups: Iterable[str]) -> None:
    """Removes groups once their last process is gone; what is not within a limit stays, empty."""
    limit = time.monotonic() + REMOVE_LIMIT_S
    for group in groups:
        while os.path.isdir(group) and not _removed(group) and time.monotonic() < limit:
            time.sleep(POLL_S)


def _removed(group: str) -> bool:
    try:
        os.rmdir(group)
    except OSError:
        return False
    return True


def _remove_abandoned(parent: str) -> None:
    """Groups of runs that were killed; one that still holds a process cannot be removed."""
    for name in os.listdir(parent):
        pid = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            _removed(os.path.join(parent, name))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii", buffering=1) as file:
        file.write(text)
