"""Step functions: the body once for each microbatch, what it sees, and how it may fail."""

from __future__ import annotations

import sys

import pytest
import torch

from muster_modelparallel.errors import NotStartedError, StepError
from muster_modelparallel.run.outputs import StepOutput
from muster_modelparallel.run.session import Microbatch, current
from muster_modelparallel.run.step import step
from tests.model_parallel.support.alone import alone

pytestmark = pytest.mark.torch


class Recorder:
    """What a model is told."""

    is_cut = False

    def __init__(self):
        self.events = []

    def begin_step(self, microbatches):
        self.events.append(("begin", microbatches))

    def end_step(self):
        self.events.append("end")


def test_the_body_runs_once_for_each_microbatch_in_order() -> None:
    with alone(microbatches=4) as session:
        seen = []

        @step
        def work(x):
            seen.append((session.microbatch, x.tolist()))
            return x.sum()

        out = work(torch.arange(8))
        assert seen == [(Microbatch(i, 4), [2 * i, 2 * i + 1]) for i in range(4)]
        assert [int(each) for each in out.outputs] == [1, 5, 9, 13]
        assert session.microbatch is None


def test_it_decorates_with_and_without_brackets() -> None:
    with alone(microbatches=2):
        for decorate in (step, step()):

            @decorate
            def work(x):
                """Doc."""
                return x

            assert isinstance(work(torch.ones(2)), StepOutput)
            assert work.__name__ == "work" and work.__doc__ == "Doc."
            assert work.__wrapped__(1) == 1


def test_options_of_the_decorator_count() -> None:
    with alone(microbatches=2):

        @step(non_split_inputs=["y"], input_split_axes={"x": 1})
        def shapes(x, y):
            return str(list(x.shape)), str(list(y.shape))

        assert shapes(torch.ones(3, 4), torch.ones(5)) == (["[3, 2]"] * 2, ["[5]"] * 2)


def test_outputs_are_detached_unless_one_says_otherwise() -> None:
    with alone(microbatches=2):
        weight = torch.ones(1, requires_grad=True)

        def work(x):
            return {"y": (x * weight).sum()}

        assert not step(work)(torch.ones(2))["y"].reduce_mean().requires_grad
        kept = step(detach_outputs=False)(work)(torch.ones(2))["y"]
        assert kept.reduce_mean().requires_grad


def test_methods_of_classes() -> None:
    with alone(microbatches=2):

        class Trainer:
            factor = 3

            @step
            def run(self, x):
                return x * self.factor

        trainer = Trainer()
        assert trainer.run(torch.ones(2)).concat().tolist() == [3, 3]
        assert Trainer.run(trainer, x=torch.ones(2)).concat().tolist() == [3, 3]
        assert trainer.run.__name__ == "run"


def test_the_model_is_told_where_a_step_begins_and_ends() -> None:
    with alone(microbatches=3) as session:
        session.model = recorder = Recorder()

        @step
        def work(x):
            recorder.events.append("body")

        assert work(torch.ones(3)) is None
        assert recorder.events == [("begin", 3), "body", "body", "body", "end"]


def test_nothing_runs_where_an_argument_cannot_be_cut() -> None:
    with alone(microbatches=2) as session:
        session.model = recorder = Recorder()
        work = step(lambda x, y: recorder.events.append("body"))
        with pytest.raises(StepError, match="argument y has 3"):
            work(torch.ones(2), torch.ones(3))
        assert recorder.events == []


def test_the_users_own_exception_comes_out_with_a_note() -> None:
    with alone(microbatches=4) as session:
        session.model = recorder = Recorder()
        error = ValueError("bad batch")

        @step
        def work(x):
            if session.microbatch.index == 2:
                raise error

        work.calls = 6
        with pytest.raises(ValueError, match="bad batch") as caught:
            work(torch.ones(4))
        assert caught.value is error and error.args == ("bad batch",)
        assert session.microbatch is None
        assert "end" not in recorder.events
        if sys.version_info >= (3, 11):
            (note,) = error.__notes__
            assert "work, call 7, on rank 0, microbatch 2 (of 4, counted from 0)" in note
        with pytest.raises(ValueError, match="bad batch"):
            work(torch.ones(4))  # it can be called again


def test_a_step_function_within_another_is_refused() -> None:
    with alone(microbatches=1):
        inner = step(lambda x: x)
        outer = step(lambda x: [inner(x)])
        with pytest.raises(StepError, match="called within a step function"):
            outer(torch.ones(1))
        assert inner(torch.ones(1)).concat().tolist() == [1]


def test_gradient_mode_and_autocast_hold_in_the_body() -> None:
    with alone(microbatches=2):
        work = step(lambda x: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        with torch.no_grad(), torch.autocast("cpu"):
            assert work(torch.ones(2)) == ([False, False], [True, True])
        assert torch.no_grad()(work)(torch.ones(2))[0] == [False, False]


def test_what_is_no_function_is_refused_and_init_comes_first() -> None:
    with pytest.raises(StepError, match="in place of a function"):
        step(["x"])  # type: ignore[call-overload]
    work = step(lambda x: x)
    with pytest.raises(NotStartedError, match="init"):
        work(1)
    with alone():
        assert current().config.microbatches == 1
        assert work(1) == [1]
