"""`muster local --fault` on hosts that are containers: through their engine, and nothing stays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launcher.support.local.local_docker import Start, forever, job
from tests.launcher.support.local.local_runs import SCRIPT

pytestmark = pytest.mark.timeout(600)  # an image may have to be built first


@pytest.mark.promise("F80")
@pytest.mark.parametrize(
    ("fault", "code", "landed", "said"),
    [
        ("kill:rank=1@0.5s", 137, r"killed rank 1 \(pid \d+\) of algo-2", "FAILED algo-2 rank 1"),
        ("kill:host=algo-2@0.5s", 102, "killed algo-2", "FAILED PeerError: lost algo-2"),
        ("freeze:host=algo-2@0.5s", 102, "froze algo-2", "FAILED PeerError: lost algo-2"),
        ("cut:algo-1/algo-2@0.5s", 102, "cut algo-1 and algo-2 off", "FAILED PeerError: lost algo"),
        ("stop@0.5s", 143, "stopped the job", "Stopped: --fault stop@0.5s (exit code 143)"),
    ],
)
def test_a_fault_of_containers_lands_and_is_told(
    start: Start, home: Path, base: str, fault: str, code: int, landed: str, said: str
) -> None:
    run = start(home, (*forever(base), "--fault", fault))
    run.expect(apart=frozenset({"algo-2"}) if code == 102 else frozenset())
    result = run.wait(120)
    assert result.code == code, result.err
    assert re.search(rf"fault: {landed}.* s after the ranks started", result.err), result.err
    assert said in result.err[result.err.rindex("faults:") :]


@pytest.mark.promise("F80")
@pytest.mark.parametrize("who", ["rank=1", "host=algo-2"])
def test_what_was_frozen_goes_on(start: Start, home: Path, base: str, who: str) -> None:
    seconds = ("--hyperparameter", "seconds=3")
    run = start(home, job("train", base, *seconds, "--fault", f"freeze:{who}@0.5s+1s"))
    result = run.wait(120)
    assert result.code == 0, result.err
    assert f"fault: freeze:{who}@0.5s+1s is over after " in result.err


COUNTS = """\
import os, time
began, used, stood = time.monotonic(), time.process_time(), 0.0
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
last = began
while last < began + 4:
    now = time.monotonic()
    stood += now - last if now - last > 0.04 else 0
    last = now
print("stood still", os.environ["SM_CURRENT_HOST"], round(stood, 2), flush=True)
"""


@pytest.mark.promise("F80")
@pytest.mark.parametrize("who", ["rank=1", "host=algo-2"])
def test_what_is_slow_stands_still_again_and_again(
    start: Start, home: Path, base: str, who: str
) -> None:
    (home / "src/train.py").write_text(COUNTS)
    fault = f"slow:{who}:30%@0.2s+2s"
    result = start(home, job("train", base, "--fault", fault)).wait(120)
    assert result.code == 0, result.err
    assert f"fault: {fault} is over after " in result.err
    stood = dict(re.findall(r"stood still (\S+) ([0-9.]+)", result.out))
    assert float(stood["algo-2"]) > 0.7, result.out
    assert float(stood["algo-2"]) > float(stood["algo-1"]), result.out


@pytest.mark.promise("F80")
def test_a_run_whose_only_host_is_frozen_ends_by_its_timeout(
    start: Start, home: Path, base: str
) -> None:
    (home / "src/train.py").write_text(SCRIPT)
    more = ("--hyperparameter", "seconds=60", "--fault", "freeze:host=algo-1@0.2s")
    result = start(home, job("train", base, *more, "--timeout", "20", hosts=1)).wait(120)
    assert result.code == 124, result.err
