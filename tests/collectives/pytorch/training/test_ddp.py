"""DistributedDataParallel on the backend "muster" trains as with gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.support.torch_ranks import TEST_S, Job, names_of, run_checks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(TEST_S)]
SCRIPT = Path(__file__).with_name("ranks_ddp.py")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_checks(SCRIPT, 2, tmp_path_factory.mktemp("ddp"))


@pytest.mark.parametrize("name", names_of(SCRIPT))
def test_on_two_ranks(job: Job, name: str) -> None:
    job.require(name)
