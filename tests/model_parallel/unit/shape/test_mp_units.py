"""What a probe learns: only what can be is accepted, and JSON brings back the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.units import INPUT, Constraint, Flow, ModelProfile, Tie, Unit

COUNTS = st.integers(0, 2**50)
SECONDS = st.floats(0, 1e6)


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    count = draw(st.integers(1, 6))
    units = tuple(
        Unit(
            draw(st.text(min_size=1)) + str(at),
            forward_s=draw(SECONDS),
            backward_s=draw(SECONDS),
            saved_bytes=draw(COUNTS),
        )
        for at in range(count)
    )
    pairs = st.tuples(st.integers(INPUT, count - 1), st.integers(0, count), COUNTS)
    flows = tuple(Flow(*one) for one in draw(st.lists(pairs)) if one[0] < one[1])
    some = st.lists(st.integers(0, count - 1), min_size=1).map(tuple)
    ties = tuple(Tie(str(at), 4, one) for at, one in enumerate(draw(st.lists(some))))
    held = tuple(Constraint(one, "alias") for one in draw(st.lists(some)))
    costs = draw(st.sampled_from(["measured", "flops"]))
    return ModelProfile("M", units, flows, ties, held, costs=costs, noise=draw(st.floats(0, 1)))


@given(profiles())
def test_json_brings_back_the_same_profile(profile: ModelProfile) -> None:
    assert ModelProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


UNIT = {"path": "a"}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ([], r"profile: expected an object, found '\[\]'"),
        ({"model": "M"}, "profile lacks units"),
        ({"model": "M", "units": [UNIT], "unit": 1}, "profile has unknown fields: unit"),
        ({"model": 3, "units": [UNIT]}, "profile.model: expected a string, found '3'"),
        ({"model": "M", "units": UNIT}, "profile.units: expected a list"),
        ({"model": "M", "units": []}, "profile: M has no units"),
        ({"model": "M", "units": [UNIT, UNIT]}, "two units have one name"),
        (
            {"model": "M", "units": [{"path": "a", "call": True}]},
            r"units\[0\].call: expected an int",
        ),
        (
            {"model": "M", "units": [{"path": "a", "forward_s": float("nan")}]},
            "forward_s: expected",
        ),
        ({"model": "M", "units": [{"path": "a", "saved_bytes": -1}]}, "a has a negative figure"),
        ({"model": "M", "units": [UNIT], "costs": "guessed"}, "expected 'measured' or 'flops'"),
        (
            {"model": "M", "units": [UNIT], "flows": [{"source": 0, "target": 0, "bytes": 1}]},
            "none",
        ),
        (
            {"model": "M", "units": [UNIT], "constraints": [{"units": [1], "why": "x"}]},
            "there are 1",
        ),
        ({"model": "M", "units": [UNIT], "threads": 0}, "out of range"),
    ],
)
def test_anything_else_is_refused_with_its_place(data: Any, found: str) -> None:
    with pytest.raises(PlanError, match=found):
        ModelProfile.from_json(data)


def test_seconds_come_from_flops_where_nothing_was_measured() -> None:
    unit = Unit("a", forward_s=1.0, backward_s=3.0, flops=2e10)
    measured, counted = (
        ModelProfile("M", (unit,), costs=costs, flops_per_s=1e10) for costs in ("measured", "flops")
    )
    assert (measured.forward_s(0), measured.backward_s(0)) == (1.0, 3.0)
    assert (counted.forward_s(0), counted.backward_s(0)) == (2.0, 4.0)


def test_a_second_call_of_a_module_has_a_name_of_its_own() -> None:
    assert [Unit("a").name, Unit("a", 1).name] == ["a", "a@1"]
