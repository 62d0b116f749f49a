"""`muster doctor --self-test`: what counts as a failure, and a real job of each cheap kind."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from muster.commands import doctor, doctor_facts, self_test
from muster.commands.doctor_finding import fail
from muster.commands.self_test import TRIALS, Trial, judge
from muster.local.api.result import RankResult, Result
from tests.launcher.unit.commands.test_doctor import GOOD, MPI

NONE, MPI4PY = (next(one for one in TRIALS if one.name == name) for name in ("none", "mpi, mpi4py"))


def ended(folder: Path, *said: object, code: int = 0, headline: str = "") -> Result:
    """The end of a job whose ranks printed that."""
    ranks = []
    for number, document in enumerate(said):
        host = folder / f"algo-{number + 1}"
        (host / "logs").mkdir(parents=True)
        (host / f"logs/rank-{number}.out").write_text(f"a warning\n{json.dumps(document)}\n")
        ranks.append(RankResult(number, host.name, 0, str(host)))
    outcome = {"headline": headline, "fix": "install it"}
    return Result(code, str(folder), {"outcome": outcome}, tuple(ranks))


def one(rank: int, world: int, total: float | None = 3.0) -> dict[str, object]:
    return {"rank": rank, "world": world, "sum": total}


@pytest.mark.parametrize("total", [3.0, None])
def test_all_ranks_in_one_world_with_the_right_sum_are_well(
    tmp_path: Path, total: float | None
) -> None:
    assert judge(NONE, ended(tmp_path, one(0, 2, total), one(1, 2, total)), GOOD).level == "OK"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([one(0, 1, 1.0), one(0, 1, 1.0)], "a wrong world: 0 of 1, 0 of 1 in place of 0 and 1"),
        ([one(0, 2), one(0, 2)], "a wrong world: 0 of 2, 0 of 2"),
        ([one(0, 2)], "a wrong world: 0 of 2 in place"),
        ([], "a wrong world: no ranks"),
        ([one(0, 2), []], "a wrong world: 0 of 2, None of None"),
        ([one(0, 2), one(1, 2, 2.0)], "a wrong sum: [3.0, 2.0] in place of 3"),
    ],
)
def test_a_job_that_ends_well_with_another_world_is_a_failure(
    tmp_path: Path, said: list[object], found: str
) -> None:
    facts = GOOD._replace(mpi=MPI._replace(loads="Open MPI v5.0.1"))
    finding = judge(MPI4PY, ended(tmp_path, *said), facts)
    assert finding.level == "FAIL"
    assert found in finding.found
    assert finding.breaks == "every job with mpi, mpi4py"
    assert finding.fix.startswith("export MPI4PY_LIBMPI=/lib/libmpi.so.40")
    assert judge(MPI4PY, ended(tmp_path / "2", *said), GOOD).fix.startswith("see all that it says")


def test_a_job_that_fails_has_the_jobs_own_fix(tmp_path: Path) -> None:
    finding = judge(NONE, ended(tmp_path, code=100, headline="ConfigError: no x"), GOOD)
    assert (finding.level, finding.found, finding.fix) == (
        "FAIL",
        "ConfigError: no x",
        "install it",
    )


def test_a_failed_job_makes_doctors_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = fail("a wrong sum", "every job", "install it")._replace(name="job: none")
    monkeypatch.setattr(doctor_facts, "look", lambda environ: GOOD)
    monkeypatch.setattr(self_test, "self_test", lambda facts: [broken])
    assert doctor.run(Namespace(json=True, report=False, self_test=True, engine=None)) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["result"], document["checks"][-1]["name"]) == ("fail", "job: none")


def test_what_this_machine_lacks_is_skipped_by_name() -> None:
    lacking = Trial("mpi", "mpi", "mpirun", ("mpirun", "no-such-package"))
    (finding,) = self_test.self_test(GOOD._replace(mpi=MPI._replace(mpirun="")), [lacking])
    assert (finding.level, finding.name) == ("OK", "job: mpi")
    assert finding.found == "skipped: mpirun and no-such-package not installed"


def test_nothing_starts_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "ALL_S", 0.5)
    (finding,) = self_test.self_test(GOOD, [NONE])
    assert finding.found.startswith("skipped: all jobs have 0.5 s")


def test_two_hosts_of_a_real_job_find_each_other() -> None:
    broken = NONE._replace(name="broken", kind="missing")
    good, bad = self_test.self_test(GOOD, [NONE, broken])
    assert good.name == "job: none"
    assert good.found.startswith("2 ranks, sum 3 on 2 hosts in "), good
    assert (bad.level, "KeyError: 'missing'" in bad.found) == ("FAIL", True), bad
