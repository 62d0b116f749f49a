"""Steps of a model that is cut, over gloo and over muster, on 2 and 4 ranks."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import pytest

from tests.model_parallel.support.checks import failures
from tests.model_parallel.support.ranks import RankEnd, results, run_ranks, words_of
from tests.support.waiting import within

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
CHECKS = Path(__file__).with_name("ranks_steps.py")
LIMIT_S = 240  # no promise: ranks that import torch beside other work take their time
ENDS_S = 5.0  # processes that come to their end among them
ASKED = {"gloo": "gloo", "muster": "auto"}  # what ddp_dist_backend is for each


@pytest.mark.parametrize(
    ("backend", "count"),
    [("gloo", 2), pytest.param("muster", 2, marks=pytest.mark.long), ("muster", 4)],
)
def test_steps(backend: str, count: int) -> None:
    """All checks of ranks_steps.py, by name, in one job."""
    parameters = {"microbatches": 4, "ddp_dist_backend": ASKED[backend]}
    found = results(run_ranks(CHECKS, count, parameters=parameters, limit_s=LIMIT_S))
    assert not failures(found), failures(found)


@pytest.mark.parametrize("script", ["ranks_straight", "ranks_keys", "ranks_state"])
def test_steps_of_two_ranks(script: str) -> None:
    """All checks of the script, by name, in one job."""
    parameters = {"microbatches": 4, "ddp_dist_backend": "auto"}
    checks = CHECKS.with_name(f"{script}.py")
    found = results(run_ranks(checks, 2, parameters=parameters, limit_s=LIMIT_S))
    assert not failures(found), failures(found)


def test_updates() -> None:
    """All checks of ranks_updates.py, by name, in one job that chooses microbatches itself."""
    checks = CHECKS.with_name("ranks_updates.py")
    found = results(run_ranks(checks, 2, limit_s=LIMIT_S))
    assert not failures(found), failures(found)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_calls_that_differ(microbatches: int) -> None:
    """All checks of ranks_calls.py, by name, in one job."""
    parameters = {"microbatches": microbatches, "ddp_dist_backend": "auto"}
    checks = CHECKS.with_name("ranks_calls.py")
    found = results(run_ranks(checks, 2, parameters=parameters, limit_s=LIMIT_S))
    assert not failures(found), failures(found)


BEGIN = """
    import sys, time
    import torch
    from torch import nn
    import muster_modelparallel as smp
    smp.init()
    rank = smp.rank()
    torch.manual_seed(0)
    class Layer(nn.Linear):
        def forward(self, x):
            calls[0] += 1
            if bad(x):
                print(time.time(), flush=True)
                raise ValueError("bad batch")
            return super().forward(x)
    calls = [0]
    bad = lambda x: False
    net = nn.Sequential(*[Layer(4, 4) for _ in range(4)])
    model = smp.DistributedModel(net)

    @smp.step
    def train(x):
        out = model(x)
        loss = out.sum()
        model.backward(loss)
        return loss

"""
IN_A_STAGE = """
    for number in range(5):
        if number == 2 and rank == {rank}:
            calls[0] = 0
            bad = lambda x: calls[0] > 2  # in the second microbatch
        train(torch.ones(8, 4))
"""
IN_THE_FUNCTION = """
    @smp.step
    def fails(x, number):
        if number == 2 and rank == {rank} and {where} == "before":
            print(time.time(), flush=True)
            raise ValueError("bad batch")
        out = model(x)
        if number == 2 and rank == {rank}:
            print(time.time(), flush=True)
            raise ValueError("bad batch")
        model.backward(out.sum())

    for number in range(5):
        fails(torch.ones(8, 4), number)
