"""`muster local` on a terminal that is closed, stopped or full: nothing of the job is lost."""

from __future__ import annotations

import os
import pty
import signal
from pathlib import Path

import pytest

from tests.launcher.support.local.local_runs import PROCESS, LocalRun, Start
from tests.support.waiting import wait_until

SAVES = """\
import os, pathlib, signal, sys, time
def save(number, frame):
    print("saving", flush=True)
    time.sleep(1)
    pathlib.Path(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]).write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
time.sleep(60)
"""
LOUD = """\
for number in range(40_000):
    print(number, "x" * 100)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/saves.py").write_text(SAVES)
    (tmp_path / "src/loud.py").write_text(LOUD)
    return tmp_path


def on_terminal(start: Start, home: Path, term: str) -> tuple[LocalRun, int]:
    """A job of two hosts that runs, and the other end of its terminal."""
    other, terminal = pty.openpty()
    argv = ("src/saves.py", "--hosts", "2", *PROCESS)
    grace = {"TERM": term, "MUSTER_STOP_GRACE_S": "20"}
    run = start(home, argv, environ=grace, terminal=terminal)
    os.close(terminal)
    logs = [run.folder / f"algo-{number + 1}/logs/rank-{number}.out" for number in range(2)]

    def ready() -> bool:
        return all(log.exists() and b"ready" in log.read_bytes() for log in logs)

    wait_until(ready, 60)
    run.trace.look()
    return run, other


def check_saved(run: LocalRun) -> None:
    assert run.process.wait(60) == 143
    for host in ("algo-1", "algo-2"):
        assert (run.base(host) / "model" / host).read_text() == "saved"
        assert (run.folder / "model" / host).read_text() == "saved"
    result = run.wait()
    assert result.summary["local"]["exit_code"] == 143
    assert result.summary["outcome"]["result"] == "Stopped"
    assert not result.summary["local"]["killed"]


@pytest.mark.promise("F07")
@pytest.mark.promise("F60")
@pytest.mark.parametrize("term", ["xterm", "xterm", "dumb"])
def test_closing_the_terminal_lets_ranks_save(start: Start, home: Path, term: str) -> None:
    run, other = on_terminal(start, home, term)
    os.close(other)
    check_saved(run)


def test_a_hang_up_that_comes_twice_is_one_stop(start: Start, home: Path) -> None:
    """The shell sends one to its jobs, and the kernel another one when the shell has ended."""
    run, other = on_terminal(start, home, "xterm")
    logs = run.folder / "algo-1/logs/rank-0.out"
    run.signal(signal.SIGHUP)
    wait_until(lambda: b"saving" in logs.read_bytes(), 30)
    run.signal(signal.SIGHUP)
    os.close(other)
    check_saved(run)


@pytest.mark.promise("F60")
def test_a_terminal_that_takes_nothing_holds_no_rank(start: Start, home: Path) -> None:
    other, terminal = pty.openpty()  # nobody reads it
    run = start(home, ("src/loud.py", *PROCESS), environ={"TERM": "xterm"}, terminal=terminal)
    os.close(terminal)
    assert run.process.wait(60) == 0
    log = run.folder / "algo-1/logs/rank-0.out"
    assert log.read_text().count("\n") == 40_000
    os.close(other)
