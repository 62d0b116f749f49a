"""Fixtures that several folders of tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters, `cluster(script, hosts=2, ...)`; checks each of them after the test."""
    made: list[Cluster] = []

    def make(script: str, hosts: int = 2, **options: object) -> Cluster:
        folder = tmp_path / f"cluster-{len(made)}"
        made.append(Cluster(folder, script, hosts, **options))  # type: ignore[arg-type]
        return made[-1]

    try:
        yield make
        for one in made:
            one.check_invariants()
    finally:
        for one in made:
            one.kill()
