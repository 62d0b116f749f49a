"""The executor of pipelines: every schedule, and what becomes of ranks that wait."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.model_parallel.support.ranks import RankEnd, results, run_ranks, words_of
from tests.support.waiting import within

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("ranks_pipeline.py")
LIMIT_S = 240  # no promise: ranks that import torch beside other work take their time
ENDS_S = 5.0  # processes that come to their end among them


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


# each end of the model stops its rank in the third microbatch of a step that is a pipeline
STOPS = """
    import logging, os, time
    logging.basicConfig(level="WARNING", format="%(message)s")
    import torch
    from torch import nn
    import muster_modelparallel as smp
    from muster_modelparallel.run.pipeline import waits
    waits.LONG_S = 0.4
    calls = None

    class Stopping(nn.Linear):
        def forward(self, x):
            global calls
            if calls is not None and smp.rank() == {rank}:
                calls += 1
                if calls == 3:
                    print(time.time(), flush=True)
                    {stop}
            return super().forward(x)

    smp.init()
    ends = Stopping(4, 4), Stopping(4, 4)
    model = smp.DistributedModel(nn.Sequential(ends[0], nn.Linear(4, 4), nn.Linear(4, 4), ends[1]))

    @smp.step
    def train(x):
        model.backward(model(x).sum())

    train(torch.ones(8, 4))
    train(torch.ones(8, 4))
    calls = 0
    train(torch.ones(8, 4))
    print("went on", flush=True)
"""


def ends_of(rank: int, stop: str, backend: str = "auto") -> list[RankEnd]:
    parameters = {
        "pipeline_parallel_degree": 2, "microbatches": 4, "ddp_dist_backend": backend,
    }  # fmt: skip
    script = STOPS.replace("{rank}", str(rank)).replace("{stop}", stop)
    return run_ranks(script, 2, parameters=parameters, limit_s=LIMIT_S)


@pytest.mark.parametrize(("rank", "kind"), [(0, "activations"), (1, "gradients")])
def test_a_rank_that_waits_says_for_which_stage_microbatch_and_direction_and_goes_on(
    rank: int, kind: str
) -> None:
    ends = ends_of(rank, "time.sleep(2.0)")
    assert [end.code for end in ends] == [0, 0], words_of(ends)
    assert all("went on" in end.out for end in ends)
    other = 1 - rank
    words = (
        f"rank {other} waits for the {kind} of microbatch 2 from stage {rank} to stage {other} "
        rf"from rank {rank}, since \d+ s"
    )
    assert re.search(words, ends[other].err), words_of(ends)


@pytest.mark.parametrize(
    ("rank", "backend"),
    [
        (0, "gloo"), (1, "auto"),
        pytest.param(0, "auto", marks=pytest.mark.long),
        pytest.param(1, "gloo", marks=pytest.mark.long),
    ],
)  # fmt: skip
@pytest.mark.promise("F74")
def test_a_rank_that_is_killed_ends_the_other_which_names_it(rank: int, backend: str) -> None:
    ends = ends_of(rank, "os.kill(os.getpid(), 9)", backend)
    took_s = time.time() - float(ends[rank].out.split()[-1])
    other = 1 - rank
    assert ends[rank].code == -signal.SIGKILL and ends[other].code == 1, words_of(ends)
    assert took_s < within(ENDS_S)
    words = rf"ExchangeError: rank {other} waits .* microbatch \d .* rank {rank}"
    assert re.search(words, ends[other].err), words_of(ends)
