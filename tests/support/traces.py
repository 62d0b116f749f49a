"""What a job leaves on the machine: processes, listening sockets, files. Cheap to ask for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

LISTEN = "0A"
WILDCARDS = ("00000000", "0" * 32)
OURS = ".muster-"  # begins the name of every file that is muster's alone
Tree = Mapping[str, tuple[int, int, int]]


class Process(NamedTuple):
    """One line of the process table. `began`: clock ticks, which tell a reused pid apart."""

    pid: int
    parent: int
    session: int
    state: str
    began: int

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.began


def processes() -> dict[int, Process]:
    """Every process of this machine by pid, zombies included."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    words = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            pid, state = int(name), words[0].decode()
            found[pid] = Process(pid, int(words[1]), int(words[3]), state, int(words[19]))
    return found


def carries(pid: int, mark: bytes) -> bool:
    """Whether the process was started with `mark` (`NAME=value`) in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:
        return False


def describe(pid: int) -> str:
    """The process's pid and command line, for a person."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ")
    except OSError:
        return str(pid)
    return f"{pid}: {command.decode(errors='replace').strip()[:200]}"


class Trace:
    """The processes and sockets of one job, known by a mark in their environment.

    What `look` has seen once is known later without its mark: a process that cleaned its
    environment, a zombie (which has none), a socket that was handed on.
    """

    def __init__(self, name: str, value: str) -> None:
        self._mark = f"{name}={value}".encode()
        self._seen: set[tuple[int, int]] = set()
        self._sockets: dict[str, str] = {}

    def look(self) -> list[Process]:
        """The job's live processes and all below them; remembers them and what they listen on."""
        table = processes()
        marked = {p.pid for p in table.values() if p.state != "Z" and self._is_ours(p)}
        mine = list(_with_descendants(table, marked))
        self._seen |= {process.key for process in mine}
        inodes = {inode for process in mine for inode in _socket_inodes(process.pid)}
        self._sockets |= {i: where for i, where in listening().items() if i in inodes}
        return [process for process in mine if process.state != "Z"]

    def alive(self) -> list[int]:
        """The pids that carry the mark or were known to be of the job; no zombie."""
        return [p.pid for p in processes().values() if p.state != "Z" and self._is_ours(p)]

    def zombies(self) -> list[int]:
        """Processes of the job that ended and that nobody reaped.

        One that init has to reap is the machine's, not ours.
        """
        return [
            p.pid
            for p in processes().values()
            if p.state == "Z" and p.parent != 1 and p.key in self._seen
        ]

    def open_sockets(self, ports: Iterable[int], addresses: Iterable[str]) -> list[str]:
        """What still listens of all the job listened on, or on one of the job's own ports."""
        wanted = {f"{port:04X}" for port in ports}
        homes = {_hexadecimal(address) for address in addresses} | set(WILDCARDS)
        found = []
        for inode, where in listening().items():
            address, _, port = where.partition(":")
            if self._sockets.get(inode) == where or (port in wanted and address in homes):
                found.append(f"port {int(port, 16)}")
        return found

    def _is_ours(self, process: Process) -> bool:
        return process.key in self._seen or carries(process.pid, self._mark)


def _with_descendants(table: Mapping[int, Process], roots: set[int]) -> Iterable[Process]:
    below: dict[int, list[int]] = {}
    for process in table.values():
        below.setdefault(process.parent, []).append(process.pid)
    queue, done = list(roots), set()
    while queue:
        pid = queue.pop()
        if pid not in done:
            done.add(pid)
            queue += below.get(pid, [])
            yield table[pid]


def _socket_inodes(pid: int) -> set[str]:
    """Inodes of the sockets that a process holds."""
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass  # it ended
    return found


def listening() -> dict[str, str]:
    """Inode -> `ADDRESS:PORT` in the kernel's hexadecimal, of every listening TCP socket."""
    found = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(path).read_text().splitlines()[1:]
        except OSError:
            continue
        fields = (line.split() for line in lines)
        found.update({f[9]: f[1] for f in fields if f[3] == LISTEN})
    return found


def _hexadecimal(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def tree(folder: Path) -> Tree:
    """Every file below the folder: its size, time and inode. Mounts in it are left alone.

    A test may have mounted a disk there that answers slowly, or never.
    """
    home, mounts = os.path.realpath(folder), _mount_points()
    found: dict[str, tuple[int, int, int]] = {}
    queue = [str(folder)]
    while queue:
        try:
            entries = list(os.scandir(queue.pop()))
        except OSError:
            continue
        for entry in entries:
            key = os.path.relpath(entry.path, folder)
            if f"{home}/{key}" in mounts:
                continue
            if entry.is_dir(follow_symlinks=False):
                found[key] = (-1, 0, 0)
                queue.append(entry.path)
                continue
            try:
                stat = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            found[key] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return found


def _mount_points() -> frozenset[str]:
    lines = Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    return frozenset(line.split(" ")[1] for line in lines)


def shared_memory() -> frozenset[str]:
    """The names in /dev/shm that a process of ours could have made; none of pushes of images."""
    try:
        names = os.listdir("/dev/shm")
    except OSError:
        return frozenset()
    ours = (name for name in names if name.startswith("muster-"))
    return frozenset(name for name in ours if not name.startswith("muster-push-"))


def left_in_shared_memory(before: frozenset[str]) -> frozenset[str]:
    """What has come since `before` and is no job's that still runs: the pid of its maker is part of
    the name."""
    came = shared_memory() - before
    return frozenset(name for name in came if not os.path.exists(f"/proc/{name.split('-')[1]}"))
