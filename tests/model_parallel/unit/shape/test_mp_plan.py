"""Plans: what they say about stages, and files that bring back the same or are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.choose import choose
from muster_modelparallel.shape.costs import Machine
from muster_modelparallel.shape.plan import Plan, Relay, fingerprint
from muster_modelparallel.shape.units import INPUT, Constraint, Flow, ModelProfile, Tie
from tests.model_parallel.support.profiles import chain


def profile() -> ModelProfile:
    plain = chain([1.0] * 6)
    skips = (Flow(INPUT, 5, 16, leaf=1, grad=False), Flow(0, 3, 8, leaf=1), Flow(0, 1, 8, leaf=2))
    ties = (Tie("u0.weight", 100, (0, 5)), Tie("u1.weight", 100, (0, 1)))
    return replace(plain, flows=(*plain.flows, *skips), ties=ties)


def plan() -> Plan:
    made, _ = choose(profile(), Machine(bandwidth=1e12), 3, pipelines=[3], microbatches=[4])
    return made


def test_relays_are_what_lies_on_one_stage_and_is_needed_on_another() -> None:
    assert plan().cuts == (2, 4)
    assert set(plan().relays) == {
        Relay(1, 0, 0, 1, 1000, True),
        Relay(3, 0, 1, 2, 1000, True),
        Relay(INPUT, 1, 0, 2, 16, False),
        Relay(0, 1, 0, 1, 8, True),
    }
    assert plan().tied == {"u0.weight": (0, 2)}
    assert plan().stage_of == {"u0": 0, "u1": 0, "u2": 1, "u3": 1, "u4": 2, "u5": 2}


def test_a_file_brings_back_the_same_plan(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old")
    made = replace(plan(), proof="proved")
    made.save(file)
    assert Plan.load(file) == made
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"format": 2}, "format 2, this version reads 1"),
        ({"fingerprint": "0"}, "does not belong to the fingerprint"),
        ({"microbatches": 0}, "microbatches or replicas are not"),
        ({"microbatches": "4"}, r"microbatches: expected an integer, found '4'"),
        ({"proof": "surely"}, "proof is 'surely'"),
        ({"rank_bytes": [1]}, "rank_bytes, microbatches"),
        (
            {"stages": [{"rank": 0, "units": [f"u{at}" for at in range(5)]}]},
            r"call 5 differs; .*u5",
        ),
        ({"stages": [{"rank": 1, "units": [f"u{at}" for at in range(6)]}]}, "a rank has no units"),
    ],
)
def test_a_file_that_was_changed_is_refused(
    tmp_path: Path, fields: dict[str, Any], found: str
) -> None:
    file = tmp_path / "plan.json"
    plan().save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(PlanError, match=f"plan {re.escape(str(file))}.*{found}"):
        Plan.load(file)


def test_a_file_that_is_cut_short_or_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(file)
    plan().save(file)
    file.write_text(file.read_text()[:-20])
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(file)


def test_a_plan_is_for_the_model_it_was_made_for_whatever_it_costs() -> None:
    made, model = plan(), profile()
    slower = tuple(replace(unit, forward_s=9.0, saved_bytes=5) for unit in model.units)
    made.check_model(replace(model, units=slower, noise=0.5))
    renamed = (*model.units[:3], replace(model.units[3], path="other"), *model.units[4:])
    with pytest.raises(PlanError, match=r"call 3 differs; plan \| model: u2 \| u2; u3 \| other"):
        made.check_model(replace(model, units=renamed))
    larger = (replace(model.units[0], parameter_bytes=1), *model.units[1:])
    for other in (replace(model, units=larger), replace(model, flows=()), replace(model, ties=())):
        assert fingerprint(other) != made.fingerprint
        with pytest.raises(PlanError, match="same order of calls, other parameters"):
            made.check_model(other)


def test_a_plan_cannot_cut_what_must_lie_together() -> None:
    held = replace(profile(), constraints=(Constraint((1, 2), "escape"),))
    with pytest.raises(PlanError, match="u1 and u2 must lie on one stage: escape"):
        replace(plan(), profile=held, fingerprint=fingerprint(held))
