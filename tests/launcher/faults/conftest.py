"""Real processes on one machine; every job is checked for survivors afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.support.containers import Make, container_jobs
from tests.launcher.support.fixtures import cluster
from tests.launcher.support.local.local_runs import start
from tests.launcher.support.peers.attacked_leader import LeaderUnderAttack
from tests.support.mpi import in_turns, mpi, open_mpi

__all__ = ["attacked", "cluster", "containers", "mpi", "open_mpi", "start"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_turns(items)


@pytest.fixture
def containers() -> Iterator[Make]:
    """Makes jobs of containers, `containers(script, hosts=2, ...)`; skips without an engine."""
    with container_jobs() as make:
        yield make


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[LeaderUnderAttack]:
    """A leader with true hosts, which are as well after the test as before it."""
    made = LeaderUnderAttack(tmp_path)
    try:
        yield made
        made.check_the_true_hosts()
    finally:
        made.close()
