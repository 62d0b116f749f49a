"""FSDP, DTensor, sharded optimizers and sub-groups in all directions on the backend "muster"."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.support.torch_ranks import TEST_S, Job, names_of, run_checks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(TEST_S)]
SHARDED = Path(__file__).with_name("ranks_sharded.py")
GROUPS = Path(__file__).with_name("ranks_groups.py")
PIPELINE = Path(__file__).with_name("ranks_pipeline.py")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_checks(GROUPS, 4, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("name", [*names_of(SHARDED), *names_of(GROUPS)])
def test_on_four_ranks(job: Job, name: str) -> None:
    job.require(name)


@pytest.fixture(scope="module")
def eight_ranks(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_checks(PIPELINE, 8, tmp_path_factory.mktemp("eight"))


@pytest.mark.parametrize("name", names_of(PIPELINE))
def test_in_three_directions_on_eight_ranks(eight_ranks: Job, name: str) -> None:
    eight_ranks.require(name)
