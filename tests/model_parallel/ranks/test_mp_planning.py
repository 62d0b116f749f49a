"""MODELPARALLEL_PLAN_OUT: a script is planned in place of being trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from muster_modelparallel.errors import SettingsError
from muster_modelparallel.run.own_variables import read_variables
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

x, y = torch.randn(16, 32), torch.randint(8, (16,))
{step}
print("trained")
"""
STEP = """\
try:
    train(x, y)
except BaseException as error:  # as scripts do that save whatever happens
    print("saved", type(error).__name__)
    raise
"""
# what the end of the process hides
LOOKS = """\
from muster_modelparallel.run.session import current
from muster_modelparallel.wrap.cut.planning import write_plan
state = torch.random.get_rng_state()
write_plan(current(), model.module, (x[:4],), {})
assert all(map(torch.equal, before, model.parameters())), "the plan has changed the model"
assert all(p.grad is None for p in model.parameters()), "the plan has left gradients"
assert torch.equal(state, torch.random.get_rng_state()), "the plan has drawn random numbers"
"""


def planned(
    out: Path,
    ranks: str,
    *,
    parameters: Mapping[str, object] | None = None,
    change: str = "",
    given: str = "",
    count: int = 1,
    step: str = STEP,
) -> Sequence[RankEnd]:
    env = {"MODELPARALLEL_PLAN_OUT": str(out), "MODELPARALLEL_RANKS": ranks}
    script = SCRIPT.format(change=change, given=given, step=step)
    return run_ranks(script, count, parameters=parameters, env=env)


def test_the_first_step_is_planned_for_the_whole_job_and_ends_the_process(tmp_path: Path) -> None:
    (end,) = planned(tmp_path / "plan", "8", parameters=TWO)
    assert end.code == 0, words_of([end])
    assert "trained" not in end.out and "saved" not in end.out
    plan = Plan.load(tmp_path / "plan.json")
    assert (len(plan.stages), plan.replicas, plan.microbatches) == (2, 4, 4)
    assert plan.proof == "proved: 1 outputs bit-equal, 10 gradients"
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


@pytest.mark.parametrize(
    ("keys", "costs", "first"),
    [
        ({}, "measured", None),
        ({"skip_tracing": True}, "flops", 3),
        ({"skip_tracing": True, "memory_weight": 0.0}, "flops", 3),
        ({"skip_tracing": True, "optimize": "speed"}, "flops", 2),
        ({"skip_tracing": True, "optimize": "memory"}, "flops", 0),
        ({"skip_tracing": True, "optimize": "speed", "memory_weight": 0.8}, "flops", 0),
    ],
)
def test_cuts_weigh_what_the_keys_say(
    tmp_path: Path, keys: dict[str, object], costs: str, first: int | None
) -> None:
    """Six equal layers after one of nothing but bytes. `first`: how many lie with that one."""
    change = """\
class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(100_000, 32)
    def forward(self, x):
        return x + self.rows.weight[0]
model = nn.Sequential(Table(), *[nn.Linear(32, 32) for _ in range(6)])
"""
    (end,) = planned(tmp_path / "plan", "2", parameters={**TWO, **keys}, change=change)
    assert end.code == 0, words_of([end])
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.profile.costs == costs
    assert first is None or len(plan.stages[0].units) == 1 + first, plan.stages


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


def test_a_plan_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    (end,) = planned(tmp_path / "plan", "2", parameters=TWO, step=LOOKS)
    assert end.code == 0, words_of([end])
    assert "trained" in end.out and (tmp_path / "plan.json").is_file()


def test_a_validation_before_the_first_step_is_run_as_it_is(tmp_path: Path) -> None:
    step = f"""\
with torch.no_grad():
    print("validated", model.eval()(x).shape)
model.train()
{STEP}"""
    (end,) = planned(tmp_path / "plan", "2", parameters=TWO, step=step)
    assert end.code == 0, words_of([end])
    assert "validated" in end.out
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.proof.endswith("10 gradients")
    assert any(unit.backward_s for unit in plan.profile.units)


def test_a_value_that_reaches_a_later_stage_in_a_dictionary_is_no_plan(tmp_path: Path) -> None:
    """No rank but the one that wrote it would have it."""
    change = """\
shared = {}
class Writes(nn.Linear):
    def forward(self, x):
        self.store["h"] = x.detach()
        return super().forward(x)
class Reads(Writes):
    def forward(self, x):
        return nn.Linear.forward(self, x + self.store["h"])
model[0], model[6] = Writes(32, 32), Reads(32, 32)
model[0].store = model[6].store = shared
smp.set_partition(model, 0)
for layer in model[4:]:
    smp.set_partition(layer, 1)
"""
    by_hand = {**TWO, "auto_partition": False}
    (end,) = planned(tmp_path / "plan", "2", parameters=by_hand, change=change)
    assert end.code == 1, words_of([end])
    assert not list(tmp_path.iterdir())


def test_a_partition_within_a_unit_is_refused_by_name(tmp_path: Path) -> None:
    change = """\
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)
    def forward(self, x):
        return self.two(self.one(x))
model[0] = Pair()
smp.set_partition(model, 1)
smp.set_partition(model[0], 0)
smp.set_partition(model[0].two, 1)
"""
    by_hand = {**TWO, "auto_partition": False}
    (end,) = planned(tmp_path / "plan", "2", parameters=by_hand, change=change)
    if end.code:  # else the unit was opened, and the partition is followed
        assert "0.two is on partition 1 and lies in 0" in end.err, end.err
    else:
        plan = Plan.load(tmp_path / "plan.json")
        assert "0.two" in plan.stages[1].units


def test_only_numbers_of_microbatches_that_cut_the_batch_are_proposed(tmp_path: Path) -> None:
    (end,) = planned(
        tmp_path / "plan", "4", step=STEP.replace("train(x, y)", "train(x[:6], y[:6])")
    )
    assert end.code == 0, words_of([end])
    plan = Plan.load(tmp_path / "plan.json")
    assert {row.microbatches for row in plan.alternatives} == {1, 2}


@pytest.mark.parametrize(
    ("out", "name"), [("gpt-1.3b", "gpt-1.3b.json"), ("plan.json", "plan.json")]
)
def test_a_plan_has_the_name_that_was_asked_for(tmp_path: Path, out: str, name: str) -> None:
    asked = read_variables({"MODELPARALLEL_PLAN_OUT": str(tmp_path / out)}).plan
    assert asked is not None and asked.out == tmp_path / name
    with pytest.raises(SettingsError, match="is a folder"):
        read_variables({"MODELPARALLEL_PLAN_OUT": str(tmp_path)})
