"""TensorFlow 2 for real: parameter servers and mirrored workers train, and a dead server is told.

Marked with the rows of docs/reference/promises.md where one is proved; durations are of two cores.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.frameworks import (
    JOB_S,
    NETNS,
    PROCESS,
    STEPS_S,
    Start,
    ended_well,
    finals,
    kill_one,
)
from tests.support.waiting import wait_until

# the first test may make the environment
pytestmark = [pytest.mark.dev, pytest.mark.timeout(900)]
SERVER = "tensorflow_ps.py"
ENDED_S = 15.0  # from the chief's end to the workers': 2 s of idleness, told and seen


@pytest.mark.parametrize(("hosts", "isolation"), [(3, NETNS), (2, PROCESS)])
def test_parameter_servers_train_a_keras_model(
    start: Start, tensorflow: Path, hosts: int, isolation: str
) -> None:
    run = start(
        tensorflow, "parameter_server_tensorflow", "parameter_server", hosts, isolation=isolation
    )
    result = ended_well(run)
    assert f"chief: {hosts - 1} workers, {hosts} servers" in result.out
    losses = [float(loss) for loss in re.findall(r"epoch=.* loss=([\d.]+)", result.out)]
    assert losses[-1] < losses[0] / 4, losses
    (final,) = finals(result.out).values()
    assert float(final["accuracy"]) > 0.9
    # workers wait in TensorFlow's server for ever: they are ended soon, and that is no failure
    chief, *workers = sorted(result.summary["ranks"], key=lambda rank: rank["rank"])
    assert chief["status"] == 0 and len(workers) == hosts - 1
    assert all(worker["seconds"] - chief["seconds"] < ENDED_S for worker in workers)
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


def test_mirrored_workers_train_and_agree(start: Start, tensorflow: Path) -> None:
    run = start(
        tensorflow, "multi_worker_mirrored", "multi_worker_mirrored_strategy", 2,
        isolation=PROCESS,
    )  # fmt: skip
    result = ended_well(run)
    said = finals(result.out)
    assert {rank: one.pop("worker") for rank, one in said.items()} == {0: "0", 1: "1"}
    assert said[0] == said[1], said  # loss, accuracy and the sum of all weights
    assert said[0]["workers"] == "2" and float(said[0]["accuracy"]) > 0.9


def test_a_chief_that_fails_ends_the_workers_with_its_code(start: Start, tensorflow: Path) -> None:
    run = start(tensorflow, "parameter_server_tensorflow", "parameter_server", 2, epochs=1, steps=1)
    result = run.wait(JOB_S)
    assert result.code == 1, result.err[-5000:]
    assert "FAILED algo-1 rank 0: " in result.err
    assert "is below 0.9: it did not learn" in result.err
    run.check_nothing_left()