"""


def run(script: str, backend: str, **more: object) -> list[RankEnd]:
    parameters = {"pipeline_parallel_degree": 2, "microbatches": 4} | more
    parameters["ddp_dist_backend"] = ASKED[backend]
    return run_ranks(BEGIN + script, 2, parameters=parameters, limit_s=LIMIT_S)


def said_by(end: RankEnd) -> list[str]:
    """Lines of its errors; torch puts the rank before each."""
    return [line.removeprefix(f"[rank{end.rank}]: ") for line in end.err.splitlines()]


# each place on each rank and over each backend; all of them together in test-long
FAILURES = [
    pytest.param(*one, marks=[] if (one[1] == 0) == (one[2] == "gloo") else pytest.mark.long)
    for one in itertools.product(("stage", "before", "after"), (0, 1), ("gloo", "muster"))
]


@pytest.mark.parametrize(("where", "rank", "backend"), FAILURES)
@pytest.mark.promise("F73")
def test_an_exception_in_a_stage_is_raised_as_it_is_and_ends_all_ranks(
    backend: str, rank: int, where: str
) -> None:
    script = IN_A_STAGE if where == "stage" else IN_THE_FUNCTION
    ends = run(script.format(rank=rank, where=repr(where)), backend)
    took_s = time.time() - float(ends[rank].out.split("\n")[-2])
    assert all(end.code not in (0, -9) for end in ends), words_of(ends)
    assert took_s < within(ENDS_S)
    lines = said_by(ends[rank])
    assert "ValueError: bad batch" in lines, words_of(ends)
    if sys.version_info >= (3, 11):
        assert any(line.startswith("in step function") for line in lines), words_of(ends)
        if where == "stage":
            assert f"in stage {rank}, microbatch 1" in lines, words_of(ends)
            assert f"in unit {2 * rank}" in lines, words_of(ends)
    other = "\n".join(said_by(ends[1 - rank]))
    assert "ExchangeError" in other and f"rank {1 - rank} " in other, words_of(ends)


MISUSES = {
    "a second call of the model": (
        """
    times = [1]

    @smp.step
    def step(x):
        for _ in range(times[0]):
            out = model(x)
        model.backward(out.sum())

    step(torch.ones(8, 4))
    times[0] = 2
    step(torch.ones(8, 4))
""",
        "the step function called the model a second time, but once in the steps before",
    ),
    "an output as an argument": (
        """
    @smp.step
    def step(x):
        model.backward(model(model(x)).sum())

    step(torch.ones(8, 4))
""",
        "the output of one call of the model was given to another one",
    ),
    "a parameter of another stage": (
        """
    @smp.step
    def step(x):
        model.backward(model(x).sum() + sum(one.square().sum() for one in net.parameters()))

    step(torch.ones(8, 4))
    step(torch.ones(8, 4))
""",
        "the step function used parameter 0.weight, which lies on rank 0, and got a gradient",
    ),
    "what a module of another stage keeps of its forward": (
        """
    from muster_modelparallel.run import session

    class Aux(Layer):
        aux = 0.0

        def forward(self, x):
            out = super().forward(x)
            self.aux = out.square().mean()
            return out

    session.shutdown()
    smp.init()
    net = nn.Sequential(*[Aux(4, 4) for _ in range(4)])
    model = smp.DistributedModel(net)

    @smp.step
    def step(x):
        for one in net:
            one.aux = 0.0
        out = model(x)
        model.backward(out.sum() + sum(one.aux for one in net))

    step(torch.ones(8, 4))
""",
        "0.aux, which forward sets, was read on a rank where that module does not run: it does on "
        "rank 0 of the pipeline",
    ),
    "NaN in the first batch": (
        """
    train(torch.full((8, 4), float("nan")))
""",
        "the first microbatch gives gradients that are not a number, so no split can be proved",
    ),
    "a copy of the model": (
        """
    import copy

    copy.deepcopy(model)
""",
        "a model with several partitions was copied or pickled; copy model.get_module() before",
    ),
    "other modes on another rank": (
        """
    train(torch.ones(8, 4))
    if rank == 1:
        model.eval()
    train(torch.ones(8, 4))
""",
        "rank 1 is in other modes than rank 0, the first of the pipeline: training False and True",
    ),
    "a parameter that is frozen on one rank alone": (
        """
    train(torch.ones(8, 4))
    if rank == 1:
        net[0].requires_grad_(False)
    train(torch.ones(8, 4))
""",
        "on rank 1 other parameters have requires_grad than on rank 0, the first of the pipeline",
    ),
    "a parameter that is unfrozen within a step": (
        """
    net[:2].requires_grad_(False)

    @smp.step
    def step(x):
        net.requires_grad_(True)
        model.backward(model(x).sum())

    train(torch.ones(8, 4))
    step(torch.ones(8, 4))
