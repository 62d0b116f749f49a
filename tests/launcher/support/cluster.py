"""A real job on this machine: one `train` per host on its own loopback address, no `muster local`.

Tests break it in every way they like; `Cluster.check_invariants` says afterwards whether the
promises that hold for every job were kept.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from muster.types.deadlines import parse_deadlines
from muster.types.run_files import RECORD
from tests.launcher.support.events import unlike_the_table
from tests.launcher.support.invariants import Declared, Left, check_job, check_tree
from tests.support.mltree import write_tree
from tests.support.ports import free_ports
from tests.support.traces import Trace, Tree, describe, left_in_shared_memory, shared_memory, tree
from tests.support.waiting import POLL_S, wait_until

__all__ = [
    "Cluster",
    "Result",
    "describe",
    "lines",
    "pids",
]

LOOK_S = 0.5  # between two looks at the processes of a job that is waited for
GONE_S = 1.0  # how long the last process may take to vanish once every `train` has ended
KILLED_GONE_S = 5.0  # the same when a `train` was killed: only then its shims kill their trees
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
MARK = "TEST_RUN_MARK"
LATE_S = 3.0  # what a loaded machine may add to a limit of the product
FAST = {  # the protocol's times, made short where a test does not ask about them
    "MUSTER_HEARTBEAT_S": "0.2",
    "MUSTER_LOST_AFTER_S": "2",
    "MUSTER_RECONNECT_S": "0.5",
    "MUSTER_FAILFAST_GRACE_S": "2",
    "MUSTER_STOP_GRACE_S": "3",
    "MUSTER_IDLE_S": "5",
}


class Result(NamedTuple):
    """What one host left: `code` of its `train`, its streams, its failure file ("" if none)."""

    code: int
    out: str
    err: str
    failure: str
    success: bool

    @property
    def first_line(self) -> str:
        return self.failure.partition("\n")[0]


class Cluster:
    """Hosts algo-1 ... algo-N running `script`; `start` and `wait` them, or break them."""

    def __init__(
        self,
        folder: Path,
        script: str,
        hosts: int = 2,
        hyperparameters: Mapping[str, object] | None = None,
        program: str = "train.py",
        environ: Mapping[str, str] | None = None,
        resources: Mapping[str, object] | None = None,
        instance_type: str = "ml.c5.xlarge",
    ) -> None:
        self.folder = folder
        self.names = [f"algo-{i + 1}" for i in range(hosts)]
        self.mark = secrets.token_hex(8)
        self.canary = "canary-" + secrets.token_hex(12)
        self.declared = Declared(canary=self.canary)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.trace = Trace(MARK, self.mark)
        self._began_s: dict[str, float] = {}
        self._ended_s: dict[str, float] = {}
        self._stopped_s: float | None = None
        self._trees: dict[str, Tree] = {}
        self._shared_memory = shared_memory()
        # short, since the path of a socket in it is limited; everybody's, as /tmp is
        self.temp = Path(tempfile.mkdtemp(prefix="job-", dir="/tmp"))
        self.temp.chmod(0o1777)
        self.ports = free_ports(2)
        net = secrets.randbelow(200) + 20
        self.addresses = {n: f"127.{net}.0.{i + 1}" for i, n in enumerate(self.names)}
        for name in self.names:
            base = self.base(name)
            write_tree(
                base,
                {"sagemaker_program": program, **(hyperparameters or {})},
                {
                    "current_host": name,
                    "hosts": self.names,
                    "current_instance_type": instance_type,
                    "network_interface_name": "lo",
                    **(resources or {}),
                },
            )
            (base / "code").mkdir(exist_ok=True)
            (base / "code" / program).write_text(script)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "TRAINING_JOB_NAME": "a-job",
            "TMPDIR": str(self.temp),
            MARK: self.mark,
            "MY_API_TOKEN": self.canary,
            "MUSTER_JOB_SECRET": secrets.token_hex(16),
            "MUSTER_CONTROL_PORT": str(self.ports[0]),
            "MUSTER_STORE_PORT": str(self.ports[1]),
            "MUSTER_HOST_ADDRESSES": json.dumps(self.addresses),
            **FAST,
            **(environ or {}),
        }

    def base(self, name: str) -> Path:
        """The host's /opt/ml."""
        return self.folder / name / "opt" / "ml"

    def set_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Replaces the hyperparameters of every host."""
        for name in self.names:
            config = self.base(name) / "input" / "config" / "hyperparameters.json"
            config.write_text(json.dumps(hyperparameters))

    def start(
        self,
        *names: str,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        stdio: int | None = None,
    ) -> None:
        """Starts `train` (or `command` in its place) on the named hosts, all by default.

        `stdio`: a descriptor that takes the place of their three streams. Who reads it says so
        by `keep_output`, since the invariants ask what was shown.
        """
        for name in names or self.names:
            home = {"SAGEMAKER_BASE_DIR": str(self.base(name))}
            self._spawn(
                name,
                command or [sys.executable, "-m", "muster", "train"],
                environ={**self.environ, **home, **(environ or {})},
                stdio=stdio,
            )

    def start_until(self, text: str, limit_s: float = 30) -> None:
        """Starts all hosts, and waits until each has written `text`."""
        self.start()
        for name in self.names:
            self.wait_for(name, text, limit_s=limit_s)

    def _spawn(
        self, name: str, argv: Sequence[str], environ: Mapping[str, str], stdio: int | None
    ) -> None:
        """Starts what runs the host, and notes what its /opt/ml was like before."""
        folder = self.folder / name
        self._trees[name] = tree(self.base(name))
        self._began_s[name] = time.monotonic()
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.processes[name] = subprocess.Popen(
                argv,
                env=environ,
                cwd=folder,
                stdin=subprocess.DEVNULL if stdio is None else stdio,
                stdout=out if stdio is None else stdio,
                stderr=err if stdio is None else stdio,
                start_new_session=True,
            )

    def keep_output(self, name: str, shown: bytes) -> None:
        """What a host wrote to `stdio`, as if its stderr had been a file."""
        (self.folder / name / "err").write_bytes(shown)

    def signal(self, name: str, number: int = signal.SIGTERM) -> float:
        """To the host's `train` only. The time right before, as of `time.time`."""
        self.trace.look()
        began_s = time.time()
        self.processes[name].send_signal(number)
        if number in STOPS and self._stopped_s is None:
            self._stopped_s = time.monotonic()
        return began_s

    def expect(self, **differences: object) -> None:
        """Declares in what this job may differ from others (`invariants.Declared`)."""
        self.declared = self.declared._replace(**differences)  # type: ignore[arg-type]

    def text(self, name: str, stream: str = "out") -> str:
        """What the host has written so far."""
        return (self.folder / name / stream).read_text(errors="replace")

    def wait_for(self, name: str, text: str, stream: str = "out", limit_s: float = 30) -> None:
        """Until the host has written `text`; fails with all it wrote otherwise."""
        wait_until(
            lambda: text in self.text(name, stream) or self.processes[name].poll() is not None,
            limit_s,
            lambda: self.story(f"{name} never wrote {text!r}"),
        )
        assert text in self.text(name, stream), self.story(f"{name} ended before {text!r}")
        self.trace.look()

    def wait(self, limit_s: float = 60) -> dict[str, Result]:
        """The results of all started hosts once every one has ended, by name."""
        running = {name for name, p in self.processes.items() if p.poll() is None}
        looks_s = time.monotonic()

        def all_ended() -> bool:
            nonlocal looks_s
            now = time.monotonic()
            for name in [n for n in running if self.processes[n].poll() is not None]:
                running.discard(name)
                self._ended_s[name] = now
            if now >= looks_s:
                looks_s = now + LOOK_S
                self.trace.look()
            return not running

        wait_until(all_ended, limit_s, lambda: self.story(f"not ended after {limit_s} s"))
        return {name: self.result(name) for name in self.processes}

    def run(self, limit_s: float = 60) -> dict[str, Result]:
        """Starts all hosts and waits for them."""
        self.start()
        return self.wait(limit_s)

    def result(self, name: str) -> Result:
        """The result of one host that has ended."""
        code = self.processes[name].wait(timeout=1)
        failure = self.base(name) / "output" / "failure"
        text = failure.read_text() if failure.exists() else ""
        success = (self.base(name) / "output" / "success").exists()
        return Result(code, self.text(name), self.text(name, "err"), text, success)

    def left(self, name: str) -> Left:
        """What a host that has ended left."""
        failure = self.base(name) / "output" / "failure"
        data = failure.read_bytes() if failure.exists() else None
        result = self.result(name)
        began_s, ended_s = self._began_s[name], self._ended_s.get(name)
        took_s = None if ended_s is None else ended_s - began_s
        return Left(
            name, result.code, result.out, result.err, data, result.success, self.base(name), took_s
        )

    def marked_processes(self) -> list[int]:
        """Every live process of this cluster, by its mark or because it was seen before."""
        return self.trace.alive()

    def violations(self) -> list[str]:
        """What does not hold, although it does after every job (`support/invariants.py`)."""
        lefts = [self.left(name) for name in self.names if name in self.processes]
        killed = {left.name for left in lefts if not left.ended_by_itself}
        wrong = self._check_machine(bool(killed))
        # who leads decides for all; without it nobody has to agree
        leads = self.names[0] in self.processes
        declared = self.declared
        if not leads:
            declared = declared._replace(apart=frozenset(self.names), no_screen=True)
        wrong += check_job(lefts, declared)
        for left in lefts:
            now = tree(left.base)
            found = check_tree(
                self._trees[left.name], now, left.name in killed, declared.code_writes
            )
            wrong += [f"{left.name}: {what}" for what in found]
        return wrong + self._check_record() + self._check_stop()

    def check_invariants(self) -> None:
        """What holds after every job, however it ended."""
        if self.processes:
            wrong = self.violations()
            assert not wrong, self.story("\n".join(wrong))

    def _check_machine(self, killed: bool) -> list[str]:
        """Processes, sockets and files elsewhere that the job left."""
        until = time.monotonic() + (KILLED_GONE_S if killed else GONE_S)
        while self.trace.alive() or self.trace.zombies():
            if time.monotonic() >= until:
                break
            time.sleep(POLL_S)
        wrong = [f"survivor: {describe(pid)}" for pid in self.trace.alive()]
        wrong += [f"zombie: {pid}" for pid in self.trace.zombies()]
        sockets = self.trace.open_sockets(self.ports, self.addresses.values())
        wrong += [f"still listening: {where}" for where in sockets]
        left = [] if killed else sorted(p.name for p in self.temp.glob("muster-*"))
        wrong += [f"left over in the folder for temporary files: {name}" for name in left]
        # what another job leaves when it is killed is there until its shim has removed it
        until = time.monotonic() + KILLED_GONE_S
        while (shared := left_in_shared_memory(self._shared_memory)) and time.monotonic() < until:
            time.sleep(POLL_S)
        wrong += [f"left over in /dev/shm: {name}" for name in sorted(shared)]
        return wrong

    def _check_record(self) -> list[str]:
        """Each event that was recorded is one of the table."""
        below_output = [self.base(name) / "output" / "data" / RECORD for name in self.names]
        run_dir = self.environ.get("MUSTER_RUN_DIR")
        folders = [Path(run_dir)] if run_dir else below_output
        return [what for folder in folders for what in unlike_the_table(folder)]

    def _check_stop(self) -> list[str]:
        """A stop from outside ends every host in `stop_total_s`."""
        environ = {k: v for k, v in self.environ.items() if k.startswith("MUSTER_")}
        total_s = parse_deadlines(environ, local_mode=False)[0].stop_total_s
        if self._stopped_s is None:
            return []
        took = {n: at - self._stopped_s for n, at in self._ended_s.items()}
        return [
            f"{name}: it ended {s:.1f} s after the stop, the limit is {total_s:g} s"
            for name, s in took.items()
            if s > total_s + LATE_S
        ]

    def kill(self) -> None:
        """Ends whatever a failed test left, by pid."""
        for pid in self.marked_processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.processes.values():
            process.wait(timeout=10)
        shutil.rmtree(self.temp, ignore_errors=True)

    def story(self, what: str) -> str:
        """What the hosts said, for a person; after `what`."""
        parts = [what]
        for name in self.processes:
            parts.append(f"--- {name} stdout\n{self.text(name)[-3000:]}")
            parts.append(f"--- {name} stderr\n{self.text(name, 'err')[-5000:]}")
        return "\n".join(parts)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def lines(text: str, having: str) -> Sequence[str]:
    """The lines of a log that hold some text."""
    return [line for line in text.splitlines() if having in line]
