"""Partitions that a script names: in order, round and round, there and back, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.manual import manual
from muster_modelparallel.shape.units import Constraint, ModelProfile, Unit


def model(*paths: str) -> ModelProfile:
    return ModelProfile("M", tuple(Unit(path) for path in paths))


LETTERS = model(*"abcdef")


def assigned(order: str) -> dict[str, int]:
    return {path: int(rank) for path, rank in zip("abcdef", order, strict=True)}


def test_the_innermost_module_counts_and_the_default_takes_the_rest() -> None:
    profile = model("net.a", "net.b.x", "net.b.y", "head")
    named = {"net": 0, "net.b.y": 1, "head": 1}
    assert manual(profile, named, 0, 2) == ((2,), (0, 1))
    assert manual(profile, {"net": 0}, 1, 2) == ((3,), (0, 1))
    assert manual(profile, {"": 0, "head": 1}, 1, 2) == ((3,), (0, 1))


@pytest.mark.parametrize(
    ("order", "ranks", "cuts", "rank_of"),
    [
        ("000111", 2, (3,), (0, 1)),
        ("001012", 3, None, None),
        ("011010", 2, None, None),
        ("001101", 2, (2, 4, 5), (0, 1, 0, 1)),
        ("012012", 3, (1, 2, 3, 4, 5), (0, 1, 2, 0, 1, 2)),
        ("011110", 2, (1, 3, 5), (0, 1, 1, 0)),
        ("012210", 3, (1, 2, 3, 4, 5), (0, 1, 2, 2, 1, 0)),
        ("000000", 1, (), (0,)),
        ("110000", 2, None, None),
    ],
)
def test_a_return_to_a_rank_becomes_another_stage_of_it(
    order: str, ranks: int, cuts: tuple[int, ...] | None, rank_of: tuple[int, ...] | None
) -> None:
    if cuts is None:
        with pytest.raises(PlanError, match=r"the calls return to a partition: .: a to"):
            manual(LETTERS, assigned(order), 0, ranks)
    else:
        assert manual(LETTERS, assigned(order), 0, ranks) == (cuts, rank_of)


@pytest.mark.parametrize(
    ("order", "ranks", "found"),
    [
        ("000000", 2, "partition 1 of 2 has no units.*; give modules .* partition 1, or use fewer"),
        ("000222", 2, "partition 1 of 2 has no units"),
        ("001122", 2, "no partition 2, only 2: 0: a to b; 1: c to d; 2: e to f; name one of 0"),
    ],
)
def test_a_rank_without_units_is_refused(order: str, ranks: int, found: str) -> None:
    with pytest.raises(PlanError, match=found):
        manual(LETTERS, assigned(order), 0, ranks)


def test_a_cut_between_what_must_lie_together_is_refused() -> None:
    profile = replace(LETTERS, constraints=(Constraint((1, 3), "alias"),))
    with pytest.raises(PlanError, match="b and d must lie on one stage: alias"):
        manual(profile, assigned("000111"), 0, 2)
