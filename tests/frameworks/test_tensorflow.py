"""TensorFlow 2 for real: parameter servers train, and a dead server or chief ends the job.

Mirrored workers train in test_quick_starts.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.frameworks import (
    JOB_S,
    STEPS_S,
    Start,
    ended_well,
    finals,
    kill_one,
)
from tests.support.waiting import wait_until, within

# the first test may make the environment
pytestmark = [pytest.mark.dev, pytest.mark.timeout(900)]
SERVER = "tensorflow_ps.py"
ENDED_S = 15.0  # from the chief's end to the workers': 2 s of idleness, told and seen


def test_parameter_servers_train_a_keras_model(start: Start, tensorflow: Path) -> None:
    result = ended_well(start(tensorflow, "parameter_server_tensorflow", "parameter_server", 3))
    assert "chief: 2 workers, 3 servers" in result.out
    losses = [float(loss) for loss in re.findall(r"epoch=.* loss=([\d.]+)", result.out)]
    assert losses[-1] < losses[0] / 4, losses
    (final,) = finals(result.out).values()
    assert float(final["accuracy"]) > 0.9
    # workers wait in TensorFlow's server for ever: they are ended soon, and that is no failure
    chief, *workers = sorted(result.summary["ranks"], key=lambda rank: rank["rank"])
    assert chief["status"] == 0 and len(workers) == 2
    assert all(worker["seconds"] - chief["seconds"] < within(ENDED_S) for worker in workers)
    assert result.summary["outcome"]["result"] == "Succeeded"


def test_a_tensorflow_server_that_dies_fails_the_job_on_every_host(
    start: Start, tensorflow: Path
) -> None:
    run = start(tensorflow, "parameter_server_tensorflow", "parameter_server", 2, epochs=2000)
    wait_until(lambda: "epoch=2/" in run.out, STEPS_S, lambda: run.err[-5000:])
    kill_one(run, SERVER)
    result = run.wait(JOB_S)
    assert result.code == 137, result.err[-5000:]
    assert re.search(r"^FAILED .*server-\d.* killed by SIGKILL", result.err, re.MULTILINE)
    for host in ("algo-1", "algo-2"):
        failure = (run.base(host) / "output" / "failure").read_text()
        assert "server-" in failure and "SIGKILL" in failure
    run.check_nothing_left()


def test_a_chief_that_fails_ends_the_workers_with_its_code(start: Start, tensorflow: Path) -> None:
    run = start(tensorflow, "parameter_server_tensorflow", "parameter_server", 2, epochs=1, steps=1)
    result = run.wait(JOB_S)
    assert result.code == 1, result.err[-5000:]
    assert "FAILED algo-1 rank 0: " in result.err
    assert "is below 0.9: it did not learn" in result.err
    run.check_nothing_left()
