"""One run while it lasts: pumps, shows, and ends it on time or on a signal.

Every way out leads through the host supervisor, which leaves no process running.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.local.hosts import Hosts
from muster.local.show.progress import Progress, Tail
from muster.local.show.screen import Screen
from muster.local.signals import Signals
from muster.types.values import NamedTuple

if TYPE_CHECKING:
    from muster.local.debugger.desk import Desk
    from muster.local.faults.injector import Injector

TICK_S = 0.1
READ_BYTES = 1 << 16
DRAIN_S = 5.0
PATIENCE_S = 2.0  # so long after SIGKILL another signal is one too many, not a request to give up


class SessionEnd(NamedTuple):
    """Why the run ended before the job did. `by`: "" when it did not; `killed`: by force.
    `abandoned`: the end of what had been killed was not waited for."""

    by: str = ""
    timed_out: bool = False
    killed: bool = False
    abandoned: bool = False


class Timeout(NamedTuple):
    """The time limit of a run.

    One `--timeout` limits all that a run starts. `at`: when it ends, on the monotonic clock.
    """

    seconds: float
    at: float


class HostSession:
    """One run of hosts, from their start to the last exit status.

    `stop_limit_s`: from SIGTERM until SIGKILL to a host. `faults`: who does faults to the job;
    `desk`: who has a rank debugged.
    """

    def __init__(
        self,
        signals: Signals,
        hosts: Hosts,
        progress: Progress,
        tail: Tail,
        screen: Screen,
        timeout: Timeout | None,
        stop_limit_s: float,
        faults: Injector | None = None,
        desk: Desk | None = None,
    ) -> None:
        self._signals = signals
        self._hosts = hosts
        self._progress = progress
        self._tail = tail
        self._screen = screen
        self._stop_limit_s = stop_limit_s
        self._timeout = timeout
        self._faults = faults
        self._desk = desk
        self._kill_at: float | None = None
        self._killed_at = 0.0
        self._streams = {stream.fd: stream for stream in hosts.streams}
        self._up_open = True
        self.ending = SessionEnd()

    def run(self) -> SessionEnd:
        """Returns once every host has ended and all its output is out."""
        drain_until: float | None = None
        while (self._up_open or self._streams) and not self.ending.abandoned:
            self._poll_once()
            now = time.monotonic()
            for event in self._tail.read():
                self._progress.take(event)
            self._screen.show(self._progress, now)
            self._check_times(now)
            self._hear_faults()
            if not self._up_open:
                drain_until = drain_until or now + DRAIN_S
                if now > drain_until:
                    break
        self._end_streams()
        return self.ending

    def _poll_once(self) -> None:
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        if self._up_open:
            poll.register(self._hosts.up, select.POLLIN)
        outlets = {outlet.fd: outlet for outlet in self._screen.outlets if outlet.waiting}
        for fd in outlets:
            poll.register(fd, select.POLLOUT)
        if not any(outlet.full for outlet in outlets.values()):
            for fd in self._streams:
                poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(TICK_S * 1000):
            if fd == self._signals.fd:
                self._signalled(self._signals.take())
            elif fd in self._streams:
                self._read(fd)
            elif fd == self._hosts.up and self._up_open:
                self._up_open = self._hosts.hear()
            elif fd in outlets:
                outlets[fd].drain()

    def _read(self, fd: int) -> None:
        stream = self._streams[fd]
        data = os.read(fd, READ_BYTES)
        if data:
            self._screen.pump.feed(stream, data)
            return
        self._screen.pump.end(stream)
        del self._streams[fd]
        os.close(fd)

    def _end_streams(self) -> None:
        for fd, stream in self._streams.items():
            self._screen.pump.end(stream)
            os.close(fd)
        self._streams.clear()

    def _signalled(self, names: Sequence[str]) -> None:
        for name in names:
            if name == "SIGHUP" and self.ending.by:
                continue  # a terminal that closes says so twice, by its shell and by the kernel
            if self.ending.killed:
                self._signalled_after_kill(name)
            elif self.ending.by:
                self._kill(f"second {name}")
            else:
                self._stop(
                    name,
                    f"{name}: stopping, by force after {self._stop_limit_s:g} s or a second {name}",
                )

    def _signalled_after_kill(self, name: str) -> None:
        late = time.monotonic() > self._killed_at + PATIENCE_S
        if self._hosts.abandonable and late and not self.ending.abandoned:
            self.ending = self.ending._replace(abandoned=True)
            self._screen.say(f"muster local: one more {name}: giving up on the container engine")

    def _check_times(self, now: float) -> None:
        if self._timeout and now > self._timeout.at and not self.ending.by:
            self._stop("timeout", f"timeout after {self._timeout.seconds:g} s: stopping")
            self.ending = self.ending._replace(timed_out=True)
        if self._kill_at is not None and now > self._kill_at and not self.ending.killed:
            self._kill(f"hosts did not end within {self._stop_limit_s:g} s")

    def _hear_faults(self) -> None:
        for other in (self._faults, self._desk):
            while other and other.said:
                self._screen.say(f"muster local: {other.said.popleft()}")
        while self._faults and self._faults.stops:
            spec = self._faults.stops.popleft()
            if not self.ending.by:
                self._stop(f"--fault {spec}", f"stopping, by force after {self._stop_limit_s:g} s")

    def _stop(self, by: str, text: str) -> None:
        self.ending = SessionEnd(by)
        self._kill_at = time.monotonic() + self._stop_limit_s
        self._screen.say(f"muster local: {text}")
        self._hosts.stop()

    def _kill(self, why: str) -> None:
        self.ending = self.ending._replace(killed=True)
        self._killed_at = time.monotonic()
        more = f"; a signal after {PATIENCE_S:g} s more gives up" if self._hosts.abandonable else ""
        self._screen.say(f"muster local: {why}: killing all hosts{more}")
        self._hosts.kill()
