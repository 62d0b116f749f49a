"""Futures of sends and receives: one thread of a group settles them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.support.torch_ranks import TEST_S, Job, names_of, run_checks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(TEST_S)]
SCRIPT = Path(__file__).with_name("ranks_futures.py")
LIMIT_S = 120.0
WAYS = {
    "within a node": {},
    "between nodes": {"RANKS_APART": "1"},
}


@pytest.fixture(scope="module", params=list(WAYS))
def two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    way: str = request.param
    return run_checks(
        SCRIPT, 2, tmp_path_factory.mktemp("futures"), environ=WAYS[way], limit_s=LIMIT_S
    )


@pytest.mark.parametrize("name", names_of(SCRIPT))
def test_futures_of_transfers(two_ranks: Job, name: str) -> None:
    two_ranks.require(name)
