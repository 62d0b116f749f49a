"""`sagemaker_training.environment` of muster-compat beside the real package's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.contract.environ import exports
from muster.contract.request.read import read_job
from muster.types.job import Program
from muster.types.machine import Machine
from tests.launcher.conformance.launchers import LOCK
from tests.support.mltree import write_tree
from tests.support.venvs import UnavailableError, locked_environment

SHOW = (
    "import json, sys\n"
    "from sagemaker_training import content_types, encoders, environment, params\n"
    "told = environment.Environment()\n"
    "names = {name: getattr(module, name) for module in (params, content_types)\n"
    "         for name in dir(module) if name.isupper()}\n"
    "paths = {name: getattr(environment, name) for name in dir(environment)\n"
    "         if name.endswith('_dir') and isinstance(getattr(environment, name), str)}\n"
    "kinds = (content_types.CSV, content_types.JSON)\n"
    "texts = [encoders.encode([[1, 2], [3, 4]], kind) for kind in kinds]\n"
    "print(json.dumps([dict(told.items()), names, paths, texts], default=str))\n"
)
# what `train` says truly and the real one does not, as conformance/intended.py has it
OURS_TO_SAY = {"is_modelparallel_enabled", "is_smddprun_installed", "is_smddpmprun_installed"}


def shown(python: Path | str, environ: dict[str, str]) -> list[Any]:
    done = subprocess.run(
        [str(python), "-c", SHOW],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.dev
def test_what_scripts_read_is_what_the_real_package_says(tmp_path: Path) -> None:
    try:
        real = locked_environment("incumbent", LOCK) / "bin" / "python"
    except UnavailableError as reason:
        pytest.skip(f"the incumbent cannot be installed here: {reason}")
    environ = write_tree(
        tmp_path,
        {"sagemaker_program": '"train.py"', "epochs": "3", "sagemaker_mpi_enabled": "false"},
    )
    job = read_job(environ)
    machine = Machine(1, 0, 0, False, (), None, None)
    told = exports(job, machine, Program("script", "train.py", str(tmp_path / "code"), ()))
    theirs, their_names, their_paths, their_texts = shown(real, environ)
    ours, names, paths, texts = shown(sys.executable, {**environ, **told})
    differing = {
        name
        for name in theirs.keys() | ours.keys()
        if theirs.get(name, "absent") != ours.get(name, "absent")
    }
    assert differing <= OURS_TO_SAY | {"num_cpus", "job_name"}, differing
    assert names.items() <= their_names.items()
    assert paths.items() <= their_paths.items()
    assert texts == their_texts
