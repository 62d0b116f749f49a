"""`muster_job` in a pytest of its own, as a user's project has it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.traces import Trace, describe
from tests.support.waiting import wait_until

MARK = "TEST_RUN_MARK"
JOB = """\
import os, sys, time
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
if "forever" in sys.argv:
    time.sleep(600)
if os.environ["SM_CURRENT_HOST"] == os.environ.get("FAIL"):
    raise ValueError("bad batch")
"""
TESTS = """\
import pytest

def test_good(muster_job, tmp_path):
    result = muster_job("job.py", hosts=2, isolation="process")
    assert result.rank(1).stdout == "ready on algo-2\\n"
    assert result.folder == str(tmp_path / "job-1")

def test_bad(muster_job):
    assert muster_job("job.py", hosts=2, isolation="process", env={"FAIL": "algo-2"}).succeeded

def test_refused(muster_job):
    with pytest.raises(ValueError, match="--hosts"):
        muster_job("job.py", hosts=0)

@pytest.mark.muster_job(timeout_s=3)
def test_late(muster_job):
    muster_job("job.py", isolation="process", arguments=["forever"])
"""
pytestmark = pytest.mark.dev


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/job.py").write_text(JOB)
    (tmp_path / "tests/test_jobs.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -W error\n")
    return tmp_path


def run_pytest(project: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", *words]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [*command, "--basetemp", str(project / "temp")],
        cwd=project,
        env={**environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_a_test_that_fails_says_what_is_known_of_its_jobs(project: Path) -> None:
    """Two tests at a time, which do not see each other; nothing of theirs is left."""
    mark = uuid.uuid4().hex
    done = run_pytest(project, "-n2", **{MARK: mark})
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    bad, late = (
        done.stdout.partition(f"_ {name} _")[2].partition("_ test_")[0]
        for name in ("test_bad", "test_late")
    )
    assert "ValueError: bad batch (algo-2 rank 1, exit code 1)" in bad
    assert "--- rank 1 on algo-2, exit code 1\nout: ready on algo-2\nerr: Traceback" in bad
    assert "muster job 1: job.py did not end within 3 s" in late
    assert "out: ready on algo-1" in late
    assert "stacks before it was stopped:\nroll call: " in late
    assert "job.py:4 <module>" in late
    assert "TimeoutError" not in late
    trace = Trace(MARK, mark)
    trace.look()
    wait_until(lambda: not trace.alive(), 5, lambda: "\n".join(map(describe, trace.alive())))


def test_the_deadline_is_also_an_option(project: Path) -> None:
    (project / "tests/test_jobs.py").write_text(
        "def test_late(muster_job):\n"
        "    muster_job('job.py', isolation='process', arguments=['forever'])\n"
    )
    done = run_pytest(project, "--muster-job-timeout", "0.5")
    assert "did not end within 0.5 s" in done.stdout, done.stdout
    done = run_pytest(project, "--muster-job-timeout", "0")  # before a rank could answer
    assert "stacks before it was stopped:\nnot known: muster" in done.stdout, done.stdout


def test_it_can_be_switched_off_and_imports_nothing(project: Path) -> None:
    done = run_pytest(project, "-p", "no:muster", "-o", "addopts=", "-k", "test_bad")
    assert "fixture 'muster_job' not found" in done.stdout
    (project / "tests/test_jobs.py").write_text(
        "import sys\n"
        "def test_light():\n"
        "    assert {n for n in sys.modules if n.split('.')[0] == 'muster'} == "
        "{'muster', 'muster.pytest_plugin'}\n"
    )
    done = run_pytest(project)
    assert "1 passed" in done.stdout, done.stdout
