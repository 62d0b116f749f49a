"""Each verb of torch.distributed on the backend "muster", against gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.torch_ranks import Job, names_of, run_checks

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("ranks_works.py")


NAMES = [*names_of(SCRIPT.with_name("ranks_verbs.py")), *names_of(SCRIPT)]
SLOW = (  # the compiler takes its time even to be imported: in one job
    "functional_collectives_work",
    "functional_collectives_can_be_compiled",
)


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Three ranks, more than there may be processors: who waits runs what was begun."""
    folder = tmp_path_factory.mktemp("three")
    names = [name for name in NAMES if name not in SLOW]
    return run_checks(SCRIPT, 3, folder, environ={"COLLECTIVES_ASYNC": "lazy"}, only=names)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Two ranks under the alias, with a thread that runs what was begun."""
    folder = tmp_path_factory.mktemp("two")
    return run_checks(SCRIPT, 2, folder, environ={"COLLECTIVES_ASYNC": "lane"}, backend="smddp")


@pytest.mark.parametrize("name", ["start", *(name for name in NAMES if name not in SLOW), "stop"])
def test_on_three_ranks(three_ranks: Job, name: str) -> None:
    three_ranks.require(name)


@pytest.mark.parametrize("name", ["start", *NAMES, "stop"])
def test_on_two_ranks_with_a_lane_thread(two_ranks: Job, name: str) -> None:
    two_ranks.require(name)
