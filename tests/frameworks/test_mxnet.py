"""MXNet for real: workers train with its parameter servers and agree, and a dead server is told."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.frameworks import (
    EXAMPLES,
    JOB_S,
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
EXAMPLE = "parameter_server_mxnet"
SERVER, SCHEDULER = "server", "scheduler"
PROGRAM = "import mxnet"
# Half batches may take other kernels of the processor's than whole ones: after 150 steps up to 3e-5
# were seen. A step that is lost makes 6e-3, an image of each batch 0.1.
CLOSE = 5e-4
DIFFERENCE = """
import sys, numpy
one, other = (numpy.load(path) for path in sys.argv[1:])
print(max(float(abs(one[name] - other[name]).max()) for name in one.files))
"""


def test_synchronous_workers_do_what_one_process_does(
    start: Start, mxnet: Path, tmp_path: Path
) -> None:
    run = start(mxnet, EXAMPLE, "parameter_server", 2, isolation=PROCESS)
    said = finals(ended_well(run).out)
    assert sorted(one["worker"] for one in said.values()) == ["0", "1"]
    assert {one["workers"] for one in said.values()} == {"2"}
    assert said[0]["weights"] == said[1]["weights"]  # to the bit
    (together,) = run.base("algo-1").glob("model/weights-worker*.npz")
    alone = train_alone(mxnet, tmp_path)
    assert difference(mxnet, together, alone) < CLOSE


def test_asynchronous_workers_learn_and_end_with_the_same_weights(
    start: Start, mxnet: Path
) -> None:
    run = start(mxnet, EXAMPLE, "parameter_server", 2, kvstore="dist_async")
    said = finals(ended_well(run).out)
    assert len(said) == 2 and said[0]["weights"] == said[1]["weights"]
    assert all(float(one["accuracy"]) > 0.9 for one in said.values())


@pytest.mark.parametrize("victim", [SERVER, SCHEDULER])
def test_a_process_of_mxnets_servers_that_dies_fails_the_job_on_every_host(
    start: Start, mxnet: Path, victim: str
) -> None:
    run = start(mxnet, EXAMPLE, "parameter_server", 2, steps=1000000)
    wait_until(lambda: "step=100 " in run.out, STEPS_S, lambda: run.err[-5000:])
    kill_one(run, PROGRAM, f"DMLC_ROLE={victim}")
    result = run.wait(JOB_S)
    assert result.code == 137, result.err[-5000:]
    assert re.search(rf"^FAILED .*{victim}.* killed by SIGKILL", result.err, re.MULTILINE)
    for host in ("algo-1", "algo-2"):
        assert "SIGKILL" in (run.base(host) / "output" / "failure").read_text()
    run.check_nothing_left()


def train_alone(python: Path, folder: Path) -> Path:
    """The weights of the same steps in one process."""
    subprocess.run(
        [str(python), "-W", "ignore", str(EXAMPLES / EXAMPLE / "train.py"), "--kvstore", "local"],
        env={"SM_MODEL_DIR": str(folder / "alone"), "OMP_NUM_THREADS": "1"},
        check=True, capture_output=True, timeout=JOB_S,
    )  # fmt: skip
    return folder / "alone" / "weights-worker0.npz"


def difference(python: Path, one: Path, other: Path) -> float:
    """The largest between two files of weights."""
    done = subprocess.run(
        [str(python), "-c", DIFFERENCE, str(one), str(other)],
        check=True, capture_output=True, text=True, timeout=JOB_S,
    )  # fmt: skip
    return float(done.stdout)
