"""A supervised process as its supervisor sees it: a shim and the script below it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.run.base.shortage import shortage
from muster.run.child import rank_shim
from muster.types.files import read_text

if TYPE_CHECKING:
    from muster.run.child.child import Child

REPORT_LIMIT_BYTES = 100
_REPORTS = {b"started": 1, b"signalled": 1, b"failed": 1, b"ended": 1, b"orphan": 2}


class ShimHandle:
    """One shim and its script. `status` is the exit code or minus the signal, once `ended`.

    `sock` must not block. `watch_writes(self, on)` is called when orders begin to wait for a shim
    that takes no more of them, and when none waits any longer.
    """

    def __init__(
        self,
        role: str,
        sock: socket.socket,
        shim_pid: int,
        environ: dict[str, str],
        watch_writes: Callable[[ShimHandle, bool], None],
    ) -> None:
        self.role = role
        self.sock = sock
        self.shim_pid = shim_pid
        self.environ = environ  # what the shim was started with
        self.child: Child | None = None  # what it stands for, once that has been started
        self.pid = 0
        self.pidfd = -1
        self.status: int | None = None
        self.failure = ""  # why it could not be started, and the errno when there is one
        self.failed_errno = 0
        self.lost = False  # another part of this process took its status, which is lost
        self.agent = -1  # what the agent in a rank's Python answers by; -1: there is none
        self.agent_dump = -1  # what its signal handler writes stacks to
        self.debug = ""  # what the agent does for `muster local`: " ", mode, rank and folder
        self._forget: Callable[[int], None] = lambda _fd: None
        self.connected = True
        self.released = False
        self.signalled = False  # SIGTERM has reached the shim, so it was not for `train` alone
        self._inbox = b""
        self._outbox = bytearray()
        self._waits = False
        self._watch_writes = watch_writes

    @property
    def ended(self) -> bool:
        return self.status is not None

    @property
    def has_died(self) -> bool:
        """Whether the script has ended, although its status has not been reported yet."""
        return self.pid != 0 and state_of(self.pid) in ("", "Z")

    @property
    def lost_shim(self) -> bool:
        """Whether the script runs on after its shim ended without being released."""
        return self.pid != 0 and not (self.connected or self.released or self.ended)

    @property
    def lacked(self) -> bool:
        """Whether it could not be started because the machine is short of something."""
        return shortage(self.failed_errno) is not None

    def take_agent(self, agent: int, dump: int, forget: Callable[[int], None]) -> None:
        """Holds a rank's agent from now on. `forget(fd)` is called before one is closed."""
        os.set_blocking(agent, False)
        os.set_blocking(dump, False)
        self.agent, self.agent_dump, self._forget = agent, dump, forget

    def drop_agent(self) -> None:
        """It has ended, or is no rank; may be called twice."""
        ends, self.agent, self.agent_dump = (self.agent, self.agent_dump), -1, -1
        for fd in ends:
            if fd >= 0:
                self._forget(fd)
                os.close(fd)

    def order(self, *fields: bytes) -> None:
        """Gives one order, at once or as soon as the shim takes it, whole and in turn; a shim that
        is gone is noticed by its socket, not here."""
        self._outbox += rank_shim.framed(list(fields))
        self.send_orders()

    def send_orders(self) -> None:
        """Sends what the shim takes now of the orders that wait for it."""
        try:
            while self._outbox:
                del self._outbox[: self.sock.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()
        if self._waits is not bool(self._outbox):
            self._waits = not self._waits
            self._watch_writes(self, self._waits)

    def start(self, argv: Sequence[str], environ: Mapping[str, str], cwd: str) -> None:
        """Tells the shim what to run, and whether its agent's descriptors go with it."""
        entries = [os.fsencode(f"{name}={value}") for name, value in environ.items()]
        if self.agent >= 0:
            entries.append(rank_shim.AGENT + b"=" + os.fsencode(self.debug))
        arguments = [os.fsencode(text) for text in argv]
        count = str(len(arguments)).encode()
        self.order(b"start", os.fsencode(cwd), count, *arguments, *entries)

    def signal(self, number: int, group: bool = False) -> None:
        """To the script alone, or to its whole process group; also when its shim is gone."""
        if self.connected:
            self.order(b"signal", str(int(number)).encode(), b"group" if group else b"script")
        elif self.pidfd >= 0 and not self.ended:
            try:
                signal.pidfd_send_signal(self.pidfd, number)
            except OSError:
                pass

    def kill(self) -> None:
        """SIGKILL to the whole tree below the shim."""
        if self.connected:
            self.order(b"kill")
        else:
            self.signal(signal.SIGKILL)

    def release(self) -> None:
        """The shim ends what is left of its tree and exits 0."""
        self.released = self.released or self.connected
        self.order(b"release")

    def messages(self) -> list[tuple[bytes, list[int]]] | None:
        """Complete messages that have arrived, or None when the shim is gone.

        Raises ValueError for what no shim says.
        """
        closed = False
        try:
            data = self.sock.recv(65536)
            closed = not data
            self._inbox += data
        except BlockingIOError:
            pass
        except OSError:
            closed = True
        found = []
        while len(self._inbox) >= 4:
            size = int.from_bytes(self._inbox[:4], "big")
            if size > REPORT_LIMIT_BYTES:
                raise ValueError(f"a message of {size} bytes")
            if len(self._inbox) < 4 + size:
                break
            found.append(_report(self._inbox[4 : 4 + size]))
            self._inbox = self._inbox[4 + size :]
        return None if closed and not found else found


def state_of(pid: int) -> str:
    """The kernel's letter for what the process does (D: cannot be ended now), "" when gone."""
    return read_text(f"/proc/{pid}/stat").rpartition(") ")[2][:1]


def open_pidfd(pid: int) -> int:
    """A descriptor of the process, or -1 when it has ended or the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def _report(data: bytes) -> tuple[bytes, list[int]]:
    """One report of a shim. Raises ValueError for anything else."""
    kind, *fields = data.split(b"\0")
    numbers = [int(field) for field in fields]
    if _REPORTS.get(kind) != len(numbers) or any(abs(number) >= 1 << 31 for number in numbers):
        raise ValueError(f"no report of a shim: {data!r}")
    return kind, numbers
