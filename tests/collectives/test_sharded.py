"""FSDP, DTensor, sharded optimizers and sub-groups in all directions on the backend "muster"."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.torch_ranks import Job, names_of, run_checks

pytestmark = pytest.mark.torch
SHARDED = Path(__file__).with_name("ranks_sharded.py")
GROUPS = Path(__file__).with_name("ranks_groups.py")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_checks(GROUPS, 4, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("name", [*names_of(SHARDED), *names_of(GROUPS)])
def test_on_four_ranks(job: Job, name: str) -> None:
    job.require(name)
