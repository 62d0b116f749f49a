"""The model-parallel example without our launcher: as one process, and under mpirun alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mpi import VERSIONS, mpirun_alone
from tests.support.venvs import CHECKOUT

pytestmark = [pytest.mark.torch, pytest.mark.timeout(320)]
SCRIPT = CHECKOUT / "examples" / "modelparallel" / "train.py"
SMDDPRUN = Path(sys.executable).parent / "smddprun"
JOB_S = 150.0  # of a few seconds, on a machine that others keep busy
STEPS = 10


def asked(folder: Path, **parameters: object) -> tuple[list[str], dict[str, str]]:
    """The script's command with these parameters, and where it leaves what it made."""
    given = json.dumps({"microbatches": 4, **parameters})
    command = [sys.executable, str(SCRIPT), f"--steps={STEPS}", f"--report-every={STEPS}"]
    folders = {"SM_MODEL_DIR": str(folder), "SM_OUTPUT_DATA_DIR": str(folder)}
    return [*command, "--mp_parameters", given], folders


def loss(done: subprocess.CompletedProcess[str]) -> float:
    """That of the last step, of a job that ended well."""
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(rf"step={STEPS}/{STEPS} loss=([\d.]+)", done.stdout)
    return float(found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The loss of one process with the whole model."""
    command, folders = asked(tmp_path_factory.mktemp("whole"))
    environ = {**os.environ, **folders}
    return loss(
        subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=JOB_S
        )
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_two_stages_under_mpirun_alone_learn_what_one_process_learns(
    version: str, tmp_path: Path, whole: float
) -> None:
    command, folders = asked(tmp_path, partitions=2)
    done = mpirun_alone(version, str(SMDDPRUN), *command, environ=folders, limit_s=JOB_S)
    assert loss(done) == pytest.approx(whole, abs=0.001)
    assert "pipeline 2 x data 1" in done.stdout and "proved: 1 outputs" in done.stdout
    found = [json.loads(path.read_text()) for path in tmp_path.glob("metrics-rank*.json")]
    assert sorted((one["rank"], one["world_size"]) for one in found) == [(0, 2), (1, 2)]
