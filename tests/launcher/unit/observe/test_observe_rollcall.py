"""The roll call: who is stuck and where, from looks at all ranks. A table of cases."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from muster.run.observe.looks import RankLook
from muster.run.observe.rollcall import call_roll
from tests.launcher.support.looks import TORCH, call, look

MPI = "/usr/lib/python3/dist-packages/mpi4py/MPI.so:0"
WAITS = ("train.py:41 main", f"{TORCH}:99 all_reduce")


class Case(NamedTuple):
    """Looks, and what the verdict must be. `says`: pieces of the sentence."""

    looks: list[RankLook]
    kind: str
    guilty: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    silent: Mapping[int, str] = {}


def others(*absent: int, of: int = 4) -> list[RankLook]:
    """Those that wait in all_reduce no. 6 of world."""
    return [look(r, call(ranks=range(of)), at=WAITS) for r in range(of) if r not in absent]


BEHIND = call(5, 40.0, running=False)
CASES = {
    "does not come, reads": Case(
        [
            *others(1),
            look(
                1,
                BEHIND,
                at=("data.py:12 load",),
                host="algo-2",
                waits_for="reading /opt/ml/input/data/train/7",
            ),
        ],
        "waiting",
        (1,),
        (
            "ranks 0, 2-3 wait in all_reduce no. 6 of world (train.py:41) since 38 s; ",
            "rank 1 (algo-2) is at data.py:12, reading /opt/ml/input/data/train/7: look there",
        ),
    ),
    "has ended": Case(
        [*others(2), look(2, BEHIND, ended=0)], "waiting", (2,), ("rank 2 has ended with exit",)
    ),
    "was killed": Case(
        [*others(2), look(2, ended=-9)], "waiting", (2,), ("rank 2 was ended by SIGKILL",)
    ),
    "is stopped": Case(
        [*others(3), look(3, BEHIND, state="T")], "waiting", (3,), ("is stopped", "kill -CONT 103")
    ),
    "holds the GIL": Case(
        [*others(0), look(0, how="signal", at=("train.py:7 hold",), cpu=0.0)],
        "waiting",
        (0,),
        ("rank 0 is at train.py:7", "GIL"),
    ),
    "computes in Python": Case(
        [*others(1), look(1, BEHIND, at=("train.py:9 spin",), state="R", cpu=1.0)],
        "busy",
        (1,),
        ("rank 1 is at train.py:9, computing",),
    ),
    "saves": Case(
        [*others(0), look(0, BEHIND, at=("train.py:50 main", "io.py:3 save_checkpoint"))],
        "busy",
        (0,),
        ("rank 0 saves at io.py:3",),
    ),
    "evaluates": Case(
        [*others(0), look(0, BEHIND, at=("train.py:50 evaluate",), cpu=0.4)],
        "busy",
        (0,),
        ("rank 0 evaluates at train.py:50",),
    ),
    "waits for a disk": Case(
        [*others(1), look(1, BEHIND, state="D", wchan="fuse_wait", at=("data.py:2 f",))],
        "waiting",
        (1,),
        ("waiting for a disk or a mount (in the kernel's fuse_wait)",),
    ),
    "another operation": Case(
        [*others(1), look(1, call(op="broadcast"))],
        "mismatch",
        (1,),
        ("ranks 0, 2-3 called all_reduce no. 6", "rank 1 called broadcast no. 6", "order of calls"),
    ),
    "another shape": Case(
        [*others(1), look(1, call(shape="float32[8]"))],
        "mismatch",
        (1,),
        ("float32[8]", "float32[4]", "shapes or types differ"),
    ),
    "two that differ are both named": Case(
        [look(0, call(ranks=(0, 1))), look(1, call(op="broadcast", ranks=(0, 1)))],
        "mismatch",
        (0, 1),
    ),
    "a chain of groups to its root": Case(
        [
            look(0, call(ranks=(0, 1), group="a")),
            look(
                1,
                call(2, 30, ranks=(1, 2), group="b"),
                call(5, running=False, ranks=(0, 1), group="a"),
            ),
            look(2, call(1, 31, running=False, ranks=(1, 2), group="b"), at=("data.py:3 f",)),
        ],
        "waiting",
        (2,),
        (
            "rank 1 waits in all_reduce no. 2 of group b (ranks 1-2)",
            "rank 2 is at data.py:3",
            "1 more rank waits",
        ),
    ),
    "a circle": Case(
        [
            look(
                0, call(1, ranks=(0, 1), group="a"), call(4, running=False, ranks=(0, 1), group="b")
            ),
            look(
                1, call(5, ranks=(0, 1), group="b"), call(0, running=False, ranks=(0, 1), group="a")
            ),
        ],
        "circle",
        (0, 1),
        ("wait for one another in a circle", "one order"),
    ),
    "all have come, and idle": Case(
        others(), "transfer", (), ("have come, and it has not ended since 38 s", "network")
    ),
    "a call that nobody waits for": Case([look(0, call(ranks=(0,)), cpu=0.9)], "work", ()),
    "the library knows who is absent": Case(
        [look(r, call(absent=(2,))) for r in (0, 1)] + [look(3, how="none"), look(2, how="silent")],
        "waiting",
        (2,),
    ),
    "a host does not answer": Case(
        others(2, 3),
        "waiting",
        (2, 3),
        ("rank 2 (algo-2) is not known: its host did not answer", "algo-2 did not answer"),
        {2: "algo-2", 3: "algo-2"},
    ),
    "a short wait is none": Case(
        [look(0, call(age_s=0.2, ranks=(0, 1))), look(1, cpu=0.9)], "work", (), ("nobody waits",)
    ),
    "two at two lines without evidence": Case(
        [look(0, at=("a.py:1 f",)), look(1, at=("a.py:2 f",))], "idle", ()
    ),
    "two at two lines, of which one sleeps": Case(
        [look(0, at=("a.py:1 f",)), look(1, at=("a.py:2 f",), waits_for="sleeping")], "idle", ()
    ),
    "two that work at two lines": Case(
        [look(0, at=("a.py:1 f",), cpu=1.0), look(1, at=("a.py:2 f",), cpu=1.0)], "work", ()
    ),
    "one of four elsewhere": Case(
        [look(r) for r in (0, 1, 3)] + [look(2, at=("data.py:9 f",))],
        "apart",
        (2,),
        ("ranks 0-1, 3 are idle at train.py:41", "rank 2 is at data.py:9"),
    ),
    "one of four computes elsewhere": Case(
        [look(r) for r in (0, 1, 3)] + [look(2, at=("data.py:9 f",), cpu=1.0)], "work", ()
    ),
    "a loader that nobody answers": Case(
        [look(0, at=("train.py:3 f", "/usr/lib/python3.11/queue.py:171 get"))],
        "idle",
        (0,),
        ("rank 0 is idle and silent since 40 s: rank 0 is at train.py:3",),
    ),
    "a pipe that nobody writes": Case(
        [look(0), look(1, at=("data.py:2 f",), waits_for="opening /tmp/pipe")],
        "idle",
        (1,),
        ("opening /tmp/pipe",),
    ),
    "stopped without collectives": Case(
        [look(0, at=()), look(1, at=(), state="T", how="none")], "stopped", (1,)
    ),
    "a C rank ended and the others wait": Case(
        [look(0, at=(), how="none"), look(1, at=(), how="none", ended=0)], "gone", (1,)
    ),
    "MPI waits by polling, and one has not come": Case(
        [
            look(0, at=("train.py:9 f", f"{MPI} Allreduce"), state="R", cpu=1.0),
            look(1, at=("train.py:7 f",), waits_for="sleeping"),
        ],
        "apart",
        (1,),
        ("rank 0 is in Allreduce of MPI (train.py:9), since", "rank 1 is at train.py:7, sleeping"),
    ),
    "MPI waits for one that computes": Case(
        [
            look(0, at=("train.py:9 f", f"{MPI} Allreduce"), state="R", cpu=1.0),
            look(1, at=("train.py:7 f",), state="R", cpu=1.0),
        ],
        "busy",
        (1,),
        ("rank 1 is at train.py:7, computing",),
    ),
    "other calls of MPI": Case(
        [
            look(0, at=("train.py:9 f", f"{MPI} Ssend"), state="R", cpu=1.0),
            look(1, at=("train.py:7 f", f"{MPI} Barrier"), state="R", cpu=1.0),
        ],
        "apart",
        (0, 1),
        ("Ssend of MPI (train.py:9), rank 1 is in Barrier of MPI (train.py:7): if that stays so",),
    ),
    "one sends what the other receives": Case(
        [
            look(0, at=("train.py:9 f", f"{MPI} Send"), state="R", cpu=1.0),
            look(1, at=("train.py:7 f", f"{MPI} Recv"), state="R", cpu=1.0),
        ],
        "work",
    ),
    "all are in one call of MPI": Case(
        [look(r, at=("train.py:9 f", f"{MPI} Allreduce"), state="R", cpu=1.0) for r in (0, 1)],
        "work",
        (),
        ("all ranks communicate: ranks 0-1 are in Allreduce of MPI (train.py:9)",),
    ),
    "nobody sends what torch receives": Case(
        [look(0, at=("train.py:9 f", f"{TORCH}:2 recv")), look(1, at=("data.py:3 f",))],
        "apart",
        (1,),
        ("rank 0 is in recv of torch (train.py:9)", "rank 1 is at data.py:3"),
    ),
    "no rank": Case([], "work", ()),
}


@pytest.mark.promise("H01")
@pytest.mark.parametrize("name", CASES)
def test_the_verdict_names_who_is_stuck_and_where(name: str) -> None:
    case = CASES[name]
    verdict = call_roll(case.looks, case.silent)
    assert (verdict.kind, verdict.guilty) == (case.kind, case.guilty), verdict.sentence
    for piece in case.says:
        assert piece in verdict.sentence
    assert "hung" not in verdict.sentence
    assert "\n" not in verdict.sentence


@pytest.mark.promise("H02")
@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_the_looks_changes_nothing(order: int) -> None:
    for case in CASES.values():
        assert call_roll(case.looks[::order], case.silent) == call_roll(case.looks, case.silent)


def test_of_many_ranks_it_says_no_more_than_is_so() -> None:
    """Not that they have not come, where nobody waits for them."""
    idle = call_roll([look(rank) for rank in range(6)]).sentence
    assert idle.endswith("rank 2 is at train.py:41 and 3 more ranks"), idle
    ended = [*(look(rank, ended=0) for rank in range(4)), look(4)]
    assert call_roll(ended).sentence.endswith("rank 2 has ended with exit code 0 and 1 more rank")
    absent = call_roll(others(1, 2, 3, 4, of=6)).sentence
    assert "and 1 more rank has not come: look there" in absent


def test_foreign_text_is_shown_as_text_on_one_line() -> None:
    hostile = "\x1b[2J</script>\u2028\u202e\n" + "x" * 100_000
    looks = [
        look(0, call(op=hostile, group=hostile, ranks=(0, 1))),
        look(1, at=(f"{hostile}:3 {hostile}",), waits_for=hostile, wchan=hostile, state="D"),
    ]
    sentence = call_roll(looks).sentence
    assert not set(sentence) & set("\x1b\u2028\u202e\n")
    assert len(sentence) < 1500


def test_four_thousand_ranks_take_a_moment() -> None:
    world = tuple(range(4000))
    looks = [
        look(
            rank,
            call(ranks=tuple(world)),
            call(3, ranks=tuple(range(rank // 8 * 8, rank // 8 * 8 + 8)), group="node"),
        )
        for rank in world
        if rank != 1234
    ]
    looks.append(look(1234, call(5, running=False, ranks=world), at=("data.py:1 f",)))
    began = time.process_time()
    verdict = call_roll(looks)
    assert time.process_time() - began < 0.4
    assert verdict.guilty == (1234,)
    assert len(verdict.sentence) < 1000
