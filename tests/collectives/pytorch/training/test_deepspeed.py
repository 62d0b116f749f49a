"""DeepSpeed's ZeRO on the backend "muster": the real library, on CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.collectives.support.torch_ranks import TEST_S, Job, names_of, run_checks
from tests.support.frameworks import deepspeed_packages
from tests.support.venvs import CHECKOUT, UnavailableError

# DeepSpeed may have to be built first
pytestmark = [pytest.mark.torch, pytest.mark.timeout(2 * TEST_S)]
SCRIPT = Path(__file__).with_name("ranks_deepspeed.py")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    try:
        packages = deepspeed_packages()
    except UnavailableError as reason:
        pytest.skip(f"DeepSpeed cannot be built here: {reason}")
    paths = os.pathsep.join([str(CHECKOUT), str(packages)])
    known, folder = tmp_path_factory.mktemp("known"), tmp_path_factory.mktemp("two")
    environ = {"PYTHONPATH": paths, "DS_ACCELERATOR": "cpu", "REFERENCE": str(known)}
    theirs = run_checks(SCRIPT, 2, known, environ=environ, backend="gloo")
    for name in theirs.names:
        theirs.require(name)
    return run_checks(SCRIPT, 2, folder, environ=environ)


@pytest.mark.parametrize("name", names_of(SCRIPT))
def test_on_two_ranks(job: Job, name: str) -> None:
    job.require(name)
