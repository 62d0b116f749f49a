"""A run with containers whose engine, or whose `muster local`, is lost before its end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from muster.local.record.runfolder import is_free
from tests.launcher.support.local.local_docker import Start, forever, job, left_by, remove
from tests.launcher.support.local.socket_gate import gate
from tests.support.engine import Engine
from tests.support.waiting import wait_until, within

pytestmark = pytest.mark.timeout(600)  # an image may have to be built first
LONG = {"MUSTER_STOP_GRACE_S": "60"}


def test_an_engine_that_is_lost_ends_the_run_and_the_next_one_names_what_it_left(
    start: Start, home: Path, base: str, engine: Engine, socket: Path
) -> None:
    with gate(home / "sock", socket) as way:
        run = start(home, forever(base), environ={"DOCKER_HOST": f"unix://{way.path}"})
        run.wait_ready(2)
        way.shut()
        result = run.wait()
    assert result.code == 106, result.err
    assert "muster local: algo-" in result.err
    assert f"no container engine answers at unix://{way.path}" in result.err
    assert "containers of this run may be left" in result.err
    assert result.summary["outcome"]["exit_code"] == 106
    left = left_by(engine, run)
    assert len(left) == 3
    said = start(home, job("train", base, hosts=1)).wait().err
    assert all(name in said for name in left)
    remove(engine, run)


def test_an_engine_that_falls_silent_is_given_up_soon_after_the_second_interrupt(
    start: Start, home: Path, base: str, engine: Engine, socket: Path
) -> None:
    with gate(home / "sock", socket) as way:
        run = start(home, forever(base), {**LONG, "DOCKER_HOST": f"unix://{way.path}"})
        run.wait_ready(2)
        way.hush()
        run.signal(signal.SIGINT)
        wait_until(lambda: "SIGINT: stopping" in run.err, 10)
        began = time.monotonic()
        run.signal(signal.SIGINT)
        result = run.wait(60)
    assert time.monotonic() - began < within(20)
    assert result.code == 143, result.err
    assert f"no container engine answers at unix://{way.path} in time" in result.err
    assert "containers of this run may be left; to remove them:" in result.err
    assert len(left_by(engine, run)) == 3
    remove(engine, run)


def test_a_third_interrupt_gives_up_on_the_engine_at_once_and_tells_what_removes_the_rest(
    start: Start, home: Path, base: str, engine: Engine, socket: Path
) -> None:
    def again() -> bool:
        given_up = "giving up" in run.err
        if not given_up:
            run.process.send_signal(signal.SIGINT)
        return given_up

    with gate(home / "sock", socket) as way:
        run = start(home, forever(base), {**LONG, "DOCKER_HOST": f"unix://{way.path}"})
        run.wait_ready(2)
        way.hush()
        wait_until(again, 60)
        result = run.wait()
    assert "in time" not in result.err  # as it says once the engine's 5 s for a signal are over
    assert result.code == 143, result.err
    assert result.err.count("second SIGINT: killing") == 1
    assert result.err.count("giving up on the container engine") == 1
    assert "containers of this run may be left; to remove them:" in result.err
    run.check_nothing_left()
    remove(engine, run)


def test_a_run_folder_is_in_use_as_long_as_the_holder_has_containers(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    run = start(home, forever(base))
    run.wait_ready(2)
    [supervisor] = run.alive("muster.local.supervisor")
    os.kill(supervisor, signal.SIGSTOP)
    try:
        run.signal(signal.SIGKILL)
        run.process.wait()
        assert not is_free(str(run.folder))
        its_own = left_by(engine, run)  # the engine may hold what other tests have killed
        said = start(home, job("train", base, hosts=1)).wait().err
        assert len(its_own) == 3 and not any(name in said for name in its_own), said
    finally:
        os.kill(supervisor, signal.SIGCONT)
    run.check_nothing_left(limit_s=20)
    assert is_free(str(run.folder))
    assert not left_by(engine, run)
