"""Replicas train as one process with the whole batch, over gloo and over muster."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.model_parallel.support.ranks import results, run_ranks, words_of
from tests.support.waiting import within

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
CHECKS = Path(__file__).with_name("ranks_data_parallel.py")
LIMIT_S = 240  # no promise: ranks that import torch beside other work take their time
ENDS_S = 30
ASKED = {"gloo": "gloo", "muster": "auto"}  # what ddp_dist_backend is for each


def names() -> list[str]:
    """Of the checks, without importing them (torch)."""
    listed = CHECKS.read_text().split("\nCHECKS = (")[1].split("\n)")[0]
    return [line.strip(" ,") for line in listed.splitlines() if line.strip()]


# each backend and each number of ranks; the other pairs are left to test-long
JOBS = [
    "gloo-2", "muster-4",
    *(pytest.param(one, marks=pytest.mark.long) for one in ("muster-2", "gloo-4")),
]  # fmt: skip


@pytest.fixture(scope="module", params=JOBS)
def job(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    """What the ranks of a job say of each check."""
    backend, _, count = request.param.partition("-")
    ends = run_ranks(CHECKS, int(count), arguments=[ASKED[backend]], limit_s=LIMIT_S)
    found = results(ends)
    assert all(each["backend"] == backend for each in found), found
    return [each["said"] for each in found]


@pytest.mark.parametrize("name", names())
def test_replicas(job: list[dict[str, str]], name: str) -> None:
    failures = [f"rank {rank}: {said[name]}" for rank, said in enumerate(job) if said[name]]
    assert not failures, "\n".join(failures)


FAILS = """
    import time
    import torch
    from muster_modelparallel.run import session
    from muster_modelparallel.run.step import step
    from muster_modelparallel.wrap.model import DistributedModel
    session.init()
    rank = session.current().mesh.rank
    model = DistributedModel(torch.nn.Linear(4, 4))

    @step
    def train(x, number):
        if number == 2 and rank == 1 and session.current().microbatch.index == 1:
            print(time.time(), flush=True)
            raise ValueError("bad batch")
        model.backward(model(x).sum())

    for number in range(5):
        train(torch.ones(4, 4), number)
"""


@pytest.mark.parametrize("backend", ["gloo", "muster"])
@pytest.mark.promise("F76")
def test_an_exception_on_one_rank_ends_all_within_seconds(backend: str) -> None:
    parameters = {"ddp": True, "microbatches": 2, "ddp_dist_backend": ASKED[backend]}
    ends = run_ranks(FAILS, 2, parameters=parameters, limit_s=LIMIT_S)
    took_s = time.time() - float(ends[1].out.split()[0])
    assert all(end.code not in (0, -9) for end in ends), words_of(ends)
    assert took_s < within(ENDS_S)
    # torch puts the rank before each line
    said = [line.removeprefix("[rank1]: ") for line in ends[1].err.splitlines()]
    assert "ValueError: bad batch" in said, words_of(ends)
    if sys.version_info >= (3, 11):
        assert (
            "in step function train, call 3, on rank 1, microbatch 1 (of 2, counted from 0)" in said
        )
