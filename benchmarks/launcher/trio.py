"""A real job of three hosts that is broken in some way: its ranks write down when they learn of it.

The hosts are `train` processes on loopback addresses with the default time limits. All processes
of a machine share one clock, so moments of different hosts can be compared.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.launcher.support.cluster import FAST, Cluster
from tests.support.traces import Process, processes
from tests.support.waiting import wait_until

HOSTS = ("algo-1", "algo-2", "algo-3")
_FOLDER, _STUBBORN = "BENCH_FOLDER", "BENCH_STUBBORN"
_GO, _READY, _TOLD, _FAILED = "go", "ready", "told", "failed"
_START_S = 60.0
_SCRIPT = f"""\
import os, signal, sys, time
folder, me = os.environ["{_FOLDER}"], os.environ["SM_CURRENT_HOST"]
def write(what):
    now = time.monotonic()
    path = os.path.join(folder, me + "." + what)
    with open(path + ".part", "w") as file:
        file.write(repr(now))
    os.rename(path + ".part", path)
def told(*_):
    write("{_TOLD}")
    if not os.environ["{_STUBBORN}"]:
        sys.exit(1)
signal.signal(signal.SIGTERM, told)
write("{_READY}")
go = os.path.join(folder, "{_GO}." + me)
while not os.path.exists(go):
    time.sleep(0.002)
write("{_FAILED}")
sys.exit(7)
"""


class Trio:
    """Three hosts whose ranks wait. `stubborn`: they go on after SIGTERM."""

    def __init__(self, folder: Path, stubborn: bool) -> None:
        self._folder = folder
        folder.mkdir()
        given = {_FOLDER: str(folder), _STUBBORN: "1" if stubborn else ""}
        self.cluster = Cluster(folder, _SCRIPT, hosts=len(HOSTS), environ=given)
        for name in FAST:
            del self.cluster.environ[name]

    def start(self) -> None:
        """Returns when every rank runs. Raises AssertionError with all that was written."""
        self.cluster.start()
        for host in HOSTS:
            self._when(host, _READY, _START_S)
        self.cluster.trace.look()

    def fail(self, host: str, limit_s: float) -> float:
        """Lets the rank of one host exit with 7; seconds until the ranks of all others had the
        signal."""
        (self._folder / f"{_GO}.{host}").touch()
        told = max(self._when(other, _TOLD, limit_s) for other in HOSTS if other != host)
        return told - self._when(host, _FAILED, limit_s)

    def told_s(self, host: str) -> float:
        """When the rank of a host got the signal. Raises AssertionError when it did not."""
        return self._when(host, _TOLD, 0)

    def strike(self, host: str, number: int) -> float:
        """Sends all processes of a host SIGSTOP or SIGKILL, `train` first; the moment before.
        Raises AssertionError when one goes on."""
        pids = _family(self.cluster.processes[host].pid)
        assert len(pids) >= 3, f"{host} has no more than {pids}"  # train, a shim, a rank
        began_s = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):  # a shim ends with its `train`
                os.kill(pid, number)
        states = "T" if number == signal.SIGSTOP else "Z"
        wait_until(lambda: _states(pids) <= {states}, 5, f"{host} goes on")
        return began_s

    def ended_s(self, host: str, limit_s: float) -> float:
        """When `train` of a host ended; waits for it."""
        process = self.cluster.processes[host]
        wait_until(lambda: process.poll() is not None, limit_s, f"{host} has not ended")
        return time.monotonic()

    def _when(self, host: str, what: str, limit_s: float) -> float:
        path = self._folder / f"{host}.{what}"
        wait_until(path.exists, limit_s, lambda: f"no {what} of {host}\n{self._said(host)}")
        return float(path.read_text())

    def _said(self, host: str) -> str:
        return self.cluster.text(host) + self.cluster.text(host, "err")


@contextmanager
def trio(folder: Path, stubborn: bool = False) -> Iterator[Trio]:
    """Three hosts with ranks that run; afterwards none of their processes is left."""
    job = Trio(folder, stubborn)
    try:
        job.start()
        yield job
    finally:
        job.cluster.kill()


def _family(root: int) -> list[int]:
    """The process and all below it, itself first."""
    table = processes()
    found = [root]
    for pid in found:
        found += [child.pid for child in table.values() if child.parent == pid]
    return found


def _states(pids: list[int]) -> set[str]:
    """The states of those that are there."""
    table: dict[int, Process] = processes()
    return {table[pid].state for pid in pids if pid in table}
