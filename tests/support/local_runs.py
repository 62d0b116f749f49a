"""Real runs of `muster local`, and proof that nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from muster.local.request import Request

POLL_S = 0.02
WAIT_S = 60.0
LEFT_S = 5.0  # how long the last process of a killed run may take to vanish
MARK = "TEST_RUN_MARK"
FAST = {
    "MUSTER_HEARTBEAT_S": "0.2",
    "MUSTER_LOST_AFTER_S": "2",
    "MUSTER_RECONNECT_S": "0.5",
    "MUSTER_FAILFAST_GRACE_S": "2",
    "MUSTER_STOP_GRACE_S": "2",
}
SCRIPT = """\
import os, signal, sys, time
def stopped(number, frame):
    print("checkpoint written", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
limit = time.monotonic() + float(os.environ.get("SM_HP_SECONDS", "0"))
while time.monotonic() < limit:
    time.sleep(0.02)
if os.environ.get("SM_HP_FAIL") == os.environ["SM_CURRENT_HOST"]:
    raise ValueError("bad batch")
with open(os.path.join(os.environ["SM_MODEL_DIR"], "model.txt"), "w") as file:
    file.write(os.environ["SM_CURRENT_HOST"])
"""
STUBBORN = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"])
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
time.sleep(600)
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str
    folder: Path

    @property
    def summary(self) -> Any:
        return json.loads((self.folder / "summary.json").read_text())


class LocalRun:
    """One `muster local` in a session of its own; its processes are known by a mark."""

    def __init__(
        self,
        home: Path,
        argv: Sequence[str],
        environ: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        python: str = sys.executable,
        stdout: int | None = None,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = home / f"run-{self.mark[:8]}"
        self._out = home / f"out-{self.mark[:8]}"
        self._err = home / f"err-{self.mark[:8]}"
        command = [*wrapper, python, "-m", "muster", "local"]
        cut = argv.index("--") if "--" in argv else len(argv)
        command += [*argv[:cut], "--output", str(self.folder), *argv[cut:]]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=home,
                env={**os.environ, **FAST, MARK: self.mark, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def wait(self, limit_s: float = WAIT_S) -> Result:
        """The result, once `muster local` has ended by itself."""
        code = self.process.wait(limit_s)
        return Result(code, self.out, self.err, self.folder)

    def wait_ready(self, hosts: int) -> None:
        """Until the script of every host says so."""

        def ready() -> bool:
            return self.out.count("ready on") == hosts or self.process.poll() is not None

        wait_until(ready, WAIT_S, lambda: self.err)
        assert self.process.poll() is None, self.err

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def alive(self, having: str = "") -> list[int]:
        """The run's processes; with `having`, those with it in their command line."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in environ and having.encode() in line:
                found.append(int(name))
        return found

    def check_nothing_left(self, limit_s: float = LEFT_S) -> None:
        """No process of the run is alive. Fails with their command lines."""

        def lines() -> str:
            return "\n".join(
                Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in self.alive()
            )

        wait_until(lambda: not self.alive(), limit_s, lines)

    def end(self) -> None:
        """Ends whatever a failed test left."""
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait(WAIT_S)


@contextmanager
def runs() -> Iterator[Callable[..., LocalRun]]:
    """Starts runs; at the end all of them have ended and left nothing."""
    started: list[LocalRun] = []

    def start(*args: Any, **options: Any) -> LocalRun:
        started.append(LocalRun(*args, **options))
        return started[-1]

    try:
        yield start
        for run in started:
            run.process.wait(WAIT_S)
            run.check_nothing_left()
    finally:
        for run in started:
            run.end()


def wait_until(
    condition: Callable[[], bool], limit_s: float, explain: Callable[[], str] = lambda: ""
) -> None:
    """Polls until the condition holds; fails after the limit."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, explain()
        time.sleep(POLL_S)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder with its bytes and mode."""
    return {
        str(path.relative_to(folder)): oct(path.stat().st_mode).encode() + path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def make_request(**changes: object) -> Request:
    """A request of two hosts with nothing special."""
    plain = Request(
        program="train.py",
        source_dir="/src",
        arguments=(),
        hosts=2,
        processes_per_host=None,
        distribution=None,
        hyperparameters={},
        channels={},
        groups=(),
        instance_type="local",
        environ={},
        output=None,
        isolation=None,
        timeout_s=None,
        as_json=False,
    )
    return plain._replace(**changes)  # type: ignore[arg-type]
