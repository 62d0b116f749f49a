"""Pipelines that are repeated: two stages, two replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_parallel.support.checks import failures
from tests.model_parallel.support.ranks import results, run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
CHECKS = Path(__file__).with_name("ranks_replicas.py")
LIMIT_S = 240  # no promise: ranks that import torch beside other work take their time


def test_replicas_of_a_pipeline() -> None:
    """All checks of ranks_replicas.py, by name, in one job."""
    found = results(run_ranks(CHECKS, 4, limit_s=LIMIT_S))
    assert not failures(found), failures(found)