""",
        "change requires_grad between steps alone",
    ),
    "a step function within a step function": (
        """
    @smp.step
    def step(x, recurs):
        model.backward(model(x).sum())
        if recurs:
            train(x)

    for number in range(3):
        step(torch.ones(8, 4), number == 2)
""",
        "step function train was called within a step function",
    ),
    "loss.backward()": (
        """
    @smp.step
    def step(x):
        model(x).sum().backward()

    step(torch.ones(8, 4))
""",
        "call model.backward(loss) in place of loss.backward()",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_what_would_give_wrong_gradients_is_refused(name: str) -> None:
    script, words = MISUSES[name]
    ends = run(script, "muster")
    assert all(end.code not in (0, -9) for end in ends), words_of(ends)
    assert any(words in end.err for end in ends), words_of(ends)


def test_no_step_is_taken_after_one_that_failed_amid_its_messages() -> None:
    script = """
    train(torch.ones(8, 4))
    bad = lambda x: True
    for _ in range(2):
        try:
            train(torch.ones(8, 4))
        except ValueError:
            assert rank == 0
        except smp.errors.ModelParallelError as error:
            print(error, flush=True)
    """
    script = script.replace("smp.errors", "__import__('muster_modelparallel.errors').errors")
    ends = run(script, "muster")
    assert "train was called after a step had failed amid its messages: ValueError" in ends[0].out


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupt_in_the_midst_of_a_step_is_raised_as_it_is(rank: int) -> None:
    """On the script's own thread, in a later microbatch; no step is taken after it."""
    script = """
    from muster_modelparallel.errors import StepError

    @smp.step
    def step(x, number):
        loss = model(x).sum()
        model.backward(loss)
        if turn == 2 and rank == {rank} and int(number[0]) == 2:
            raise KeyboardInterrupt

    for turn in range(3):
        try:
            step(torch.ones(8, 4), torch.arange(4))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            try:
                train(torch.ones(8, 4))
            except StepError as error:
                print(error, flush=True)
                raise SystemExit(3)
    """.replace("{rank}", str(rank))
    ends = run(script, "muster")
    assert ends[rank].code not in (0, -9), words_of(ends)
    assert "interrupted\ntrain was called after a step had failed" in ends[rank].out
    other = "\n".join(said_by(ends[1 - rank]))
    assert ends[1 - rank].code not in (0, -9) and "ExchangeError" in other, words_of(ends)


def test_a_function_that_calls_the_model_twice_runs_and_says_so_once() -> None:
    script = """
    @smp.step
    def step(x):
        model.backward((model(x) - model(2 * x)).sum())

    for _ in range(3):
        step(torch.ones(8, 4))
    """
    ends = run(script, "muster")
    results_ = [end.code for end in ends]
    assert results_ == [0, 0], words_of(ends)
    words = "step function step calls the model 2 times for a microbatch"
    assert all(end.err.count(words) == 1 for end in ends), words_of(ends)


def test_results_do_not_depend_on_the_number_of_stages() -> None:
    """With dropout, bit for bit, where cuts lie between blocks: those by FLOPs do, however busy the
    machine is."""
    script = """
    from muster_modelparallel.run import session
    drop = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(6)])
    session.shutdown()
    smp.init()
    torch.manual_seed(7)
    model = smp.DistributedModel(drop)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(drop.parameters(), lr=0.1))
    found = []
    for number in range(6):
        optimizer.zero_grad()
        found.append(float(train(torch.ones(8, 4)).reduce_mean()))
        optimizer.step()
    from tests.model_parallel.support.ranks import give
    give(found)
    """
    by_degree = [
        results(
            run_ranks(
                BEGIN + script,
                degree,
                limit_s=LIMIT_S,
                parameters={
                    "pipeline_parallel_degree": degree,
                    "microbatches": 4,
                    "skip_tracing": True,
                },
            )
        )[0]
        for degree in (2, 4)
    ]
    assert by_degree[0] == by_degree[1]
    assert len(set(by_degree[0])) == len(by_degree[0])
