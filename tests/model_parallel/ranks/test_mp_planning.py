"""MODELPARALLEL_PLAN_OUT: a script is planned in place of being trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from muster_modelparallel.shape.plan import Plan
from tests.model_parallel.support.ranks import RankEnd, run_ranks, words_of

pytestmark = pytest.mark.torch
TWO = {"partitions": 2, "microbatches": 4, "ddp": True}
# `{change}` is done to the model before it is wrapped
SCRIPT = """\
import torch
from torch import nn
import smdistributed.modelparallel.torch as smp

smp.init({given})
layers = [part for _ in range(4) for part in (nn.Linear(32, 32), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(32, 8))
{change}
before = [p.clone() for p in model.parameters()]
model = smp.DistributedModel(model)
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))

@smp.step
def train(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    model.backward(loss)
    return loss

try:
    train(torch.randn(16, 32), torch.randint(8, (16,)))
finally:
    assert all(map(torch.equal, before, model.parameters())), "the plan has changed the model"
    assert all(p.grad is None for p in model.parameters()), "the plan has left gradients"
print("trained")
"""


def planned(
    out: Path,
    ranks: str,
    *,
    parameters: Mapping[str, object] | None = None,
    change: str = "",
    given: str = "",
    count: int = 1,
) -> Sequence[RankEnd]:
    env = {"MODELPARALLEL_PLAN_OUT": str(out), "MODELPARALLEL_RANKS": ranks}
    script = SCRIPT.format(change=change, given=given)
    return run_ranks(script, count, parameters=parameters, env=env)


def test_the_first_step_is_planned_for_the_whole_job_and_ends_the_process(tmp_path: Path) -> None:
    (end,) = planned(tmp_path / "plan", "8", parameters=TWO)
    assert end.code == 0, words_of([end])
    assert "trained" not in end.out
    plan = Plan.load(tmp_path / "plan.json")
    assert (len(plan.stages), plan.replicas, plan.microbatches) == (2, 4, 4)
    assert plan.proof == "proved: 1 outputs, 10 gradients"
    for stage in plan.stages:  # the text is what the file says
        assert stage.units[0] in end.out
    page = ElementTree.parse(tmp_path / "plan.html").getroot()
    assert page.tag.endswith("html")
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "plan.html"}


def test_degrees_that_nobody_chose_are_proposed(tmp_path: Path) -> None:
    (end,) = planned(tmp_path / "plan.json", "4")
    assert end.code == 0, words_of([end])
    plan = Plan.load(tmp_path / "plan.json")
    assert {row.pipeline for row in plan.alternatives} == {1, 2, 4}
    possible = [row for row in plan.alternatives if not row.problem]
    best = min(possible, key=lambda row: row.batch_s)
    assert (len(plan.rank_bytes), plan.microbatches) == (best.pipeline, best.microbatches)


def test_partitions_of_the_script_are_the_stages(tmp_path: Path) -> None:
    given = {"partitions": 2, "auto_partition": False, "default_partition": 1, "ddp": True}
    (end,) = planned(
        tmp_path / "plan", "2", parameters=given,
        change="for layer in model[:3]: smp.set_partition(layer, 0)",
    )  # fmt: skip
    assert end.code == 0, words_of([end])
    plan = Plan.load(tmp_path / "plan.json")
    assert [stage.units for stage in plan.stages] == [
        ("0", "1", "2"), ("3", "4", "5", "6", "7", "8"),
    ]  # fmt: skip
    assert plan.why == "the script's own partitions"


def test_a_split_that_gives_other_numbers_is_no_plan(tmp_path: Path) -> None:
    change = """\
calls = []
class Drifting(nn.Linear):
    def forward(self, x):
        calls.append(1)
        return super().forward(x) * len(calls)
model[4] = Drifting(32, 32)
"""
    (end,) = planned(tmp_path / "plan", "2", parameters=TWO, change=change)
    assert end.code == 1
    assert "SplitError" in end.err and "the first unit that differs is 4" in end.err, end.err
    assert not list(tmp_path.iterdir())


def test_a_pipeline_longer_than_the_model_is_refused(tmp_path: Path) -> None:
    (end,) = planned(tmp_path / "plan", "64", parameters={**TWO, "partitions": 64})
    assert end.code == 1
    assert "64 stages" in end.err and "9" in end.err, end.err


def test_a_job_of_several_ranks_plans_nothing(tmp_path: Path) -> None:
    for end in planned(tmp_path / "plan", "2", parameters=TWO, count=2):
        assert end.code == 1
        assert "MODELPARALLEL_PLAN_OUT is set in a job of 2 ranks" in end.err


@pytest.mark.parametrize(
    ("out", "ranks", "words"),
    [
        ("plan", "none", "MODELPARALLEL_RANKS='none' is no number above 0"),
        ("plan", "0", "MODELPARALLEL_RANKS='0' is no number above 0"),
        ("nowhere/plan", "2", "there is no folder"),
        ("plan", "3", "does not divide the world size 3"),
    ],
)
def test_what_cannot_be_planned_is_said_by_init(
    tmp_path: Path, out: str, ranks: str, words: str
) -> None:
    (end,) = planned(tmp_path / out, ranks, parameters=TWO)
    assert end.code == 1
    assert words in end.err, end.err
