"""The executor of pipelines: every schedule, and what becomes of ranks that wait."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.model_parallel.support.ranks import results, run_ranks, words_of
from tests.support.waiting import within

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("ranks_pipeline.py")
LIMIT_S = 240  # no promise: ranks that import torch beside other work take their time


@pytest.mark.parametrize(
    ("backend", "count"),
    [
        ("gloo", 2), ("auto", 4), ("ordered", 4),
        pytest.param("gloo", 4, marks=pytest.mark.long),
        pytest.param("auto", 2, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_every_schedule_gives_the_gradients_of_the_whole_chain(backend: str, count: int) -> None:
    parameters = {"pipeline_parallel_degree": count, "microbatches": 8}
    ends = run_ranks(SCRIPT, count, arguments=[backend], parameters=parameters, limit_s=LIMIT_S)
    for found in results(ends):
        assert len(found["said"]) == 22
        assert not {name: apart for name, apart in found["said"].items() if apart > 1e-12}


WAITS = """
    import logging, os, sys, time
    logging.basicConfig(level="WARNING", format="%(message)s")
    import torch
    from torch import nn
    import muster_modelparallel as smp
    from muster_modelparallel.run.pipeline import waits
    waits.LONG_S = 0.4
    smp.init()
    model = smp.DistributedModel(nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]))

    @smp.step
    def train(x):
        model.backward(model(x).sum())

    train(torch.ones(8, 4))
    train(torch.ones(8, 4))
    print("pid", os.getpid(), flush=True)
    if smp.rank() == 1:
        time.sleep({pause})
        if {dies}:
            os.kill(os.getpid(), 9)
    train(torch.ones(8, 4))
    print("went on", flush=True)
"""


def test_a_rank_that_waits_says_for_what_and_goes_on() -> None:
    script = WAITS.format(pause=2.0, dies=False)
    parameters = {"pipeline_parallel_degree": 2, "microbatches": 4}
    ends = run_ranks(script, 2, parameters=parameters, limit_s=LIMIT_S)
    assert [end.code for end in ends] == [0, 0], words_of(ends)
    assert all("went on" in end.out for end in ends)
    words = r"rank 0 waits .* since \d+ s"
    assert re.search(words, ends[0].err), words_of(ends)


@pytest.mark.parametrize("backend", ["gloo", "auto"])
@pytest.mark.promise("F74")
def test_a_rank_that_is_killed_ends_the_others_which_name_it(backend: str) -> None:
    script = WAITS.format(pause=0.0, dies=True)
    parameters = {
        "pipeline_parallel_degree": 2, "microbatches": 4, "ddp_dist_backend": backend,
    }  # fmt: skip
    begin = time.monotonic()
    ends = run_ranks(script, 2, parameters=parameters, limit_s=LIMIT_S)
    assert ends[1].code == -signal.SIGKILL and ends[0].code == 1, words_of(ends)
    assert time.monotonic() - begin < within(60)
    assert re.search(r"ExchangeError: rank 0 waits .* rank 1", ends[0].err), words_of(ends)
