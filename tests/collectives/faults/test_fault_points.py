"""A rank breaks at a step of the protocol, every one: the others are told, nothing is left."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster_collectives.binding import library
from tests.collectives.faults.fault_point_cases import (
    CASES,
    EITHER,
    LATE,
    SHORT,
    SHORT_STEPS,
    STEPS,
    Case,
    passed,
    points,
)
from tests.collectives.faults.faulting import (
    CONNECT_LATE_S,
    Outcome,
    Workshop,
    faulty_core,
    workshop,
)
from tests.collectives.faults.test_faults import DEATH_S, SLACK_S
from tests.collectives.native.driving import COMPILE_S
from tests.collectives.support.jobs import clean, job
from tests.support.waiting import within

# a call that cannot end; healthy ranks must keep it too, in every call before
SHORT_S = 4.0

pytestmark = pytest.mark.timeout(COMPILE_S)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faulty_core(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def ranks(core: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with workshop(core, tmp_path_factory.mktemp("jobs")) as opened:
        yield opened


def parted(cases: Sequence[Case], short: Collection[str]) -> list[Any]:
    """All but the short ones run only in make test-collectives."""
    marks = [() if case.name in short else pytest.mark.long for case in cases]
    return [pytest.param(c, id=c.name, marks=m) for c, m in zip(cases, marks, strict=True)]


def test_every_point_of_the_core_is_passed_somewhere_and_has_a_case() -> None:
    listed = points()
    assert len(listed) == len(set(listed)) > 98
    assert set(passed()) == set(listed), "a point is listed that no source passes"
    assert {case.point for case in CASES} == set(listed), "nobody breaks a rank there"


def test_an_installed_core_has_no_fault_points(core: Path) -> None:
    assert b"MC_FAULT" in core.read_bytes()
    installed = Path(library.INSTALLED)
    if not installed.exists():
        pytest.skip("no compiled core is installed")
    assert b"MC_FAULT" not in installed.read_bytes()


@pytest.mark.promise("F41")
@pytest.mark.parametrize("case", parted(CASES, SHORT))
def test_survivors_of_a_rank_killed_there_are_told_its_name_in_time(
    ranks: Workshop, case: Case
) -> None:
    found = ranks.play(case, signal.SIGKILL)
    assert found.codes[case.victim] == -signal.SIGKILL, found
    limit_s = DEATH_S
    if case.kinds == LATE:  # it died before the group was there, which nobody can tell from late
        limit_s = CONNECT_LATE_S + SLACK_S
    assert_told(found, case, case.kinds, limit_s)
    assert_nothing_left(ranks, found)


@pytest.mark.promise("F41")
@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_survivors_that_end_at_once_tell_the_others_first(ranks: Workshop, case: Case) -> None:
    """Whoever is told later must not take the first survivor, which has ended, for the dead one."""
    found = ranks.play(case, signal.SIGKILL, abrupt=True)
    assert found.codes[case.victim] == -signal.SIGKILL, found
    assert_told(found, case, case.kinds, DEATH_S)


@pytest.mark.promise("F40")
@pytest.mark.parametrize("case", parted(STEPS, SHORT_STEPS))
def test_a_rank_stopped_there_is_a_timeout_that_names_it(ranks: Workshop, case: Case) -> None:
    found = ranks.play(case, signal.SIGSTOP, limit_s=SHORT_S)
    assert found.stopped, f"the rank was not stopped: {found}"
    assert_told(found, case, LATE, SHORT_S + SLACK_S)
    awake = found.said[case.victim]
    assert awake is not None and awake["kind"], "the stopped rank goes on as if nothing had been"
    assert_nothing_left(ranks, found)


@pytest.mark.parametrize("case", parted(STEPS, SHORT_STEPS))
def test_an_exception_of_a_rank_there_ends_the_call_of_all(ranks: Workshop, case: Case) -> None:
    """SIGINT: KeyboardInterrupt while the rank waits in the call, or as soon as the call ends."""
    found = ranks.play(case, signal.SIGINT)
    assert "KeyboardInterrupt" in found.errors, found
    assert found.codes[case.victim] == 1
    assert_told(found, case, EITHER, DEATH_S)
    assert_nothing_left(ranks, found)


@pytest.mark.parametrize(
    ("point", "eager"),
    [
        *((point, "1GiB") for point in ("thread_armed", "thread_moved", "ring_writer_blocked")),
        ("ring_noted", "1GiB"),
        *((point, "128KiB") for point in ("thread_armed", "thread_moved", "offer_reading")),
    ],
)
def test_no_wake_up_is_lost_between_two_steps_of_the_doorbell_thread(
    core: Path, point: str, eager: str
) -> None:
    """16 MiB take 64 fillings of the ring, for each of which the thread is woken, or are offered
    and read in 16 pieces: 50 ms are lost with every one that it sleeps through."""
    environ = {"COLLECTIVES_CORE": str(core), "AWAY_BYTES": str(16 << 20),
               "COLLECTIVES_EAGER_BYTES": eager, "MC_FAULT": f"{point}:1:-1000"}  # fmt: skip
    with job("core.p2p_worker", 2, "away", environ=environ) as started:
        took = clean(started.ends())[1]["away"]["sender"]
    assert statistics.median(took) < within(1.0), took


def test_a_reader_that_stands_still_gets_the_copy_and_what_comes_then(core: Path) -> None:
    environ = {"COLLECTIVES_CORE": str(core), "MC_FAULT": "offer_piece_read:1:-1500000"}
    with job("core.p2p_worker", 2, "stood_still", environ=environ) as started:
        said = clean(started.ends())[1]["stood_still"]
    assert said["kind"] == "CollectiveTimeout", said


def test_a_listener_that_waits_to_write_an_abort_holds_up_no_other_group(core: Path) -> None:
    """As behind a rank of the node that stands still while it writes the same record."""
    environ = {"COLLECTIVES_CORE": str(core), "MC_FAULT": "error_claimed:1:-3000000"}
    with job("core.listener_worker", 2, "reports", "0", nodes="ab", environ=environ) as started:
        said = clean(started.ends())
    assert [each["kind"] for each in said] == ["AbortedError"] * 2, said
    assert said[0]["took_s"] < within(1.0), said


def test_an_instruction_for_a_point_that_is_not_there_ends_the_rank(ranks: Workshop) -> None:
    found = ranks.play(Case("no_such_point", "barrier", 0, "a"), signal.SIGKILL)
    assert found.codes[0] == -signal.SIGABRT
    assert found.landed_at is None


def assert_told(found: Outcome, case: Case, kinds: tuple[str, ...], limit_s: float) -> None:
    """Each survivor raised one of these errors, which names the victim and no other rank."""
    assert found.landed_at is not None, f"{case.point} was not passed {case.nth} times: {found}"
    assert not found.late, f"ranks {found.late} have not ended: {found}"
    for rank, said in enumerate(found.said):
        if rank == case.victim:
            continue
        assert said is not None, f"rank {rank}: {found.errors}"
        assert said["kind"] in kinds, (rank, said)
        assert said["kind"] == "AbortedError" or said["ranks"] == [case.victim], (rank, said)
        assert said["at"] - found.landed_at < within(limit_s), (rank, said, found.landed_at)


def assert_nothing_left(ranks: Workshop, found: Outcome) -> None:
    assert ranks.children() == "", "a process is left"
    assert found.left == [], "a segment is left"
