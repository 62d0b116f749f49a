"""The values of a plan refuse what cannot run."""

from __future__ import annotations

from typing import Any

import pytest

from muster.plan.launchplan import Command, LaunchPlan, RankSlot

COMMAND = Command(("python", "train.py"), {"A": "1"}, "/code")


def make_plan(**changes: Any) -> LaunchPlan:
    fields: dict[str, Any] = {
        "option": "none",
        "world_size": 2,
        "ranks": (RankSlot(0, 0, 0), RankSlot(1, 0, 1), RankSlot(2, 1, 0)),
        "leader": 0,
        "master_addr": "algo-1",
        "ports": {"control": 1, "store": 2},
        "script": COMMAND,
        "script_is_python": True,
        "agreed": ("python", "train.py"),
    }
    return LaunchPlan(**{**fields, **changes})


@pytest.mark.parametrize(
    ("argv", "env", "cwd"),
    [
        ((), {}, "/"),
        (("a\0b",), {}, "/"),
        (("a",), {}, "/\0"),
        (("a",), {"N\0": "1"}, "/"),
        (("a",), {"N": "\0"}, "/"),
        (("a",), {"N=M": "1"}, "/"),
    ],
)
def test_a_command_that_the_kernel_would_refuse_is_refused(
    argv: tuple[str, ...], env: dict[str, str], cwd: str
) -> None:
    with pytest.raises(ValueError, match=r"program|NUL"):
        Command(argv, env, cwd)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ranks": (RankSlot(0, 0, 0), RankSlot(2, 1, 0))}, "numbered"),
        ({"ranks": (RankSlot(0, 0, 0), RankSlot(0, 1, 0))}, "numbered"),
        ({"world_size": 0}, "world size 0"),
        ({"world_size": 4}, "world size 4"),
        ({"ports": {"control": 1, "store": 1}}, "equal"),
    ],
)
def test_a_plan_whose_numbers_do_not_fit_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_plan(**changes)


def test_the_ranks_of_a_host_come_by_local_rank() -> None:
    assert make_plan().ranks_of(0) == (RankSlot(0, 0, 0), RankSlot(1, 0, 1))
    assert make_plan().ranks_of(2) == ()


def test_the_ranks_of_each_host_take_few_words() -> None:
    slots = [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 1)]
    made = make_plan(world_size=5, ranks=tuple(RankSlot(rank, host, 0) for rank, host in slots))
    assert made.in_words(["algo-1", "algo-2", "algo-3"]) == {
        "option": "none",
        "world_size": 5,
        "ranks": {"algo-1": "0-2", "algo-2": "3,5", "algo-3": "4"},
    }
