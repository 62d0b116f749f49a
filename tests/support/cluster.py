"""A real job on this machine: one `train` per host on its own loopback address, no `muster local`.

Tests break it in every way they like; `Cluster.check_invariants` says afterwards whether the
promises that hold for every job were kept (reliability.md section 7).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.mltree import write_tree

POLL_S = 0.01
MAX_FAILURE_BYTES = 1024
OUR_CODES = {100, 101, 102, 103, 104, 105, 106, 143}
GRAMMAR = re.compile(
    r"^(Config|Source|Install|Cluster|Peer|Hang|Hardware|Internal|Launch|UserScript|Stopped)"
    r"Error: \S"
)
FAST = {  # the protocol's times, made short where a test does not ask about them
    "MUSTER_HEARTBEAT_S": "0.2",
    "MUSTER_LOST_AFTER_S": "2",
    "MUSTER_RECONNECT_S": "0.5",
    "MUSTER_FAILFAST_GRACE_S": "2",
    "MUSTER_STOP_GRACE_S": "3",
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
        self.scripts_show_the_canary = False
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
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
            "TEST_RUN_MARK": self.mark,
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
    ) -> None:
        """Starts `train` (or `command` in its place) on the named hosts, all by default."""
        for name in names or self.names:
            folder = self.folder / name
            with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                self.processes[name] = subprocess.Popen(
                    command or [sys.executable, "-m", "muster", "train"],
                    env={
                        **self.environ,
                        "SAGEMAKER_BASE_DIR": str(self.base(name)),
                        **(environ or {}),
                    },
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )

    def signal(self, name: str, number: int = signal.SIGTERM) -> None:
        """To the host's `train` only."""
        self.processes[name].send_signal(number)

    def text(self, name: str, stream: str = "out") -> str:
        """What the host has written so far."""
        return (self.folder / name / stream).read_text(errors="replace")

    def wait_for(self, name: str, text: str, stream: str = "out", limit_s: float = 30) -> None:
        """Until the host has written `text`; fails with all it wrote otherwise."""
        wait_until(
            lambda: text in self.text(name, stream) or self.processes[name].poll() is not None,
            limit_s,
            lambda: self._story(f"{name} never wrote {text!r}"),
        )
        assert text in self.text(name, stream), self._story(f"{name} ended before {text!r}")

    def wait(self, limit_s: float = 60) -> dict[str, Result]:
        """The results of all started hosts once every one has ended, by name."""
        wait_until(
            lambda: all(p.poll() is not None for p in self.processes.values()),
            limit_s,
            lambda: self._story(f"not ended after {limit_s} s"),
        )
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

    def marked_processes(self) -> list[int]:
        """Every live process that carries this cluster's mark."""
        return [pid for pid in pids() if self._carries(pid)]

    def check_invariants(self) -> None:
        """What holds after every job, however it ended."""
        wait_until(
            lambda: not self.marked_processes(),
            3,
            lambda: self._story(f"survivors: {[describe(p) for p in self.marked_processes()]}"),
        )
        for name in self.processes:
            self._check_files(name)
        for port in self.ports:
            assert not listening(port), self._story(f"port {port} is still open")

    def kill(self) -> None:
        """Ends whatever a failed test left, by pid."""
        for pid in self.marked_processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.processes.values():
            process.wait(timeout=10)

    def _check_files(self, name: str) -> None:
        result = self.result(name)
        data = result.failure.encode()
        assert len(data) <= MAX_FAILURE_BYTES, self._story("the failure file is too long")
        if result.code == 0:
            assert not data, self._story("exit code 0 beside a failure file")
        elif data and "own failure" not in result.failure:
            assert GRAMMAR.match(result.failure), self._story(f"first line {result.first_line!r}")
        texts = (result.failure,) if self.scripts_show_the_canary else result[1:4]
        for text in texts:
            assert self.canary not in text, self._story("a secret was shown")
        left = [p.name for p in (self.base(name) / "output").glob(".muster-r*")]
        assert not left or result.code < 0, self._story(f"left over: {left}")

    def _carries(self, pid: int) -> bool:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return f"TEST_RUN_MARK={self.mark}".encode() in environ and state != "Z"

    def _story(self, what: str) -> str:
        parts = [what]
        for name in self.processes:
            parts.append(f"--- {name} stdout\n{self.text(name)[-3000:]}")
            parts.append(f"--- {name} stderr\n{self.text(name, 'err')[-5000:]}")
        return "\n".join(parts)


def wait_until(
    condition: Callable[[], bool], limit_s: float, story: Callable[[], str] | str = ""
) -> None:
    """Polls until the condition holds; fails with the story when it takes too long."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= until:
            raise AssertionError(story() if callable(story) else story)
        time.sleep(POLL_S)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def listening(port: int) -> bool:
    """Whether some socket of this machine listens on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return str(pid)
    return f"{pid}: {command.decode(errors='replace').strip()}"


def lines(text: str, having: str) -> Sequence[str]:
    """The lines of a log that hold some text."""
    return [line for line in text.splitlines() if having in line]
