"""Supervised processes of this host: every one of them runs below a waiting shim.

`ShimPool` starts shims, accepts their registrations on a private socket, and turns what they say
into calls. It never waits. Promises: S18.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from muster.run.base.loop import Loop
from muster.run.base.reaper import reap
from muster.run.base.shortage import not_started
from muster.run.child import rank_shim
from muster.run.child.private_folder import ScratchFolders, open_private_folder
from muster.run.child.shim_handle import ShimHandle, open_pidfd
from muster.types.errors import InternalError, LaunchError
from muster.types.values import NamedTuple

SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_shim_main.py")
SPARE = "spare"
REST_S = 0.1
SPARE_ENDS_S = 1.0  # once killed; only one in uninterruptible sleep takes longer
ORPHAN_S = 2.0  # until the status of an orphan must have been reported
MESSAGE_LIMIT_BYTES = 64 << 20
AGENTS_FROM_FILES = 256  # under a lower limit what there is is for ranks
FILES_PER_RANK = 10  # with its agent's two, and some to spare
CLOEXEC = 0x40000000  # MSG_CMSG_CLOEXEC, which the socket module has from 3.11 on

NEVER_STARTED = (
    "a process that muster needs ended before it could start anything",
    "look at the limits of memory and processes, and above for what it wrote",
)


class ShimPool:
    """Starts and watches supervised processes.

    One spare shim is started early, so that its start overlaps with reading and staging: a trivial
    job is a tenth faster for it. The first `spawn` uses it.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.all: list[ShimHandle] = []
        self.shims: dict[int, Started] = {}  # by the pid of the shim
        self._others: Owner | None = None  # of the shims that a launcher starts
        self._changed: Callable[[ShimHandle], None] = lambda _: None
        self._asked: Callable[[tuple[str, ...]], str] = _refuse
        self._spare = _Spare()
        self._pending: set[_Hello] = set()
        self._token = os.urandom(16).hex()
        self.folder, self._listener = open_private_folder()
        self.path = os.path.join(self.folder, rank_shim.SOCKET)
        self.scratch = ScratchFolders(self.folder)
        loop.watch(self._listener.fileno(), self._accept)

    def serve(
        self,
        others: Owner,
        changed: Callable[[ShimHandle], None],
        asked: Callable[[tuple[str, ...]], str] | None = None,
    ) -> None:
        """From now on calls, on the loop's thread: `changed(handle)` when a script started, failed
        to start, or ended, and when its shim is gone; `asked(words)` when a launcher's agent wants
        something started on another host, which answers "" or why it is refused (all is, without).
        `others`: the owner of the shims that a launcher starts.
        """
        self._others = others
        self._changed = changed
        self._asked = asked or _refuse

    @staticmethod
    def room_for_agents(ranks: int = 0) -> bool:
        """Whether the limit of open files leaves room for the agents of so many more ranks."""
        limit = os.sysconf("SC_OPEN_MAX")
        if 0 <= limit < AGENTS_FROM_FILES:
            return False
        needed = len(os.listdir("/proc/self/fd")) + FILES_PER_RANK * ranks if ranks else 0
        return limit < 0 or needed <= limit

    @property
    def variable(self) -> str:
        """The value of MUSTER_SHIM for a process whose children are to be shims."""
        return f"{self.path} {self._token}"

    def warm_up(self, environ: Mapping[str, str]) -> None:
        """Starts the spare; a machine that cannot fork says so when a process is needed."""
        try:
            self._spare.pid = self._fork(SPARE, environ, None)
        except LaunchError:
            pass

    def spawn(self, role: str, environ: Mapping[str, str], owner: Owner) -> None:
        """Starts a shim, whose owner is called once it is there. Raises LaunchError when the fork
        fails."""
        pid, self._spare.pid = self._spare.pid, 0
        arrived = self._spare.arrived
        if not pid or (arrived is not None and arrived[0].ended):
            self._fork(role, environ, owner)
            return
        self.shims[pid] = Started(role, owner)
        self._spare.role = role
        self._spare.arrived = None
        if arrived is not None:
            arrived[0].role = role
            self.loop.post(lambda: owner.registered(*arrived))

    def release_spare(self) -> None:
        """Ends the spare: it is not needed any more."""
        pid, self._spare.pid = self._spare.pid, 0
        arrived, self._spare.arrived = self._spare.arrived, None
        if arrived is not None:
            turn_away(*arrived)
        if pid in self.shims:
            try:
                os.kill(pid, signal.SIGKILL)  # it has no script, and a stopped one obeys no order
            except ProcessLookupError:
                pass  # where SIGCHLD is ignored the kernel has reaped it already

    def close(self) -> None:
        """Removes the socket and its folder; open shims see their supervisor go."""
        spare = self._spare.pid
        self.release_spare()  # first: a spare that cannot connect writes a line
        self.loop.forget(self._listener.fileno())
        self._listener.close()
        if spare in self.shims:
            reap(spare, SPARE_ENDS_S)
        while self._pending:
            pending = self._pending.pop()
            self.loop.forget(pending.sock.fileno())
            pending.drop()
        for handle in self.all:
            self._disconnect(handle)
            handle.drop_agent()
        self.scratch.remove()

    def _fork(self, role: str, environ: Mapping[str, str], owner: Owner | None) -> int:
        argv = [sys.executable, "-I", "-S", SHIM, role]
        try:
            pid = os.posix_spawn(
                sys.executable,
                argv,
                {**environ, "MUSTER_SHIM": self.variable},
                setsid=True,
                setsigmask=(),  # this process may block stop signals at this moment
            )
        except OSError as error:
            raise not_started(f"the process for {role}", error.errno or 0) from error
        self.shims[pid] = Started(role, owner)
        return pid

    def sessions_without_shim(self) -> set[int]:
        """The sessions of scripts whose shim was gone before it was released."""
        return {one.pid for one in self.all if one.pid and not one.connected and not one.released}

    def shim_ended(self, pid: int) -> None:
        """Forgets a shim that was started here; its owner is called if it never registered."""
        started = self.shims.pop(pid, None)
        if pid == self._spare.pid:
            self._spare.pid = 0
        if started is not None and not any(handle.shim_pid == pid for handle in self.all):
            owner = started.owner or self._others
            if owner is not None:
                owner.exited_before_register(started.role)

    def adopted(self, pid: int, status: int) -> bool:
        """An orphan ended: its status counts when it is a script that lost its shim."""
        for handle in self.all:
            if handle.pid == pid and not handle.ended:
                self._end(handle, status)
                return True
        return False

    def _accept(self, _events: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: it stays readable, and would take all the time
            self.loop.forget(self._listener.fileno())
            self.loop.after(REST_S, self._accept_again)
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("3i", credentials)
        if uid != os.getuid():
            sock.close()
            return
        # The hello is sent right after the connect and is one message: read it when it is there.
        sock.setblocking(False)
        pending = _Hello(sock, pid)
        self._pending.add(pending)
        self.loop.watch(sock.fileno(), lambda _events: self._hear_hello(pending))

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self.loop.watch(self._listener.fileno(), self._accept)

    def _hear_hello(self, pending: _Hello) -> None:
        fields = pending.read()
        if fields is None:
            return
        self._pending.remove(pending)
        self.loop.forget(pending.sock.fileno())
        if fields[:2] == [b"ask", self._token.encode()]:
            self._answer(pending, tuple(os.fsdecode(field) for field in fields[2:]))
            return
        shim = len(fields) >= 4 and fields[0] == b"hello" and len(pending.descriptors) >= 2
        if not shim or fields[2] != self._token.encode():
            pending.drop()
            return
        entries = (os.fsdecode(entry).partition("=") for entry in fields[4:])
        environ = {name: value for name, _, value in entries}
        role = os.fsdecode(fields[1])
        handle = ShimHandle(role, pending.sock, pending.pid, environ, self._listen_to)
        self.all.append(handle)
        self._listen_to(handle, False)
        out_fd, err_fd, *agent = pending.descriptors
        if len(agent) == 2:
            handle.take_agent(agent[0], agent[1], self.loop.forget)
        if not self.room_for_agents():
            handle.drop_agent()
        arrived = (handle, out_fd, err_fd)
        if role == SPARE and not self._spare.role:
            self._spare.arrived = arrived
            return
        if role == SPARE:
            handle.role = self._spare.role
        started = self.shims.get(pending.pid)
        owner = (started and started.owner) or self._others
        (owner.registered if owner is not None else turn_away)(*arrived)

    def _answer(self, pending: _Hello, words: tuple[str, ...]) -> None:
        refusal = self._asked(words)
        try:
            pending.sock.sendall(refusal.encode("utf-8", "replace") or b"\0")
        except OSError:
            pass  # it did not wait
        pending.drop()

    def _listen_to(self, handle: ShimHandle, orders_wait: bool) -> None:
        if handle.connected:
            fd = handle.sock.fileno()
            self.loop.watch(fd, lambda _events: self._hear(handle), write=orders_wait)

    def _hear(self, handle: ShimHandle) -> None:
        handle.send_orders()
        try:
            messages = handle.messages()
        except ValueError:
            messages = None
        if messages is None:
            self._drop(handle)
            return
        for kind, numbers in messages:
            if kind == b"started":
                handle.pid = numbers[0]
                handle.pidfd = open_pidfd(handle.pid)
                self._changed(handle)
            elif kind == b"failed":
                handle.failed_errno = numbers[0]
                handle.failure = os.strerror(numbers[0])
                self._end(handle, 126 if numbers[0] == 13 else 127)
            elif kind == b"ended":
                self._end(handle, numbers[0])
            elif kind == b"signalled":
                handle.signalled = True
            elif kind == b"orphan":
                self.adopted(numbers[0], numbers[1])

    def _end(self, handle: ShimHandle, status: int) -> None:
        if handle.ended:
            return
        handle.status = status
        handle.drop_agent()
        self._changed(handle)

    def _drop(self, handle: ShimHandle) -> None:
        """The shim is gone: its work is done, or it was killed and its script runs on."""
        if not handle.connected:
            return
        self._disconnect(handle)
        if not handle.ended and not handle.pid:
            handle.failure = "the process that was to start it is gone"
            self._end(handle, 127)
            return
        if not handle.ended and handle.pidfd >= 0:
            self.loop.watch(handle.pidfd, lambda _events: self._orphan_ended(handle))
        self._changed(handle)

    def _orphan_ended(self, handle: ShimHandle) -> None:
        """The process that adopted the script reports its status in a moment; a status that is
        never reported is a defect, not a success."""
        self.loop.forget(handle.pidfd)
        os.close(handle.pidfd)
        handle.pidfd = -1
        self.loop.after(ORPHAN_S, lambda: self._lose(handle))

    def _lose(self, handle: ShimHandle) -> None:
        if not handle.ended:
            handle.lost = True
            self._end(handle, InternalError.exit_code)

    def _disconnect(self, handle: ShimHandle) -> None:
        if not handle.connected:
            return
        handle.connected = False
        self.loop.forget(handle.sock.fileno())
        handle.sock.close()
        if handle.pidfd >= 0 and handle.ended:
            os.close(handle.pidfd)
            handle.pidfd = -1


class _Spare:
    """The shim that was started before one was needed.

    `pid`: 0 when there is none, or none any more; `role`: what it was taken for; `arrived`: the
    shim and its streams while it waits for somebody to need it.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.role = ""
        self.arrived: tuple[ShimHandle, int, int] | None = None


def turn_away(handle: ShimHandle, out_fd: int, err_fd: int) -> None:
    """Releases a shim that registered but is not needed."""
    os.close(out_fd)
    os.close(err_fd)
    handle.drop_agent()
    handle.release()


class Owner(Protocol):
    """What shims are started for."""

    def registered(self, handle: ShimHandle, out_fd: int, err_fd: int) -> None:
        """The shim is there and waits for its order; its script's output comes from these."""

    def exited_before_register(self, role: str) -> None:
        """The shim ended before that."""


class Started(NamedTuple):
    """A shim that was started here; the spare has no owner before it is needed."""

    role: str
    owner: Owner | None


def _refuse(words: tuple[str, ...]) -> str:
    return "nothing was planned yet"


class _Hello:
    """A connection that has not said who it is yet."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.descriptors: list[int] = []  # of output and errors, and of the agent if it has one
        self._data = b""

    def read(self) -> list[bytes] | None:
        """The fields of the hello once it is whole, [] when the peer is gone, else None."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.sock, 65536, 4, CLOEXEC)
        except BlockingIOError:
            return None
        except OSError:
            return []
        # where this process has no room for all, the kernel passes the first ones
        taken = 0 if self.descriptors or len(descriptors) < 2 else len(descriptors) // 2 * 2
        self.descriptors += descriptors[:taken]
        for fd in descriptors[taken:]:
            os.close(fd)
        self._data += data
        size = int.from_bytes(self._data[:4], "big")
        if not data or size > MESSAGE_LIMIT_BYTES:
            return []
        if len(self._data) < 4 or len(self._data) < 4 + size:
            return None
        return self._data[4 : 4 + size].split(b"\0")

    def drop(self) -> None:
        for fd in self.descriptors:
            os.close(fd)
        self.sock.close()
