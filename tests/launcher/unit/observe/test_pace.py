"""Who holds up a job, from when ranks came to calls; and why, from looks at them. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from muster.run.observe.looks import Arrivals, RankLook, Usage
from muster.run.observe.pace import StepPace, pace_of
from muster.run.observe.stragglers import cause, sentence
from tests.launcher.support.looks import look

STEPS = 30
QUEUE = [
    "/usr/lib/python3/multiprocessing/queues.py:113 get",
    *(f"/usr/lib/python3/multiprocessing/connection.py:{n} {name}"
      for n, name in ((257, "poll"), (424, "_poll"), (931, "wait"))),
    "/usr/lib/python3/selectors.py:415 select",
]  # fmt: skip
LOADER = "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py:1500 _next_data"


def run(
    work: Callable[[int], Sequence[float]], ranks: int = 4, steps: int = STEPS, seed: int = 7
) -> list[RankLook]:
    """Looks at a job whose ranks compute `work(rank)` seconds before each call of a step, give or
    take 3 %; a call goes on once its last rank has come."""
    noise = random.Random(seed)
    now = [100.0] * ranks
    came: list[list[tuple[int, float]]] = [[] for _ in range(ranks)]
    number = 0
    for _ in range(steps):
        for at in range(len(work(0))):
            number += 1
            for rank in range(ranks):
                now[rank] += work(rank)[at] * noise.uniform(0.97, 1.03)
                came[rank].append((number, now[rank]))
            now = [max(now) + 1e-4] * ranks
    rate = steps / (now[0] - 100.0)
    return [with_calls(rank, came[rank], rate, ranks) for rank in range(ranks)]


def with_calls(
    rank: int, calls: Sequence[tuple[int, float]], rate: float | None, ranks: int = 4
) -> RankLook:
    made = look(rank, host=f"algo-{1 + rank // 2}")
    came = Arrivals("torch", "0", tuple(range(ranks)), tuple(calls))
    return made._replace(answer=made.answer._replace(arrivals=came, rate=rate))


def pace(looks: Sequence[RankLook]) -> StepPace:
    found = pace_of(looks)
    assert found is not None
    return found


def test_a_rank_with_a_fifth_more_work_is_named_with_its_own_time() -> None:
    found = pace(run(lambda rank: [0.12 if rank == 2 else 0.1]))
    assert found.slow == (2,)
    assert found.own[2].median_s == pytest.approx(0.12, rel=0.03)
    assert found.own[0].median_s == pytest.approx(0.1, rel=0.03)
    assert found.own[2].p95_s >= found.own[2].median_s
    assert found.factor == pytest.approx(1.2, rel=0.05)
    assert found.step_s == pytest.approx(0.12, rel=0.03)


def test_what_clocks_of_hosts_may_be_off_by_accuses_nobody() -> None:
    """The clock of ranks 2 and 3 is 4 ms ahead, of steps of 20 ms, and its host knows that."""
    looks = [
        one._replace(answer=one.answer._replace(arrivals=came._replace(
            calls=tuple((number, at_s + 0.004 * (one.rank > 1)) for number, at_s in came.calls),
            unsure_s=0.004 * (one.rank > 1),
        )))
        for one in run(lambda _rank: [0.02]) if (came := one.answer.arrivals) is not None
    ]  # fmt: skip
    assert pace(looks).slow == ()


@pytest.mark.parametrize("rate", [-1.0, 1e-320, 1e300])
def test_an_impossible_rate_harms_nothing(rate: float) -> None:
    looks = run(lambda rank: [0.12 if rank == 2 else 0.1])
    assert pace_of([one._replace(answer=one.answer._replace(rate=rate)) for one in looks]) in (
        None, pace(looks)
    )  # fmt: skip


def test_a_second_call_of_a_step_hides_nothing() -> None:
    assert pace(run(lambda rank: [0.15 if rank == 1 else 0.1, 0.001])).slow == (1,)


def test_all_ranks_of_a_host_may_be_slow() -> None:
    found = pace(run(lambda rank: [0.1 + 0.05 * (rank > 1)]))
    assert set(found.slow) == {2, 3}
    assert found.factor == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("seed", range(50))
def test_nobody_is_named_in_clean_runs(seed: int) -> None:
    noise = random.Random(seed)

    def work(_rank: int) -> list[float]:
        return [noise.uniform(0.05, 0.15), 0.01]

    assert pace(run(work, ranks=noise.choice((2, 4, 16)), seed=seed)).slow == ()


def test_one_that_is_slow_now_and_then_is_not_named() -> None:
    calls = iter(range(10**6))
    assert pace(run(lambda rank: [0.3 if rank == 0 and next(calls) % 3 == 0 else 0.1])).slow == ()


def test_a_delay_that_calls_beside_the_work_all_show_counts_once() -> None:
    """Ten calls a step that nobody waits for until its end; rank 1 is 2 % late in all of them."""
    came: list[list[tuple[int, float]]] = [[], []]
    for step in range(20):
        for rank in (0, 1):
            came[rank] += [
                (10 * step + at + 1, step * 0.1 + 0.01 * at + 0.0025 * rank) for at in range(10)
            ]
    assert pace([with_calls(rank, came[rank], 10.0, 2) for rank in (0, 1)]).slow == ()


def test_differences_that_clocks_do_not_tell_apart_name_nobody() -> None:
    assert pace(run(lambda rank: [0.003 if rank == 1 else 0.0015])).slow == ()


@pytest.mark.parametrize(
    "without",
    [
        lambda looks: looks[1:],  # the slowest may be the one that is missing
        lambda looks: [one._replace(answer=one.answer._replace(rate=None)) for one in looks],
        lambda looks: [one._replace(answer=one.answer._replace(arrivals=None)) for one in looks],
        lambda looks: [*looks[1:], with_calls(0, [(10**6 + n, n) for n in range(64)], 10.0)],
    ],
    ids=["a rank is missing", "no steps", "no calls", "other calls"],
)
def test_nothing_is_said_of_what_is_not_known(
    without: Callable[[list[RankLook]], list[RankLook]],
) -> None:
    assert pace_of(without(run(lambda rank: [0.2 if rank == 2 else 0.1]))) is None
    assert pace_of(run(lambda _rank: [0.1], steps=8)) is None


SLOW = pace(run(lambda rank: [0.14 if rank == 2 else 0.1]))
PLAIN = Usage(60.0, 0.0, 0.6, 0)
USAGES: Mapping[int, Usage | None] = dict.fromkeys(range(4), PLAIN)
WAITS = [look(0) for _ in range(20)]


def seen(part: float, **different: object) -> list[RankLook]:
    """20 looks at rank 2, of which that part is different and the rest as those at others."""
    count = round(20 * part)
    return [look(2, **different) for _ in range(count)] + WAITS[count:]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("usage", "looks", "expected"),
    [
        (PLAIN._replace(throttled_s=20.0, run_delay_s=20.0), WAITS, "throttled"),
        (PLAIN._replace(throttled_s=8.0, run_delay_s=20.0), WAITS, "throttled"),
        (PLAIN._replace(throttled_s=3.0, run_delay_s=20.0), WAITS, "run delay"),
        (PLAIN._replace(run_delay_s=20.0), WAITS, "run delay"),
        (PLAIN._replace(throttled_s=None, major_faults=6000), WAITS, "memory"),
        (PLAIN, seen(0.3, state="D"), "disk"),
        (PLAIN, seen(0.3, waits_for="reading /data/7"), "disk"),
        (PLAIN, seen(0.3, at=["train.py:3 main", LOADER]), "data loader"),
        (PLAIN, seen(0.3, at=["train.py:3 main", LOADER, *QUEUE]), "data loader"),
        (PLAIN, seen(0.3, state="R", at=["train.py:52 f"]), "its own computation (at train.py:52)"),
        (None, seen(0.3, waits_for="sleeping"), "it sleeps"),
        (PLAIN, WAITS, ""),
        (PLAIN, seen(0.3, state="R")[:2], ""),
        (PLAIN._replace(run_delay_s=3.0), WAITS, ""),
    ],
)
def test_the_cause_is_what_a_slow_rank_has_more_of(
    usage: Usage | None, looks: list[RankLook], expected: str
) -> None:
    said = cause(2, SLOW, {**USAGES, 2: usage}, looks, WAITS)
    assert said.startswith(expected) and bool(said) == bool(expected)


def test_what_all_ranks_have_is_no_cause() -> None:
    throttled = dict.fromkeys(range(4), PLAIN._replace(throttled_s=20.0))
    assert cause(2, SLOW, throttled, WAITS, WAITS) == ""


def test_others_that_poll_while_they_wait_hide_no_computation() -> None:
    polls = [look(0, state="R") for _ in range(20)]
    assert cause(2, SLOW, USAGES, seen(1.0, state="R"), polls).startswith("its own computation")


def test_the_sentence_is_one_line() -> None:
    said = sentence([2, 3], "algo-2", SLOW, "")
    assert said.startswith("straggler: rank 2 (algo-2), and rank 3: its own time of a step is 1")
    assert said.endswith("the cause was not seen") and "\n" not in said
