"""How a run with containers ends, and that nothing of it stays but what was to be kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from muster.local.backends.docker import names as docker_names
from tests.launcher.support.local.local_docker import (
    Start,
    changed,
    client_as_docker,
    forever,
    job,
    left_by,
)
from tests.launcher.support.local.local_runs import SCRIPT
from tests.support.engine import Engine
from tests.support.waiting import wait_until, within

pytestmark = pytest.mark.timeout(600)  # an image may have to be built first


def test_a_failure_on_the_second_host_is_the_failure_of_the_job(
    start: Start, home: Path, base: str
) -> None:
    result = start(home, job("train", base, "--hyperparameter", "fail=algo-2")).wait()
    assert result.code == 1
    assert "ValueError: bad batch" in result.err
    for host in ("algo-1", "algo-2"):
        failure = (result.folder / host / "opt/ml/output/failure").read_text()
        assert failure.startswith("UserScriptError: ValueError: bad batch (algo-2 rank 1")
    assert [host["status"] for host in result.summary["local"]["hosts"]] == [1, 1]
    assert "FAILED algo-2 rank 1: ValueError: bad batch" in result.err.partition("record  ")[2]


@pytest.mark.promise("F01")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_lets_every_script_save_and_removes_all(
    start: Start, home: Path, base: str, engine: Engine, number: int
) -> None:
    run = start(home, forever(base))
    run.wait_ready(2)
    began = time.monotonic()
    run.signal(number)
    result = run.wait(20)
    assert time.monotonic() - began < within(10)
    assert result.code == 143, result.err
    assert result.out.count("checkpoint written") == 2
    assert not list(result.folder.glob("*/opt/ml/output/failure"))
    run.check_nothing_left(limit_s=0)
    assert not left_by(engine, run)


def test_a_second_interrupt_kills_what_will_not_end(start: Start, home: Path, base: str) -> None:
    run = start(home, job("stubborn", base), {"MUSTER_STOP_GRACE_S": "60"})
    run.wait_ready(2)
    run.signal(signal.SIGINT)
    wait_until(lambda: "SIGINT: stopping" in run.err, 10)
    run.signal(signal.SIGINT)
    result = run.wait(20)
    assert result.code == 143
    assert result.summary["local"]["killed"]
    assert result.err.count("second SIGINT: killing") == 1
    assert [host["status"] for host in result.summary["local"]["hosts"]] == [-9, -9]


def test_an_interrupt_while_containers_start_is_not_lost(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    run = start(home, forever(base))
    wait_until(lambda: bool(left_by(engine, run)), 20)
    run.signal(signal.SIGINT)
    assert run.wait(20).code == 143


@pytest.mark.parametrize("late_s", [0.7, 2])
def test_a_stop_that_comes_before_the_host_can_hear_it_is_not_lost(
    start: Start, home: Path, base: str, engine: Engine, late_s: float
) -> None:
    late = f"""ENTRYPOINT ["sh", "-c", "sleep {late_s}; exec train"]"""
    with changed(engine, base, late) as name:
        run = start(home, forever(name))
        label = f"label={docker_names.FOLDER}={run.folder}"
        wait_until(lambda: len(engine.must("ps", "-q", "--filter", label).split()) == 2, 20)
        run.signal(signal.SIGINT)
        result = run.wait(20)
    assert result.code == 143, result.err
    assert not result.summary["local"]["killed"], result.err


def test_a_run_folder_that_is_gone_is_one_sentence_and_nothing_else_stays(
    start: Start, home: Path, base: str
) -> None:
    run = start(home, forever(base))
    run.wait_ready(2)
    run.expect(apart=True)

    def is_gone() -> bool:  # hosts may write into it meanwhile
        shutil.rmtree(run.folder, ignore_errors=True)
        return not run.folder.exists()

    wait_until(is_gone, 10)
    run.signal(signal.SIGINT)
    result = run.wait(30)
    assert result.code not in (0, 1, 2), result.err
    assert "muster local: the record cannot be completed: " in result.err
    assert "Traceback" not in result.err


def test_the_timeout_stops_the_job(start: Start, home: Path, base: str) -> None:
    # it counts from before the containers start
    result = start(home, forever(base, "--timeout", "20")).wait()
    assert result.code == 124
    assert result.out.count("checkpoint written") == 2


def test_killing_muster_local_leaves_nothing(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    run = start(home, job("stubborn", base))
    run.wait_ready(2)
    run.signal(signal.SIGKILL)
    run.check_nothing_left(limit_s=20)
    assert not left_by(engine, run)


def test_what_a_killed_holder_leaves_is_named_by_the_next_run_and_its_command_removes_it(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    run = start(home, forever(base))
    run.wait_ready(2)
    [supervisor] = run.alive("muster.local.supervisor")
    os.kill(run.process.pid, signal.SIGSTOP)  # else it may see the supervisor's end before its own
    os.kill(supervisor, signal.SIGKILL)
    os.kill(run.process.pid, signal.SIGKILL)
    run.check_nothing_left()
    left = left_by(engine, run)
    assert len(left) == 3
    result = start(home, job("train", base, hosts=1)).wait()
    assert result.code == 0, result.err
    said = next(line for line in result.err.splitlines() if "a killed run left" in line)
    assert all(name in said for name in left)
    command = result.err.splitlines()[result.err.splitlines().index(said) + 1].strip()
    subprocess.run(client_as_docker(engine, command), check=True)
    assert not left_by(engine, run)


def test_a_holder_that_dies_alone_ends_the_run_with_the_removing_command(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    run = start(home, forever(base))
    run.wait_ready(2)
    os.kill(run.alive("muster.local.supervisor")[0], signal.SIGKILL)
    result = run.wait(20)
    assert result.code == 137
    assert "containers of this run may be left" in result.err
    command = result.err.partition("may be left; to remove them:\n")[2].splitlines()[0]
    subprocess.run(client_as_docker(engine, command), check=True)


def test_kept_containers_can_be_looked_at_with_the_printed_commands_and_removed(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    (home / "src/train.py").write_text(SCRIPT + "open('/srv/mine', 'w').write('of it')\n")
    run = start(home, job("train", base, "--keep"))
    result = run.wait()
    assert result.code == 0, result.err
    assert result.summary["local"]["left"] == "kept"
    kept = left_by(engine, run)
    assert len(kept) == 3
    lines = dict(line.split(maxsplit=1) for line in result.err.splitlines() if line[:2] == "  ")

    def said(what: str, **changes: str) -> str:
        command = lines[what]
        for old, new in changes.items():
            command = command.replace(old, new)
        done = subprocess.run(
            client_as_docker(engine, command),
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    assert all(name in lines["kept"] for name in kept)
    assert "MUSTER_JOB_SECRET=" in engine.must("inspect", lines["kept"].split()[0])
    assert "docker inspect shows the job's secret and --env values" in lines["secrets"]
    assert "ready on algo-2" in said("output")
    assert "A /srv/mine" in said("changes")
    said("copy", **{"/PATH": "/srv/mine"})
    assert (home / "mine").read_text() == "of it"
    lines["shell"] = lines["shell"].replace(" -it", "") + " -c 'cat /opt/ml/model/model.txt'"
    assert said("shell") == "algo-2"
    next_run = start(home, job("train", base, hosts=1)).wait()
    assert "killed run" not in next_run.err
    said("remove")
    assert not left_by(engine, run)
