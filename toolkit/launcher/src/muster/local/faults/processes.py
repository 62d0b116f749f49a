"""Faults of hosts that are processes of this machine, in namespaces or not.

Signals go to processes of this run alone: a process is held by a descriptor, then proved to be
below the run's host supervisor, then signalled through that descriptor, so that a pid that was
given to somebody else meanwhile is never hit.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from muster.local.faults.means import Means, NotLandedError, Target
from muster.local.orders import Orders
from muster.local.paths import ML
from muster.run.base import procfs
from muster.run.child.private_folder import remove_abandoned
from muster.run.child.rank_shim import descendants
from muster.types.files import find_program
from muster.types.values import NamedTuple

MARK = "MUSTER_INSTALL_TARGET"
LIMIT_S = 5.0  # for a tree to stand still, or to be gone
POLL_S = 0.005
TOOL_LIMIT_S = 5.0
NOBODY = "02:00:00:00:00:00"  # an address of the link layer that no host has
FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")


class ProcessMeans(Means):
    """`supervisor`: pid of the run's host supervisor, which had these `orders`."""

    def __init__(self, supervisor: int, orders: Orders) -> None:
        self._supervisor = supervisor
        # host -> an entry of the environment of its `train` that no other host has
        self._marks = {one.name: f"{MARK}={one.environ[MARK]}".encode() for one in orders.hosts}

    def kill(self, target: Target) -> None:
        root = self._root(target)
        with self._held(root) as fd:
            if target.rank is None:
                self._unplug(root)
                for pid in self._stand_still(root):  # nobody sees the others go
                    self._signal(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            if not _has_ended(fd, LIMIT_S):  # with all its threads
                raise NotLandedError(f"{target.in_words()} outlived SIGKILL by {LIMIT_S:g} s")
        if target.rank is None:
            self._tidy()

    def freeze(self, target: Target) -> None:
        root = self._root(target)
        if any(state not in "TZ" for state in map(_state, self._stand_still(root))):
            self.thaw(target)
            raise NotLandedError(f"{target.in_words()} did not stand still within {LIMIT_S:g} s")

    def thaw(self, target: Target) -> None:
        try:
            root = self._root(target)
        except NotLandedError:
            return  # it has ended
        for pid in reversed([root, *descendants(root)]):  # who waits for others runs last
            self._signal(pid, signal.SIGCONT)

    def _stand_still(self, root: int) -> list[int]:
        """Stops the root and all below it, those too that are born meanwhile; gives the tree."""
        limit_s = time.monotonic() + LIMIT_S
        while True:
            tree = [root, *descendants(root)]
            moving = [pid for pid in tree if _state(pid) not in "TZ"]
            for pid in moving:
                self._signal(pid, signal.SIGSTOP)
            if not moving or time.monotonic() > limit_s:
                return tree
            time.sleep(POLL_S / 5)

    def _root(self, target: Target) -> int:
        """The process above all others of the target, as this process counts."""
        mine = descendants(self._supervisor)
        if target.rank is None:
            mark = self._marks[target.host]
            found = [pid for pid in mine if mark in _environ(pid) and _state(pid) != "Z"]
        else:
            found = [pid for pid in mine if _is_known_as(pid, target) and _state(pid) != "Z"]
        if not found:
            raise NotLandedError(f"{target.in_words()} had ended")
        return found[0]  # parents come before their children

    def _is_ours(self, pid: int) -> bool:
        """Whether a living process has this number and is below the run's host supervisor."""
        above = pid
        while above > 1 and above != self._supervisor:
            above = _parent(above)
        return above == self._supervisor and _state(pid) not in "Z"

    @contextmanager
    def _held(self, pid: int) -> Iterator[int]:
        """A descriptor of a process that is ours. Raises NotLandedError."""
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            raise NotLandedError(f"process {pid} cannot be held: {error.strerror}") from None
        try:
            if not self._is_ours(pid):
                raise NotLandedError(f"process {pid} had ended")
            yield fd
        except OSError as error:
            raise NotLandedError(f"process {pid} cannot be signalled: {error.strerror}") from None
        finally:
            os.close(fd)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """To a process of a tree; one that has ended is passed over."""
        try:
            with self._held(pid) as fd:
                signal.pidfd_send_signal(fd, number)
        except NotLandedError:
            pass

    def _unplug(self, root: int) -> None:
        """What else a machine without power does not do any more; plain processes have nothing."""

    def _tidy(self) -> None:
        """What a machine would have taken with it: its private files lie in this one's folders, and
        nobody is left to remove them."""
        for parent in dict.fromkeys((os.environ.get("TMPDIR", "/tmp"), "/tmp")):
            with suppress(OSError):
                remove_abandoned(parent)


class NamespaceMeans(ProcessMeans):
    """Hosts with a network of their own, behind `interface`. A cut gives every packet for the
    other host to an address of the link layer that nobody has: it is lost without an answer."""

    def __init__(self, supervisor: int, orders: Orders, interface: str) -> None:
        super().__init__(supervisor, orders)
        self._addresses = {host.name: host.address for host in orders.hosts}
        self._interface = interface

    def cut(self, one: str, other: str) -> None:
        done = []
        try:
            for host, peer in ((one, other), (other, one)):
                entry = (self._addresses[peer], "lladdr", NOBODY, "dev", self._interface)
                self._ip(self._root(Target(host)), "neigh", "replace", *entry, "nud", "permanent")
                done.append(host)
        except NotLandedError:
            if done:
                self._heal_one(one, other)
            raise

    def heal(self, one: str, other: str) -> None:
        self._heal_one(one, other)
        self._heal_one(other, one)

    def _heal_one(self, host: str, peer: str) -> None:
        try:
            entry = (self._addresses[peer], "dev", self._interface)
            self._ip(self._root(Target(host)), "neigh", "del", *entry)
        except NotLandedError:
            pass  # the host has ended, and its network with it

    def _tidy(self) -> None:
        """Its private files went with its own /tmp."""

    def _unplug(self, root: int) -> None:
        """Its connections do not end, they fall silent."""
        try:
            self._ip(root, "link", "set", self._interface, "down")
        except NotLandedError:
            pass  # then its kernel takes leave of its peers, as that of a host whose `train` dies

    def fill(self, host: str) -> None:
        """Each disk is memory of a given size, which is made as small as what it holds."""
        root, limit_s, why = self._root(Target(host)), time.monotonic() + LIMIT_S, "no reason"
        for place in _disks():
            while (room := _room(root, place)).free > mmap.PAGESIZE:
                if time.monotonic() > limit_s:
                    raise NotLandedError(f"{room.free} bytes of {place} stay free: {why}")
                try:
                    self._resize(root, place, str(max(mmap.PAGESIZE, room.used)))
                except NotLandedError as error:  # more may have been written meanwhile
                    why = str(error)
                    time.sleep(POLL_S)

    def empty(self, host: str) -> None:
        root = self._root(Target(host))
        for place in _disks():
            self._resize(root, place, "50%")

    def _resize(self, root: int, place: str, size: str) -> None:
        self._tool(root, "-m", "mount", "-o", f"remount,size={size}", place)

    def _ip(self, root: int, *words: str) -> None:
        """`ip` in the network of a host. Raises NotLandedError with its words."""
        self._tool(root, "-n", "ip", *words)

    def _tool(self, root: int, where: str, name: str, *words: str) -> None:
        """A program of this machine in one namespace of a host. Raises NotLandedError."""
        enter, program = find_program(FOLDERS, "nsenter"), find_program(FOLDERS, name)
        if not enter or not program:
            packages = "util-linux iproute2"
            raise NotLandedError(f"nsenter and {name} are needed (apt-get install {packages})")
        argv = [enter, "-t", str(root), where]
        if _namespace(root, "user") != _namespace(os.getpid(), "user"):
            argv += ["-U", "--preserve-credentials"]
        if not self._is_ours(root):
            raise NotLandedError("the host had ended")
        try:
            done = subprocess.run(
                [*argv, program, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TOOL_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotLandedError(f"{name} {' '.join(words)}: {error}") from None
        if done.returncode:
            raise NotLandedError(f"{name} {' '.join(words)}: {done.stderr.strip()}")


class _Room(NamedTuple):
    """Bytes of a file system."""

    used: int
    free: int


def _disks() -> list[str]:
    """Of a host: one for what its job saves, and its temporary folders, as `rootfs` makes them."""
    real = os.path.isdir("/var/tmp") and not os.path.islink("/var/tmp")
    return [f"{ML}/model", "/tmp", *(["/var/tmp"] if real else [])]


def _room(root: int, place: str) -> _Room:
    """Of what the host has there. Raises NotLandedError."""
    try:
        found = os.statvfs(f"/proc/{root}/root{place}")
    except OSError as error:
        raise NotLandedError(f"{place} cannot be read: {error.strerror}") from None
    return _Room((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_bfree * found.f_frsize)


def _has_ended(fd: int, limit_s: float) -> bool:
    """Whether the process is gone, or only waits to be reaped."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _state(pid: int) -> str:
    """The letter of its state, Z also when it is gone."""
    one = procfs.stat(pid)
    return "Z" if one is None else one.state


def _parent(pid: int) -> int:
    one = procfs.stat(pid)
    return 0 if one is None else one.parent


def _environ(pid: int) -> frozenset[bytes]:
    """With which it was started."""
    return frozenset(_read(pid, "environ").split(b"\0"))


def _is_known_as(pid: int, target: Target) -> bool:
    """Whether the process is the rank's script: its host counts in a namespace of its own."""
    own = [pid, *procfs.counted(pid)][-1]
    return own == target.pid and target.pid_namespace in (None, _namespace(pid, "pid"))


def _namespace(pid: int, kind: str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    except OSError:
        return None
