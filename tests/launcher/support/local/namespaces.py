"""The hosts of a `muster local --isolation netns` run, from outside: found, frozen, cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.launcher.support.events import events_in
from tests.launcher.support.local.local_runs import LocalRun
from tests.support.waiting import wait_until

RELEASE = "opt/ml/output/data/release"
# a rank that runs until the test lets its host go
SCRIPT = """\
import os, time
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
while not os.path.exists("/opt/ml/output/data/release"):
    time.sleep(0.02)
"""


class Host:
    """One host of a run that is up; `pid`: its `train`, which is PID 1 of its namespace."""

    def __init__(self, run: LocalRun, name: str) -> None:
        self.name = name
        self._run = run
        self._tree = run.folder / name
        marks = {
            f"MUSTER_RUN_DIR={run.folder}".encode(),
            f"MUSTER_INSTALL_TARGET={self._tree}/site".encode(),
        }
        inits = [pid for pid in run.alive() if _is_init(pid) and marks <= _environ(pid)]
        assert len(inits) == 1, f"{name} has {len(inits)} init processes\n{run.err}"
        self.pid = inits[0]
        self._namespace = _pid_namespace(self.pid)

    @property
    def failure(self) -> str:
        """The first line of its failure file, "" without one."""
        file = self._tree / "opt/ml/output/failure"
        return file.read_text().partition("\n")[0] if file.exists() else ""

    @property
    def outcome(self) -> tuple[str, int] | None:
        """What it says of the job (result, exit code); None before it knows."""
        for event in events_in(self._run.folder):
            if event["kind"] == "outcome" and event["host"] == self.name:
                return event["result"], event["exit_code"]
        return None

    def release(self) -> None:
        """Lets its rank end."""
        (self._tree / RELEASE).touch()

    def inside(self, *command: str) -> str:
        """Runs a command of this machine in the host's network; gives back what it wrote."""
        done = self._inside(command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def processes(self) -> list[int]:
        """All of the host: `train` first."""
        return sorted(p for p in self._run.alive() if _pid_namespace(p) == self._namespace)

    def freeze(self) -> None:
        """Stops every process where it stands; returns when all have. None stays stopped when
        they cannot all be."""
        try:
            wait_until(self._stands_still, 5, lambda: f"{self.name} does not stand still")
        except BaseException:
            self.thaw()
            raise

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Every process stands still while the block lasts, and none after it."""
        try:
            self.freeze()
            yield
        finally:
            self.thaw()

    def _stands_still(self) -> bool:
        """Stops all, those too that were born since the last look; whether all have stopped."""
        self._signal(signal.SIGSTOP)
        pids = self.processes()
        assert pids, f"{self.name} has ended"
        return set(map(_state, pids)) == {"T"}

    def _signal(self, number: int) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass  # it ended by itself

    @contextmanager
    def rule(self, *words: str) -> Iterator[Rule]:
        """A packet filter rule (`INPUT -p tcp -j DROP`) of the host while the block lasts."""
        rule = Rule(self, words)
        self.inside("iptables", "-w", "-I", *words)
        try:
            yield rule
        finally:
            self._inside(("iptables", "-w", "-D", *words))  # the host may be gone by now

    def _inside(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        argv = ["nsenter", "-t", str(self.pid), "-n", *command]
        return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)


class Rule:
    """A packet filter rule that is in force."""

    def __init__(self, host: Host, words: Sequence[str]) -> None:
        self._host = host
        self._chain = words[0]

    def hits(self) -> int:
        """How many packets it took."""
        out = self._host.inside("iptables", "-w", "-L", self._chain, "-v", "-n", "-x")
        return int(out.splitlines()[2].split()[0])

    def wait_for(self, packets: int, limit_s: float = 20) -> None:
        """Until it took so many packets: the fault has landed."""
        wait_until(lambda: self.hits() >= packets, limit_s, lambda: f"{self.hits()} packets")


def control_port(run: LocalRun, host: Host) -> str:
    """The run's control port, as a host was given it."""
    name = b"MUSTER_CONTROL_PORT="
    return next(v for v in _environ(host.pid) if v.startswith(name)).removeprefix(name).decode()


def link_state(host: Host) -> Any:
    """What the kernel says of the host's end of its link: its flags."""
    return json.loads(host.inside("ip", "-j", "link", "show", "eth0"))[0]["flags"]


def _environ(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _is_init(pid: int) -> bool:
    """Whether it is PID 1 of a namespace below ours."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return len(ids) > 1 and ids[-1] == "1"


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
