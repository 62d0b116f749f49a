"""Communication hooks of DDP on any backend; DDP and FSDP2 in registered memory on ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.support.torch_ranks import TEST_S, Job, run_checks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(TEST_S)]
HERE = Path(__file__).parent


def checks_of(script: str) -> list[str]:
    lines = (HERE / script).read_text().split("CHECKS = (")[1].split(")")[0].splitlines()
    return [line.strip(" ,") for line in lines if line.strip()]


HOOKS, REGISTERED = checks_of("ranks_hooks.py"), checks_of("ranks_registered.py")


ON_GLOO = ["hooks_start_again_on_gloo", *(f"{name}_on_gloo" for name in HOOKS)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Small buffers are registered too; asynchronous calls run in the lane thread."""
    environ = {"COLLECTIVES_DIRECT_BYTES": "4096", "COLLECTIVES_ASYNC": "lane"}
    folder = tmp_path_factory.mktemp("training")
    return run_checks(HERE / "ranks_registered.py", 3, folder, environ=environ)


@pytest.mark.parametrize("name", ["start", *REGISTERED, *HOOKS, *ON_GLOO, "stop"])
def test_training(job: Job, name: str) -> None:
    job.require(name)
