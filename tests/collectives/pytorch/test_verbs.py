"""Each verb of torch.distributed on the backend "muster", against gloo."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.collectives.support.torch_ranks import TEST_S, Job, names_of, run_checks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(TEST_S)]
SCRIPT = Path(__file__).with_name("ranks_works.py")
COMPILED = Path(__file__).with_name("ranks_compiled.py")

NAMES = [
    name for file in ("ranks_verbs", "ranks_works", "ranks_callers")
    for name in names_of(SCRIPT.with_name(f"{file}.py"))
]  # fmt: skip
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


@pytest.mark.long
def test_in_compiled_code(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.skip(f"the inductor compiles C++ for processors, and there is no {compiler} here")
    job = run_checks(COMPILED, 2, tmp_path)
    for name in names_of(COMPILED):
        job.require(name)
