"""Asynchronous calls are begun by a thread of the core, which needs no lock of Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.support.torch_ranks import TEST_S, Job, names_of, run_checks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(TEST_S)]
SCRIPT = Path(__file__).with_name("ranks_async.py")
LIMIT_S = 200.0
WAYS = {
    "lane": {"COLLECTIVES_ASYNC": "lane"},
    "lazy": {"COLLECTIVES_ASYNC": "lazy"},
    "between nodes": {"COLLECTIVES_ASYNC": "lane", "RANKS_APART": "1"},
}


@pytest.fixture(scope="module", params=list(WAYS))
def two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    way: str = request.param
    folder = tmp_path_factory.mktemp("async")
    return run_checks(SCRIPT, 2, folder, environ=WAYS[way], limit_s=LIMIT_S)


@pytest.mark.parametrize("name", names_of(SCRIPT))
def test_asynchronous_calls(two_ranks: Job, name: str) -> None:
    two_ranks.require(name)
