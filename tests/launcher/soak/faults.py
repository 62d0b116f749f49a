"""The faults of the soak, done to the real processes of a `Cluster`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache

from tests.launcher.soak.scenario import EVERYONE, Fault
from tests.launcher.support.cluster import Cluster
from tests.support.traces import Process, describe, processes

LOOKS_FOR_S = 20.0  # how long a fault waits for somebody to hit, while the job lives
POLL_S = 0.01
UNTIMED = ("late", "absent", "none")  # what the start of the hosts sees to


class Injector:
    """Does the faults of a running job, each at its moment and in a thread of its own.

    `landed`: those that hit somebody, with the second in which they did.
    """

    def __init__(self, cluster: Cluster, faults: Sequence[Fault], began_s: float) -> None:
        self._cluster = cluster
        self._absent = {fault.host for fault in faults if fault.kind == "absent"}
        self._began_s = began_s
        self.landed: dict[Fault, float] = {}
        self.started = False
        self._threads = [
            threading.Thread(target=self._do, args=(one,))
            for one in faults
            if one.kind not in UNTIMED
        ]

    def start(self) -> None:
        self.started = True
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Until every fault was done and undone."""
        for thread in self._threads:
            thread.join()

    def _do(self, fault: Fault) -> None:
        time.sleep(max(0.0, self._began_s + fault.at_s - time.monotonic()))
        action: Callable[[Fault], bool] = getattr(self, f"_{fault.kind}")
        until = time.monotonic() + LOOKS_FOR_S
        while time.monotonic() < until:
            if action(fault) or not self._alive(fault):
                return
            time.sleep(POLL_S)

    def _alive(self, fault: Fault) -> bool:
        """Whether the fault can still hit: a host that it is for runs, or is to start yet."""
        if fault.host == EVERYONE:
            return any(process.poll() is None for process in self._cluster.processes.values())
        process = self._cluster.processes.get(self._cluster.names[fault.host])
        if process is None:
            return fault.host not in self._absent
        return process.poll() is None

    def _hit(self, fault: Fault) -> None:
        self.landed.setdefault(fault, time.monotonic() - self._began_s)

    def _stop(self, fault: Fault) -> bool:
        hit = False
        for place, name in enumerate(self._cluster.names):
            process = self._cluster.processes.get(name)
            if fault.host not in (place, EVERYONE) or not process or process.poll() is not None:
                continue
            if not _hears(process.pid):
                return False  # once more, when the Python of the last one has come to muster
            process.send_signal(fault.number)
            self._hit(fault)
            hit = True
        return hit

    def _kill(self, fault: Fault) -> bool:
        pid = self._target(fault)
        return bool(pid and self._signal(pid, signal.SIGKILL, fault))

    def _freeze(self, fault: Fault) -> bool:
        pid = self._target(fault)
        if not pid or not self._signal(pid, signal.SIGSTOP, fault):
            return False
        time.sleep(fault.lasts_s)
        self._signal(pid, signal.SIGCONT, fault)
        return True

    def _reset(self, fault: Fault) -> bool:
        """Has the kernel abort the connections to the control port from or to the host."""
        if why_no_reset():
            return False
        name = self._cluster.names[fault.host]
        port, address = self._cluster.ports[0], self._cluster.addresses[name]
        way = ["sport", "=", str(port)] if fault.host == 0 else ["dport", "=", str(port)]
        mine = ["src", address, "and", *way]
        if not _abort(*mine):
            return False
        self._hit(fault)
        return True

    def _target(self, fault: Fault) -> int:
        """The process that a fault is to hit, 0 while there is none."""
        train = self._cluster.processes.get(self._cluster.names[fault.host])
        if train is None or train.poll() is not None:
            return 0
        if fault.target == "train":
            return train.pid
        self._cluster.trace.look()
        return _find(fault.target, train.pid)

    def _signal(self, pid: int, number: int, fault: Fault) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        self._hit(fault)
        return True


def cannot_land() -> dict[str, str]:
    """The kinds of faults that cannot hit anything on this machine, and why."""
    why = why_no_reset()
    return {"reset": why} if why else {}


@cache
def why_no_reset() -> str:
    """Why the connections of others cannot be aborted here, found by trying; "" when they can."""
    if shutil.which("ss") is None:
        return "not installed here: ss"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            aborted = _abort("sport", "=", str(port))
    return "" if aborted else "`ss -K` aborts nothing: no root, or not in this kernel"


def _abort(*which: str) -> bool:
    """Aborts connections; whether there was one. `ss` lists only what the kernel did abort."""
    words = ["ss", "-K", "-H", "-t", "state", "established", *which]
    done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    return bool(done.stdout.strip())


def _hears(pid: int) -> bool:
    """Whether the process has seen to SIGTERM; a signal before that ends a bare Python."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if line.startswith("Sig"))
    except OSError:
        return False
    bit = 1 << (signal.SIGTERM - 1)
    return any(int(fields[name], 16) & bit for name in ("SigBlk", "SigCgt", "SigIgn"))


def _find(what: str, train: int) -> int:
    """The last started shim, rank or launcher below a `train`; 0 when there is none."""
    table = processes()
    mine = sorted((p for p in table.values() if _below(p, train, table)), key=lambda p: -p.began)
    shims = [p for p in mine if "rank_shim" in describe(p.pid)]
    over = {p.pid for p in shims}
    if what == "shim":
        return shims[0].pid if shims else 0
    scripts = [p for p in mine if p.parent in over and p.pid not in over and p.state != "Z"]
    launchers = [p for p in scripts if "torchrun" in describe(p.pid)]
    wanted = launchers if what == "launcher" else [p for p in scripts if p not in launchers]
    return wanted[0].pid if wanted else 0


def _below(process: Process, root: int, table: dict[int, Process]) -> bool:
    parent = process.parent
    while parent in table:
        if parent == root:
            return True
        parent = table[parent].parent
    return False
