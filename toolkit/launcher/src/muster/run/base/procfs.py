"""What the kernel says of processes: every reading of /proc/PID is here.

Nothing raises for a process that has ended, belongs to somebody else, or of which this kernel does
not tell something: what is not known is None, 0 or "". All take microseconds, but where a file
system that hangs holds the process's own memory map: look from a thread, not from the loop's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from muster.types.files import link_target, read_text
from muster.types.values import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
MOST_THREADS = 512  # of one process whose run delay is summed up: a look must stay cheap
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PATH_BYTES = 4096
_LEAVING = 0x4 | 0x400  # PF_EXITING, PF_SIGNALED
_SIGKILL = 9

# Calls in which a process may stay: number on x86_64, number elsewhere (the generic table) -> what
# it does. `{}` stands for what its first argument, a descriptor, is open on.
_LOCK = "waiting for a lock on {}"
_CALLS = (
    ((0, 17, 19, 45, 47), (63, 67, 65, 207, 212), "reading {}"),
    ((1, 18, 20, 44, 46), (64, 68, 66, 206, 211), "writing {}"),
    ((74, 75, 277), (82, 83, 84), "waiting until {} is on the disk"),
    ((73,), (32,), _LOCK),
    ((43, 288), (202, 242), "waiting for a connection to {}"),
    ((42,), (203,), "connecting {}"),
    ((35, 230), (101, 115), "sleeping"),
    ((61, 247), (260, 95), "waiting for a child process"),
)
_OPEN, _OPENAT, _FCNTL = 2, {True: 257, False: 56}, {True: 72, False: 25}
_LOCK_COMMANDS = (7, 38)  # F_SETLKW, F_OFD_SETLKW
_SELECT = {True: (23, 270), False: (72,)}  # of no descriptors: how Python 3.10 sleeps


class Stat(NamedTuple):
    """The line of /proc/PID/stat. `state`: its letter. `cpu_s`: processor time of the process;
    `children_cpu_s`: of those of its children that have ended and were waited for."""

    state: str
    parent: int
    flags: int
    cpu_s: float
    children_cpu_s: float
    memory_bytes: int
    major_faults: int  # for which it waited for a disk


def stat(pid: int) -> Stat | None:
    """None where there is no such process."""
    return _parsed(read_text(f"/proc/{pid}/stat"))


def _parsed(line: str) -> Stat | None:
    fields = line.rpartition(") ")[2].split()
    if len(fields) < 22:
        return None
    user, system, children_user, children_system = map(int, fields[11:15])
    return Stat(
        fields[0],
        int(fields[1]),
        int(fields[6]),
        (user + system) / TICKS,
        (children_user + children_system) / TICKS,
        int(fields[21]) * _PAGE_BYTES,
        int(fields[9]),
    )


def processes() -> dict[int, Stat]:
    """Every process that is seen from here, zombies included."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    found = ((int(name), stat(int(name))) for name in names if name.isdigit())
    return {pid: one for pid, one in found if one is not None}


def trees(table: Mapping[int, Stat], roots: Sequence[int]) -> dict[int, list[int]]:
    """Root -> all processes below it, the root left out, in one pass over the table."""
    by_parent: dict[int, list[int]] = {}
    for pid, one in table.items():
        by_parent.setdefault(one.parent, []).append(pid)
    found: dict[int, list[int]] = {}
    for root in roots:
        below, queue = [], [root]
        while queue:
            children = [pid for pid in by_parent.get(queue.pop(), ()) if pid != root]
            below += children
            queue += children
        found[root] = below
    return found


def processor_s(pid: int) -> float:
    """Processor time that a process and those of its children that ended have taken."""
    one = stat(pid)
    return one.cpu_s + one.children_cpu_s if one is not None else 0.0


def run_delays_s(pid: int) -> dict[int, float]:
    """Thread -> how long it waited for a processor although it could have run; {} where the kernel
    does not count that."""
    found = {}
    for thread in _threads(pid)[:MOST_THREADS]:
        fields = read_text(f"/proc/{pid}/task/{thread}/schedstat").split()
        if len(fields) < 2:
            break
        found[int(thread)] = int(fields[1]) / 1e9
    return found


