"""A run that is asked while it runs: its ranks, who is stuck, and its end on request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.arguments import UsageError
from muster.local import control_client
from muster.local.hosts import why_not_isolated
from muster.local.record import history, layout
from muster.run.observe import control
from muster.submit import folder as submit_folder
from tests.launcher.support.events import events_in
from tests.launcher.support.local.asking import answer, asked
from tests.launcher.support.local.local_runs import PROCESS, SCRIPT, LocalRun, Start
from tests.support.waiting import wait_until, within

WAITS = """\
import os, sys, time
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
time.sleep(600)
"""
CHILD_WORKS = """\
import subprocess, sys
code = "import time\\nend = time.monotonic() + 4\\nwhile time.monotonic() < end: pass"
subprocess.run([sys.executable, "-c", code], check=True)
"""
TALKS = """\
import time
for number in range(40):
    print("step", number, flush=True)
    time.sleep(0.1)
"""


def begun(start: Start, home: Path, script: str, hosts: int = 2, **environ: str) -> LocalRun:
    (home / "train.py").write_text(script)
    return start(home, ("train.py", "--hosts", str(hosts), *PROCESS), environ=environ)


def forever(start: Start, home: Path, **environ: str) -> LocalRun:
    """A job of two hosts that runs until the file `end` is there."""
    (home / "train.py").write_text(SCRIPT)
    options = ("--hyperparameter", "seconds=60", "--hyperparameter", f"until={home / 'end'}")
    run = start(home, ("train.py", "--hosts", "2", *options, *PROCESS), environ=environ)
    run.wait_ready(2)
    return run


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.promise("H03")
def test_ps_lists_every_rank_of_every_host(start: Start, tmp_path: Path) -> None:
    run = forever(start, tmp_path)
    rows = answer(run, "ps")["ranks"]
    assert [(row["host"], row["rank"]) for row in rows] == [("algo-1", 0), ("algo-2", 1)]
    for row in rows:
        assert os.path.exists(f"/proc/{row['pid']}")
        assert 0 <= row["silent_s"] < within(30)
        assert row["ended"] is None
    shown = asked("ps", str(run.folder))
    assert shown.returncode == 0
    assert "HOST" in shown.stdout
    assert "algo-2" in shown.stdout
    (tmp_path / "end").touch()
    assert run.wait().code == 0


def test_ps_lists_pids_as_they_count_where_it_is_asked(start: Start, tmp_path: Path) -> None:
    """Each simulated host has a namespace of its own, in which they are others' numbers here."""
    if reason := why_not_isolated(str(tmp_path)):
        pytest.skip(f"this machine allows no namespaces: {reason}")
    (tmp_path / "train.py").write_text(WAITS)
    run = start(tmp_path, ("train.py", "--hosts", "2", "--isolation", "netns"))
    rows: list[dict[str, Any]] = []

    def are_known() -> bool:  # of a host once it listens, too
        rows[:] = answer(run, "ps")["ranks"]
        return None not in {row["pid"] for row in rows}

    wait_until(are_known, 20)
    assert len({row["pid"] for row in rows}) == 2
    for row in rows:
        assert b"train.py" in Path(f"/proc/{row['pid']}/cmdline").read_bytes()
        environ = Path(f"/proc/{row['pid']}/environ").read_bytes()
        assert f"SM_CURRENT_HOST={row['host']}".encode() in environ
    (run.folder / "algo-2" / "control").unlink()
    one, two = answer(run, "ps")["ranks"]
    assert (one["pid"], two["pid"]) == (rows[0]["pid"], None)  # no other process's number
    run.signal(signal.SIGTERM)
    assert run.wait().code == 143


@pytest.mark.promise("H04")
def test_a_stopped_rank_is_named_with_the_command_that_continues_it(
    start: Start, tmp_path: Path
) -> None:
    run = forever(start, tmp_path)
    pid = answer(run, "ps")["ranks"][1]["pid"]
    with stopped(pid):
        verdict = answer(run, "stacks")["verdict"]
    assert verdict["kind"] == "stopped"
    assert verdict["guilty"] == [1]
    assert f"rank 1 (algo-2) is stopped (SIGSTOP; `kill -CONT {pid}`" in verdict["sentence"]
    (tmp_path / "end").touch()
    assert run.wait().code == 0


@pytest.mark.promise("H04")
def test_a_leader_that_is_stopped_is_named_with_the_command_that_continues_it(
    start: Start, tmp_path: Path
) -> None:
    """Without it no host knows of the others."""
    run = forever(start, tmp_path, MUSTER_LOST_AFTER_S="60")
    assert answer(run, "ps")
    pid = control.listener_pid(str(run.folder / "algo-1"))
    with stopped(pid):
        done = asked("stacks", str(run.folder))
    assert done.returncode == 2, done.stdout
    assert "the train of algo-1 is stopped" in done.stderr
    assert f"kill -CONT {pid} continues it" in done.stderr
    (tmp_path / "end").touch()
    assert run.wait().code == 0


