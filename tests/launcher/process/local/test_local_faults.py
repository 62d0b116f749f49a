"""`muster local --fault` on hosts that are plain processes: each lands, and a person sees what it
did to the job."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.launcher.support.events import events_in
from tests.launcher.support.local.local_runs import PROCESS, LocalRun, Result, Start
from tests.support.waiting import within

DIGITS = Path(__file__).resolve().parents[4] / "examples" / "digits"
# two ranks that run until told otherwise, note when they stood still, and report steps
SCRIPT = """\
import os, pathlib, signal, sys, time
host = os.environ["SM_CURRENT_HOST"]
model = pathlib.Path(os.environ["SM_MODEL_DIR"])
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
(model / f"{host}.txt").write_text(host)
for step in range(1, int(os.environ.get("SM_HP_STEPS", "0")) + 1):
    import muster
    muster.metrics(step=step)
stood = 0.0
until = last = time.monotonic()
until += float(os.environ.get("SM_HP_SECONDS", "60"))
print("ready on", host, flush=True)
while last < until:
    time.sleep(0.005)
    now = time.monotonic()
    stood += now - last if now - last > 0.03 else 0
    last = now
print("stood", host, round(stood, 3), flush=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def begin(
    start: Start, home: Path, *faults: str, seconds: float = 60, steps: int = 0, hosts: int = 2
) -> LocalRun:
    argv = ["train.py", "--hosts", str(hosts), *PROCESS]
    argv += ["--hyperparameter", f"seconds={seconds}", "--hyperparameter", f"steps={steps}"]
    run: LocalRun = start(home, [*argv, *(word for text in faults for word in ("--fault", text))])
    return run


def stood(result: Result, host: str) -> float:
    """How long the host's rank stood still, as it saw it."""
    found = re.search(rf"stood {host} ([0-9.]+)", result.out)
    assert found, result.err
    return float(found[1])


def block(result: Result) -> list[str]:
    """The lines about faults."""
    told = result.err.splitlines()
    at = told.index("faults:")
    return [line for line in told[at + 1 :] if line.startswith("  ")]


@pytest.mark.promise("F80")
def test_a_killed_rank_is_the_first_failure_of_the_job(start: Start, home: Path) -> None:
    result = begin(start, home, "kill:rank=1@0.5s").wait()
    assert result.code == 128 + signal.SIGKILL, result.err
    landed = re.search(
        r"fault: killed rank 1 \(pid (\d+)\) of algo-2 (\d\.\d) s after the ranks started",
        result.err,
    )
    assert landed and 0.5 <= float(landed[2]) < within(1.5)
    assert "FAILED algo-2 rank 1: killed by signal 9 (SIGKILL)" in result.err
    first, said, code, left = block(result)
    assert first.startswith("  kill:rank=1@0.5s: killed rank 1 (pid ")
    assert re.search(r"said \d\.\d s after the fault: UserScriptError: killed by signal 9", said)
    assert code == "  exit code 137"
    assert "algo-1.txt" in left and "before the fault" in left
    (event,) = [event for event in events_in(result.folder) if event["kind"] == "fault"]
    assert (event["host"], event["rank"], event["landed"]) == ("algo-2", 1, True)
    assert (event["spec"], event["what"]) == ("kill:rank=1@0.5s", "kill")
    assert event["target"] == f"rank 1 (pid {landed[1]}) of algo-2"
    (fault,) = result.summary["local"]["faults"]
    assert fault["landed"] and fault["spec"] == "kill:rank=1@0.5s"


@pytest.mark.promise("F80")
def test_a_killed_host_goes_with_all_its_processes(start: Start, home: Path) -> None:
    run = begin(start, home, "kill:host=algo-2@0.3s")
    result = run.wait()
    assert result.code == 102, result.err
    assert "fault: killed algo-2 0." in result.err
    assert "FAILED PeerError: lost algo-2" in result.err
    assert [h["status"] for h in result.summary["local"]["hosts"]] == [102, -signal.SIGKILL]


@pytest.mark.promise("F80")
@pytest.mark.parametrize(("who", "frozen"), [("rank=1", 1), ("host=algo-2", 1), ("rank=0", 0)])
def test_what_is_frozen_stands_still_for_as_long_and_goes_on(
    start: Start, home: Path, who: str, frozen: int
) -> None:
    # a script that has not begun yet measures nothing
    result = begin(start, home, f"freeze:{who}@1s+1s", seconds=3.5).wait()
    assert result.code == 0, result.err
    assert 0.9 <= stood(result, f"algo-{frozen + 1}") < within(2)
    assert stood(result, f"algo-{2 - frozen}") < stood(result, f"algo-{frozen + 1}")
    assert f"fault: freeze:{who}@1s+1s is over after 1." in result.err


@pytest.mark.promise("F80")
def test_a_host_that_is_frozen_for_good_is_lost_and_the_run_still_ends(
    start: Start, home: Path
) -> None:
    run = begin(start, home, "freeze:host=algo-2@0.3s")
    run.expect(apart=frozenset({"algo-2"}))
    result = run.wait()
    assert result.code == 102, result.err
    assert "FAILED PeerError: lost algo-2 (no heartbeat for 2 s)" in result.err


@pytest.mark.promise("F80")
def test_what_is_slow_has_a_part_of_the_time(start: Start, home: Path) -> None:
    result = begin(start, home, "slow:rank=1:20%@0.3s+1.5s", seconds=2.5).wait()
    assert result.code == 0, result.err
    assert re.search(r"fault: slowed rank 1 \(pid \d+\) of algo-2 to 20 % \d\.\d s", result.err)
    assert 0.8 < stood(result, "algo-2") < within(2)  # 1.2 s of 1.5 s
    assert stood(result, "algo-1") < stood(result, "algo-2")


# ends once nobody has continued it for a while, with 3 where that does not come
COUNTS = """\
import signal, sys, time
last = None
def continued(number, frame):
    global last
    last = time.monotonic()
signal.signal(signal.SIGCONT, continued)
began = time.monotonic()
while last is None or time.monotonic() - last < 3:
    time.sleep(0.02)
    if time.monotonic() - began > 15:
        sys.exit(3)
"""


@pytest.mark.promise("F80")
def test_what_is_slow_for_two_reasons_is_slow_until_the_last_is_over(
    start: Start, home: Path
) -> None:
    (home / "train.py").write_text(COUNTS)
    faults = ["slow:rank=0:50%@0.2s+1s", "slow:rank=0:50%@0.6s+1s"]
    result = begin(start, home, *faults, hosts=1).wait()
    assert result.code == 0, result.err
    assert all(f"fault: {one} is over after" in result.err for one in faults), result.err


@pytest.mark.promise("F80")
def test_a_stop_is_that_of_the_platform(start: Start, home: Path) -> None:
    result = begin(start, home, "stop@0.3s").wait()
    assert result.code == 143, result.err
    assert result.err.splitlines()[-1] == "Stopped: --fault stop@0.3s (exit code 143)"


def test_a_fault_comes_at_the_step_that_the_rank_reports(start: Start, home: Path) -> None:
    result = begin(start, home, "kill:rank=1@step=40", steps=41).wait()
    assert result.code == 137, result.err
    assert "s after the ranks started, at step 41" in result.err


def test_faults_whose_moment_never_comes_leave_the_job_its_end(start: Start, home: Path) -> None:
    result = begin(start, home, "kill:rank=0@step=40", "stop@50s", seconds=0.2, steps=39).wait()
    assert result.code == 0, result.err
    told = block(result)
    assert told[0] == (
        "  kill:rank=0@step=40: did not land: never reached @step=40: the last step reported was 39"
    )
    assert told[1] == "  stop@50s: did not land: the job ended before @50s"


def test_a_random_fault_says_the_one_that_repeats_it(start: Start, home: Path) -> None:
    result = begin(start, home, "random:seed=7", seconds=0.1).wait()
    chosen = re.search(r"^muster local: --fault (\S+)$", result.err, re.MULTILINE)
    assert chosen and "random" not in chosen[1]
    again = begin(start, home, chosen[1], seconds=0.1).wait()
    assert f"muster local: --fault {chosen[1]}\n" in again.err


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("klil:rank=0", "did you mean 'kill'"),
        ("kill:host=algo-3", "its hosts are algo-1, algo-2"),
        ("kill:rank=2", "its ranks are 0 to 1"),
        ("cut:algo-1/algo-2", "use --isolation netns or docker"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_before_anything_starts(
    start: Start, home: Path, fault: str, said: str
) -> None:
    result = begin(start, home, fault).wait()
    assert result.code == 2 and said in " ".join(result.err.split()), result.err
    assert not result.folder.exists()


def test_a_plan_of_a_model_suffers_no_faults(start: Start, home: Path) -> None:
    result = start(home, ["train.py", "--model-plan", "--fault", "stop@1s", *PROCESS]).wait()
    assert result.code == 2 and "leave out one of them" in result.err, result.err


@pytest.mark.torch
@pytest.mark.promise("F80")
@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("kill:rank=1@0.5s", 137, "FAILED algo-2 rank 1: killed by signal 9 (SIGKILL)"),
        pytest.param(
            *("freeze:host=algo-2@0.5s", 102, "FAILED PeerError: lost algo-2"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_digits_example_says_what_was_done_to_it(
    start: Start, tmp_path: Path, fault: str, code: int, said: str
) -> None:
    """Read as a person does: the exit code and what the screen ends with."""
    argv = [str(DIGITS / "train.py"), "--hosts", "2", "--distribution", "torch_distributed"]
    argv += ["--hyperparameter", "epochs=100000"]
    run = start(tmp_path, [*argv, *PROCESS, "--fault", fault])
    if code == 102:
        run.expect(apart=frozenset({"algo-2"}))
    result = run.wait(120)
    assert result.code == code, result.err
    told = result.err[result.err.rindex("faults:") :]
    assert f"  {fault}: " in told and "s after the ranks started" in told
    assert "s after the fault: " in told
    assert said in told and told.endswith(f"exit code {code}\n")
