"""Real runs of `muster local`, and proof that nothing of them is left."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.local.request import Request
from tests.launcher.support.events import events_in, unlike_the_table
from tests.launcher.support.fixtures import checked
from tests.launcher.support.invariants import Declared, Left, check_job
from tests.support.traces import OURS, Trace, describe
from tests.support.waiting import wait_until, within

WAIT_S = 60.0
LEFT_S = 5.0  # how long the last process of a killed run may take to vanish
MARK = "TEST_RUN_MARK"
PROCESS = ("--isolation", "process")
FAST = {
    "MUSTER_HEARTBEAT_S": "0.2",
    "MUSTER_LOST_AFTER_S": "2",
    "MUSTER_RECONNECT_S": "0.5",
    "MUSTER_FAILFAST_GRACE_S": "2",
    "MUSTER_STOP_GRACE_S": "2",
    "MUSTER_IDLE_S": "5",
}
SCRIPT = """\
import os, signal, sys, time
def stopped(number, frame):
    print("checkpoint written", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
limit = time.monotonic() + float(os.environ.get("SM_HP_SECONDS", "0"))
until = os.environ.get("SM_HP_UNTIL", "")  # a file
while time.monotonic() < limit and not os.path.exists(until):
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
    """One `muster local` in a session of its own; its processes are known by a mark.

    `check_invariants` says afterwards whether what holds for every job held for this one.
    `environ`: what its environment has beyond this process's.
    `terminal`: is its stdin, stdout and stderr, and hangs it up when its other end is closed.
    `output`: its run folder. `verb`: the command of muster, which does what `local` does.
    """

    def __init__(
        self,
        home: Path,
        argv: Sequence[str],
        environ: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        python: str = sys.executable,
        stdout: int | None = None,
        terminal: int | None = None,
        output: Path | None = None,
        verb: str = "local",
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = output or home / f"run-{self.mark[:8]}"
        self._out = home / f"out-{self.mark[:8]}"
        self._err = home / f"err-{self.mark[:8]}"
        self.canary = "canary-" + secrets.token_hex(12)
        self.declared = Declared(canary=self.canary, no_screen=True)
        self.trace = Trace(MARK, self.mark)
        # short, since the path of a socket in it is limited; everybody's, as /tmp is
        self.temp = Path(tempfile.mkdtemp(prefix="run-", dir="/tmp"))
        self.temp.chmod(0o1777)
        command = [*wrapper, python, "-m", "muster", verb]
        self.environ = {
            **FAST,
            MARK: self.mark,
            "TMPDIR": str(self.temp),
            "MY_API_TOKEN": self.canary,
            **(environ or {}),
        }
        cut = argv.index("--") if "--" in argv else len(argv)
        command += [*argv[:cut], "--output", str(self.folder), *argv[cut:]]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=home,
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=(terminal or out) if stdout is None else stdout,
                stderr=terminal or err,
                start_new_session=True,
                preexec_fn=None if terminal is None else partial(_be_of_terminal, terminal),  # noqa: PLW1509
            )

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def wait(self, limit_s: float = WAIT_S) -> Result:
        """The result, once `muster local` has ended by itself."""
        code = self.process.wait(within(limit_s))
        return Result(code, self.out, self.err, self.folder)

    def wait_ready(self, hosts: int) -> None:
        """Until the script of every host says so."""

        def ready() -> bool:
            return self.out.count("ready on") == hosts or self.process.poll() is not None

        wait_until(ready, WAIT_S, lambda: self.err)
        assert self.process.poll() is None, self.err
        self.trace.look()

    def signal(self, number: int) -> None:
        """To `muster local` itself."""
        self.trace.look()
        self.process.send_signal(number)

    def expect(self, **differences: object) -> None:
        """Declares in what this run may differ from others (`invariants.Declared`)."""
        self.declared = self.declared._replace(**differences)  # type: ignore[arg-type]

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
        """No process of the run is alive or waits to be reaped. Fails with their command lines.

        One that is about to end shows no environment any more: the trace knows those too.
        """

        def left() -> list[str]:
            self.process.poll()  # reaps it: the rest is not ours to reap
            alive = {*self.alive(), *self.trace.alive()}
            lines = [f"survivor: {describe(pid)}" for pid in sorted(alive)]
            return lines + [f"zombie: {pid}" for pid in self.trace.zombies()]

        wait_until(lambda: not left(), limit_s, lambda: "\n".join(left()))

    def base(self, name: str) -> Path:
        """The host's /opt/ml."""
        return self.folder / name / "opt" / "ml"

    def lefts(self) -> list[Left]:
        """What each host left of a run that has ended, the leader first.

        `muster local` mixes what they say, so their streams are empty here. Hosts whose end nobody
        saw were killed with `muster local`, or with what holds them.
        """
        local, unseen = self._record(), -signal.SIGKILL
        statuses = {host["host"]: host["status"] for host in local.get("hosts", ())}
        if not local and self.process.returncode == -signal.SIGKILL:
            statuses = {path.name: unseen for path in self.folder.glob("algo-*")}
        return [self._left(n, unseen if code is None else code) for n, code in statuses.items()]

    def violations(self, declared: Declared | None = None) -> list[str]:
        """What does not hold of a run that has ended, although it does after every job.

        `declared`: in place of what the test expected.
        """
        declared = self.declared if declared is None else declared
        lefts = self.lefts()
        wrong = check_job(lefts, declared) + self._left_behind(lefts)
        wrong += unlike_the_table(self.folder)
        return wrong + self._codes(lefts, declared) + self._counts() + self._shown(declared)

    def check_invariants(self) -> None:
        """What holds after every run, however it ended; waits for its end."""
        self.process.wait(WAIT_S)
        self.check_nothing_left()
        wrong = self.violations()
        assert not wrong, "\n".join([*wrong, "--- stderr", self.err[-5000:]])

    def _record(self) -> Mapping[str, Any]:
        """What `muster local` itself wrote down of the run, {} when it did not come to that."""
        file = self.folder / "summary.json"
        record: Mapping[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        local: Mapping[str, Any] = record.get("local", {})
        return local

    def _left(self, name: str, code: int) -> Left:
        base = self.base(name)
        failure = base / "output" / "failure"
        data = failure.read_bytes() if failure.exists() else None
        return Left(name, code, "", "", data, (base / "output" / "success").exists(), base)

    def _codes(self, lefts: Sequence[Left], declared: Declared) -> list[str]:
        """What the hosts told of their ends, and `muster local` of the job's, is what was."""
        code, events = self.process.returncode, events_in(self.folder)
        told = {e["host"]: e["exit_code"] for e in events if e["kind"] == "outcome"}
        wrong = [
            f"{left.name} told the exit code {told[left.name]} and ended with {left.code}"
            for left in lefts
            if left.ended_by_itself and told.get(left.name, left.code) != left.code
        ]
        local = self._record()
        if not local:  # it was killed, or no host began
            return [*wrong, "exit code 0 without a record"] if code == 0 else wrong
        if local["exit_code"] != code:
            wrong.append(f"exit code {code}, in the record {local['exit_code']}")
        by_itself = lefts and lefts[0].ended_by_itself and not local["ended_by"]
        if by_itself and not declared.apart and lefts[0].code != code:
            wrong.append(f"exit code {code}, the leader's is {lefts[0].code}")
        return wrong

    def _counts(self) -> list[str]:
        """The number of ranks that muster stopped is that of the table of ranks."""
        file = self.folder / "summary.json"
        record = json.loads(file.read_text()) if file.exists() else {}
        told = record.get("outcome", {}).get("stopped_ranks")
        stopped = sum(rank["stopped"] for rank in record.get("ranks", ()))
        return [] if told in (None, stopped) else [f"{told} ranks stopped, {stopped} in the table"]

    def _left_behind(self, lefts: Sequence[Left]) -> list[str]:
        """Files that are nobody's now. Hosts that were killed cannot tidy up below /opt/ml; what
        is private to them in the temporary folder goes with their last process."""
        tidy = [left for left in lefts if left.ended_by_itself]
        files = [file for left in tidy for file in left.base.rglob(f"{OURS}*")]
        files += self.temp.glob("muster-*")
        return [f"left over: {file}" for file in sorted(files)]

    def _shown(self, declared: Declared) -> list[str]:
        """Where a secret can be read. What scripts print lies in the logs beside."""
        if not declared.canary or declared.scripts_show_it:
            return []
        told = (*self.folder.glob("*/events.jsonl"), *self.folder.glob("*/logs/train.log"))
        files = (self._out, self._err, self.folder / "summary.json", *told)
        secret = declared.canary.encode()
        return [
            f"a secret was shown in {file.name}"
            for file in files
            if file.exists() and secret in file.read_bytes()
        ]

    def kill(self) -> None:
        """Ends whatever a failed test left."""
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait(WAIT_S)
        shutil.rmtree(self.temp, ignore_errors=True)


Start = Callable[..., LocalRun]


@contextmanager
def runs() -> Iterator[Start]:
    """Starts runs; at the end all have ended and kept what holds for every run."""
    started: list[LocalRun] = []

    def start(*args: Any, **options: Any) -> LocalRun:
        started.append(LocalRun(*args, **options))
        return started[-1]

    with checked(started):
        yield start


@pytest.fixture
def start() -> Iterator[Start]:
    with runs() as start:
        yield start


def _be_of_terminal(terminal: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


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


def facts_of(out: str) -> dict[str, Any]:
    """Host -> what its script saw."""
    found = {}
    for line in out.splitlines():
        prefix, _, text = line.partition(" facts ")
        if text:
            found[prefix.strip("[]").partition(":")[0]] = json.loads(text)
    return found