def peak_bytes(pid: int) -> int:
    """The most memory that the process itself held at once."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", read_text(f"/proc/{pid}/status"), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def moved_bytes(pid: int) -> int:
    """Bytes that all threads of a process, and those of its children that ended, have read and
    written, from files or not; 0 where the kernel does not say."""
    found = re.findall(r"^[rw]char: (\d+)", read_text(f"/proc/{pid}/io"), re.MULTILINE)
    return sum(map(int, found))


def wchan(pid: int) -> str:
    """The kernel function in which the main thread waits; "" while it runs, or where that is not
    said."""
    where = read_text(f"/proc/{pid}/wchan")
    return "" if where == "0" else where


def is_busy(pid: int) -> bool:
    """Whether a thread of the process runs, wants to, or waits for a disk (on a crowded machine
    that is work although it takes no time), or its main thread waits for anything from outside:
    neither for another thread nor for a child."""
    if not wchan(pid).startswith(("futex", "do_wait")) and wchan(pid):
        return True
    lines = (read_text(f"/proc/{pid}/task/{thread}/stat") for thread in _threads(pid))
    return any(line.rpartition(") ")[2].startswith(("R", "D")) for line in lines)


def is_dying(pid: int) -> bool:
    """Whether the process has ended, is about to, or has a SIGKILL on its way."""
    one, status = stat(pid), read_text(f"/proc/{pid}/status")
    if one is None or not status:
        return True
    pending = re.findall(r"^(?:Sig|Shd)Pnd:\s+([0-9a-f]+)", status, re.MULTILINE)
    coming = any(int(mask, 16) >> (_SIGKILL - 1) & 1 for mask in pending)
    return one.state in ("Z", "X") or bool(one.flags & _LEAVING) or coming


def pids_inside(pid: int) -> dict[int, int] | None:
    """Of the processes in the PID namespace of this one: PID as it counts there -> as it counts
    here; None where these are the same."""
    if len(counted(pid)) < 2:
        return None
    inside, found = _namespace(pid), {}
    for one in processes():
        pids = counted(one)
        if len(pids) > 1 and inside and _namespace(one) == inside:
            found[pids[-1]] = one
    return found


def counted(pid: int) -> list[int]:
    """The PIDs of a process, from the namespace of this one inwards."""
    line = re.search(r"^NSpid:(.*)$", read_text(f"/proc/{pid}/status"), re.MULTILINE)
    return [int(one) for one in line[1].split()] if line else []


def _namespace(pid: int) -> str:
    return link_target(f"/proc/{pid}/ns/pid")


def waits_for(pid: int) -> str:
    """What the main thread is doing in the kernel, in words, such as `reading /data/7`; "" where it
    runs, waits for something that has no name, or may not be looked at."""
    words = read_text(f"/proc/{pid}/syscall").split()
    if len(words) < 4 or not words[0].isdigit():  # "running", or "-1" in a page fault
        return ""
    number, first, second = int(words[0]), int(words[1], 16), int(words[2], 16)
    is_x86 = os.uname().machine == "x86_64"
    if number == _OPENAT[is_x86] or (is_x86 and number == _OPEN):
        return f"opening {_path_at(pid, first if number == _OPEN else second)}"
    if number == _FCNTL[is_x86] and second in _LOCK_COMMANDS:
        return _LOCK.format(_open_on(pid, first))
    if number in _SELECT[is_x86] and first == 0:
        return "sleeping"
    for on_x86, elsewhere, words_of in _CALLS:
        if number in (on_x86 if is_x86 else elsewhere):
            return words_of.format(_open_on(pid, first))
    return ""


def _open_on(pid: int, fd: int) -> str:
    """What a descriptor is open on: a path, or what kind of thing has none."""
    target = link_target(f"/proc/{pid}/fd/{fd}")
    if target.startswith("/"):
        return target
    kind = target.partition(":")[0]
    return {"socket": "a socket", "pipe": "a pipe"}.get(kind, f"descriptor {fd}")


def _path_at(pid: int, address: int) -> str:
    """The path that the process has at this address of its memory."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            # not over the end of a page, behind which there may be nothing
            left = _PAGE_BYTES - address % _PAGE_BYTES
            data = memory.read(min(left, _PATH_BYTES))
    except (OSError, ValueError, OverflowError):
        return "a file"
    path = os.fsdecode(data.partition(b"\0")[0])
    return path if path.isprintable() and path else "a file"


def steal_s() -> float:
    """Processor time that the machine below this one has taken from it since its start."""
    fields = read_text("/proc/stat", 4096).partition("\n")[0].split()
    return int(fields[8]) / TICKS if len(fields) > 8 else 0.0


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