@pytest.mark.promise("H03")
def test_a_stop_on_request_is_a_stop_from_outside(start: Start, tmp_path: Path) -> None:
    run = forever(start, tmp_path)
    assert answer(run, "ps")
    done = asked("stop", str(run.folder))
    assert done.returncode == 0, done.stderr
    result = run.wait()
    assert result.code == 143
    assert "muster stop" in result.err


def test_ranks_that_there_are_not_are_refused(start: Start, tmp_path: Path) -> None:
    run = forever(start, tmp_path)
    assert len(answer(run, "stacks", "--ranks", "0,last")["stacks"]) == 2
    wrong = asked("stacks", str(run.folder), "--ranks", "7")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "this job has ranks 0 to 1" in wrong.stderr
    (tmp_path / "end").touch()
    run.wait()
    assert "is not running" in asked("ps", str(run.folder)).stderr


def test_of_two_runs_here_one_must_be_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--hyperparameter", "seconds=60", "--hyperparameter", f"until={tmp_path / 'end'}")
    folder = tmp_path / "muster-runs"
    folder.mkdir()
    nothing = asked("stacks", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "no run can be asked here" in nothing.stderr
    runs = [
        start(tmp_path, ("train.py", *options, *PROCESS), output=folder / name)
        for name in ("one", "other")
    ]
    for run in runs:
        answer(run, "ps")
    both = asked("ps", cwd=tmp_path)
    assert both.returncode == 2
    assert "2 runs are running: one, other" in both.stderr
    assert "did you mean 'other'?" in asked("ps", "oter", cwd=tmp_path).stderr
    assert asked("ps", "other", cwd=tmp_path).returncode == 0
    (tmp_path / "end").touch()
    for run in runs:
        assert run.wait().code == 0


@pytest.mark.parametrize("find", [control_client.find, history.find_run, submit_folder.find])
def test_another_users_run_is_said_to_be_so(
    find: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(UsageError, match="is a run of user"):
        find(str(tmp_path))


def test_another_users_record_does_not_hide_ones_own_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container's base folder that a job of root has left on a machine."""
    run = forever(start, tmp_path)
    answer(run, "ps")
    base = tmp_path / "base"
    theirs = base / control_client.CONTAINER
    theirs.mkdir(parents=True)
    listdir = os.listdir

    def refused(path: str) -> list[str]:
        if path == str(theirs):
            raise PermissionError
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refused)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(base))
    monkeypatch.setattr(layout, "RUNS", str(run.folder.parent))
    assert control_client.find(None).path == str(run.folder)
    (tmp_path / "end").touch()
    assert run.wait().code == 0
    with pytest.raises(UsageError, match="is a run of user"):
        control_client.find(None)


@pytest.mark.promise("H05")
def test_a_job_that_is_silent_and_idle_says_so_by_itself(start: Start, tmp_path: Path) -> None:
    run = begun(start, tmp_path, WAITS, MUSTER_STALL_IDLE_S="1")
    wait_until(lambda: bool(list(run.folder.glob("algo-1/stacks/*.txt"))), 30, lambda: run.err)
    wait_until(lambda: "roll call: ranks 0-1 are idle" in run.err, 10, lambda: run.err)
    events = events_in(run.folder)
    (stall, *_) = [e for e in events if e["kind"] == "stall"]
    assert stall["verdict"].startswith("ranks 0-1 are idle and silent since ")
    assert stall["waited_s"] >= 1
    (stacks, *_) = [e for e in events if e["kind"] == "stacks"]
    assert (run.folder / "algo-1" / stacks["file"]).read_text().startswith("roll call: ")
    assert run.process.poll() is None  # it only reports
    run.signal(signal.SIGTERM)
    assert run.wait().code == 143


# its stack is more than a rank that does nothing may write in a second
DEEP = f"""
def a_function_that_has_a_name_of_some_length_as_those_of_frameworks_do(more):
    if more:
        return a_function_that_has_a_name_of_some_length_as_those_of_frameworks_do(more - 1)
    exec({WAITS!r})
a_function_that_has_a_name_of_some_length_as_those_of_frameworks_do(90)
"""


@pytest.mark.promise("H06")
@pytest.mark.parametrize("script", [WAITS, DEEP], ids=["at its top", "in many functions"])
def test_a_job_that_stands_still_ends_with_103_where_that_is_asked_for(
    start: Start, tmp_path: Path, script: str
) -> None:
    run = begun(start, tmp_path, script, MUSTER_HANG_S="2")
    result = run.wait()
    assert result.code == 103, result.err
    failures = [
        (run.base(host) / "output" / "failure").read_text().splitlines()[0]
        for host in ("algo-1", "algo-2")
    ]
    assert failures[0] == failures[1]
    assert failures[0].startswith("HangError: ranks 0-1 are idle")


@pytest.mark.promise("H07")
@pytest.mark.parametrize("script", [CHILD_WORKS, TALKS], ids=["a child works", "it talks"])
def test_a_job_that_works_is_not_ended_and_not_called_idle(
    start: Start, tmp_path: Path, script: str
) -> None:
    run = begun(start, tmp_path, script, MUSTER_HANG_S="1", MUSTER_STALL_IDLE_S="1")
    result = run.wait()
    assert result.code == 0, result.err
    assert "roll call" not in result.err
