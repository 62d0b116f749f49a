"""Jobs that are broken at random: a few that are always the same, and many in `make test-long`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.launcher.soak import __main__ as command
from tests.launcher.soak import isolated, job_scripts, run
from tests.launcher.soak.scenario import Scenario, scenario, seeds, told
from tests.launcher.soak.summary import KINDS, planned, summarize, tell
from tests.launcher.soak.verdict import Verdict
from tests.support.effort import chance, effort

RESULT = Path(__file__).parents[3] / ".cache" / "soak.json"
RUNS = 200
LEAST = 5  # faults of each kind in the plan of a long soak: some come too late to hit anything
# seed -> the faults of its scenario, each of which comes while the ranks run, on a slow machine too
FIXED = {
    163: "3 hosts, script daemon 1 s, SIGKILL of the shim of algo-1",
    303: "2 hosts, namespaces, script works 2.5 s, algo-2 cut off for 7 s",
    356: "3 hosts, script daemon 2.5 s, algo-2 frozen for 7 s",
    3187: "3 hosts, script saves 2.5 s, signal 1 to all hosts at 2.22 s",
    8893: "3 hosts, script forks 2.5 s, SIGKILL of algo-3 at 1.90 s",
    375019: "2 hosts, torchrun, script pipeline 2.5 s, the rank of algo-2 frozen for 0.6 s",
}


@pytest.mark.parametrize("seed", FIXED)
def test_a_job_that_is_broken_keeps_its_invariants(seed: int, tmp_path: Path) -> None:
    one = scenario(seed)
    reason = isolated.why_not(tmp_path) if one.netns else ""
    if reason:
        pytest.skip(reason)
    assert FIXED[seed] in told(one), "another scenario than was chosen: choose a seed again"
    verdict = command.run_one(one, tmp_path / "job")
    assert not verdict.wrong, command.details(verdict, tmp_path / "job")
    assert verdict.ran, verdict.why_not
    assert verdict.landed == tuple(f.kind for f in one.faults), command.line(1, one, verdict)


@pytest.mark.effort
@pytest.mark.skipif(effort() == 1, reason=f"{RUNS} jobs take minutes: make test-long runs them")
def test_hundreds_of_jobs_that_are_broken_at_random_keep_their_invariants() -> None:
    numbers = chance()
    seed = numbers.randrange(1, 10**6)
    while min(planned(seeds(seed, RUNS))[kind] for kind in KINDS) < LEAST:
        seed = numbers.randrange(1, 10**6)
    words = ["--runs", str(RUNS), "--seed", str(seed), "--output", str(RESULT)]
    assert command.main(words) == 0
    found = json.loads(RESULT.read_text())
    assert found["ok"] == found["ran"] == RUNS, found["not_run"]
    assert not found["never_landed"], found["faults"]
    for kind, why in found["cannot_land"].items():
        assert why, kind


def test_what_this_machine_cannot_do_is_not_run_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    netns = next(s for s in range(1, 1000) if scenario(s).netns)
    apart = command.run_one(scenario(netns), tmp_path / "apart")
    small = command.run_one(PLAIN._replace(small_disk=True), tmp_path / "small")
    whys = ["only root may reach into the hosts' networks", "only root may mount a small disk"]
    assert [apart.why_not, small.why_not] == whys
    assert not any(one.ran or one.landed or one.codes or one.wrong for one in (apart, small))
    found = summarize([apart, small], 3, 1, 1.0)
    assert (found["runs"], found["ran"], found["ok"]) == (3, 0, 0)
    assert "soak: 1 not run: only root may mount a small disk" in tell(found)
    assert "soak: 1 not run: interrupted" in tell(found)
    assert " not run: only root may reach" in command.line(1, scenario(netns), apart)


def test_a_seed_means_the_same_scenario_each_time() -> None:
    assert [scenario(seed) for seed in seeds(7, 20)] == [scenario(seed) for seed in seeds(7, 20)]
    assert seeds(7, 20) != seeds(8, 20)


def test_the_scenarios_hold_every_fault_script_and_launcher() -> None:
    many = [scenario(seed) for seed in seeds(1, 2000)]
    kinds = {fault.kind for one in many for fault in one.faults}
    assert kinds >= {"stop", "kill", "freeze", "reset", "partition", "absent", "late"}
    targets = {fault.target for one in many for fault in one.faults}
    assert targets == {"train", "shim", "rank", "launcher"}
    assert {one.hosts for one in many} == {1, 2, 3}
    assert {one.torchrun for one in many} == {one.netns for one in many} == {True, False}
    assert {len(one.faults) for one in many} == {0, 1, 2}
    assert {one.script for one in many} >= set(job_scripts.BODIES) | {"shell", "bad input"}


PLAIN = Scenario(0, 1, False, False, "quick", 0, 0, 0.0, False, ())


@pytest.mark.parametrize(
    ("line", "told_of"),
    [
        ("open(os.environ['SM_MODEL_DIR'] + '/../stray', 'w')\n", "new outside the folders"),
        ("os._exit(0)\n", "no rank of algo-1 ended well"),
        ("os._exit(9)\n", "exit code 9, but nothing that matters happened"),
        ("print(os.environ['MY_API_TOKEN'])\n", "a secret was shown in its stdout"),
    ],
)
def test_the_soak_notices_what_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, told_of: str
) -> None:
    monkeypatch.setitem(job_scripts.BODIES, "quick", line)
    verdict = run.run(PLAIN, tmp_path / "job")
    assert [what for what in verdict.wrong if told_of in what], verdict
    assert (tmp_path / "job").exists()
    assert "make soak ONLY=0" in command.details(verdict, tmp_path / "job")


def test_the_soak_notices_a_job_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(job_scripts.BODIES, "quick", "time.sleep(600)\n")
    monkeypatch.setattr(run, "bound_s", lambda one: 1.5)
    verdict = run.run(PLAIN, tmp_path / "job")
    assert verdict.wrong[0] == "not ended 2 s after the start: ['algo-1']"


def test_its_summary_names_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Verdict(5, 1.0, (1,), (), ("a survivor",), "the story")
    monkeypatch.setattr(command, "run_one", lambda one, folder: broken)
    result = tmp_path / "soak.json"
    assert command.main(["--only", "5", "--json", "--output", str(result)]) == 1
    captured = capsys.readouterr()
    assert captured.out == result.read_text()
    assert '"a survivor"' in captured.out
    assert "again: make soak ONLY=5" in captured.err
