"""The host supervisor, parent of the hosts of one run: `python -m muster.local.supervisor UP`.

Orders arrive on stdin, reports leave on descriptor UP. It has one thread and a session of its
own, and whatever it started ends with it:

* As plain processes: it is a child subreaper, so orphans of its hosts stay below it
  and are killed once they have ended, or once stdin closes because `muster local` is gone.
* In namespaces: everything lives in one PID namespace, which dies with its init,
  that with this process, this with `muster local`.
* As containers: they are the engine's, and removed before this process ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

from muster.local.backends.netns import kernel
from muster.local.orders import KILL, STOP, HostOrder, Orders, orders_from_line, to_line
from muster.run.child.rank_shim import descendants, end_tree, reap

KILL_LIMIT_S = 10.0
TIDY_S = 2.0  # for what is left once the hosts are killed
CATCH_LIMIT_S = 2.0
POLL_MS = 5


def main() -> int:
    """Runs the hosts of one run; returns the exit code. Errors have been reported."""
    up = int(sys.argv[1])
    line = read_line(0)
    if not line:
        return 1
    orders = orders_from_line(line)
    for fd in (up, orders.lock, *(f for host in orders.hosts for f in (host.output, host.errors))):
        if fd >= 0:
            os.set_inheritable(fd, False)
    try:
        start: Callable[[Orders, int], int]
        start = import_module(f"muster.local.backends.{orders.backend}.start").start
        return start(orders, up)
    except OSError as error:
        report(up, "error", f"{error.filename or 'start'}: {error.strerror}")
        return 1


def read_line(fd: int) -> bytes:
    """One line and not a byte more, since words follow; b"" when the other end is gone."""
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = os.read(fd, 1)
        if not piece:
            return b""
        data += piece
    return bytes(data)


def report(up: int, *fields: object) -> None:
    """Tells `muster local`; when that is gone, stdin says so."""
    try:
        os.write(up, to_line(fields))
    except OSError:
        pass


def start_host(order: HostOrder, parent: int, prepare: Callable[[], None] | None = None) -> int:
    """Forks one host that dies with this process; `prepare` runs in it before its program."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        kernel.die_with(parent)
        if order.group:
            from muster.local.memory import join

            join(order.group)
        null = os.open(os.devnull, os.O_RDONLY)
        if prepare:
            prepare()
        if not order.argv:
            os._exit(0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for source, target in ((null, 0), (order.output, 1), (order.errors, 2)):
            os.dup2(source, target)
        os.chdir(order.cwd)
        os.execve(order.argv[0], order.argv, dict(order.environ))
    except OSError as error:
        os.write(order.errors, f"muster local: {order.name} did not start: {error}\n".encode())
    finally:
        os._exit(127)


def hold(orders: Orders, up: int, hosts: Mapping[int, int]) -> int:
    """Watches the hosts (pid -> host index) until all have ended; then nothing is left below."""
    for order in orders.hosts:
        os.close(order.output)
        os.close(order.errors)
    report(up, "ready")
    _Holder(up, dict(hosts)).watch()
    return 0


class _Holder:
    def __init__(self, up: int, running: dict[int, int]) -> None:
        self._up = up
        self._running = running
        self._unsignalled: set[int] = set()  # to be stopped as soon as they can receive it
        self._told_by = 0.0
        self._wake, wake_up = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_up, False)
        signal.set_wakeup_fd(wake_up, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def watch(self) -> None:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        reap(self._ended)
        while self._running:
            ready = poll.poll(POLL_MS if self._unsignalled else None)
            for fd, _ in ready:
                if fd == 0:
                    self._obey(os.read(0, 1))
                else:
                    os.read(self._wake, 4096)
            reap(self._ended)
            self._stop_those_that_listen()
        self._kill_all()

    def _obey(self, word: bytes) -> None:
        if word == STOP:
            self._unsignalled = set(self._running)
            self._told_by = time.monotonic() + CATCH_LIMIT_S
        elif word in (KILL, b""):
            self._kill_all()

    def _stop_those_that_listen(self) -> None:
        """SIGTERM to a host once it catches it: PID 1 of a namespace would never see it before."""
        late = time.monotonic() > self._told_by
        for pid in self._unsignalled & self._running.keys():
            if late or catches_sigterm(pid):
                self._unsignalled.discard(pid)
                os.kill(pid, signal.SIGTERM)
        self._unsignalled &= self._running.keys()

    def _ended(self, pid: int, code: int) -> None:
        if (host_index := self._running.pop(pid, None)) is not None:
            report(self._up, "ended", host_index, code)

    def _kill_all(self) -> None:
        """The hosts first: what waits above the ranks of one that was killed then ends those and
        tidies up."""
        late_s = time.monotonic() + TIDY_S

        def left() -> Iterable[int]:
            return list(self._running) if time.monotonic() < late_s else descendants(os.getpid())

        end_tree(lambda: reap(self._ended), left, KILL_LIMIT_S)
        for host_index in self._running.values():
            report(self._up, "ended", host_index, -signal.SIGKILL)
        self._running.clear()


def catches_sigterm(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM by now."""
    return bool(kernel.bits_of(pid, "SigCgt") >> (signal.SIGTERM - 1) & 1)


if __name__ == "__main__":
    os._exit(main())
