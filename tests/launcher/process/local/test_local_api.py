"""`muster.local.run` and `start`: real jobs, whatever the caller is, and nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster.local
from muster.arguments import Parser, UsageError
from muster.local.command import add_arguments
from muster.local.request import read_request
from tests.support.traces import Trace, describe
from tests.support.waiting import wait_until

MARK = "TEST_RUN_MARK"
LEFT_S = 5.0
WAIT_S = 30.0
SCRIPT = """\
import json, os, sys
print("host", os.environ["SM_CURRENT_HOST"], sys.argv[1:], flush=True)
print("to stderr", file=sys.stderr)
if os.environ.get("FAIL") == os.environ["SM_CURRENT_HOST"]:
    raise ValueError("bad batch")
"""
FOREVER = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
CALLER = """\
import os, sys, time, muster.local
if len(sys.argv) > 1:  # a child of the caller that holds every descriptor of its
    job = muster.local.start("forever.py", hosts=2, isolation="process")
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("started", flush=True)
    job.wait()
try:
    muster.local.run("forever.py", hosts=2, isolation="process")
except KeyboardInterrupt:
    print("interrupted", open("muster-runs/latest/summary.json").read(), flush=True)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("train", SCRIPT), ("forever", FOREVER), ("caller", CALLER)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trace]:
    """Knows all processes of the test's jobs; none is left in the end."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    trace = Trace(MARK, mark)
    yield trace
    gone(trace)


def gone(trace: Trace) -> None:
    def left() -> str:
        trace.look()
        return "\n".join(map(describe, trace.alive()))

    wait_until(lambda: not left(), LEFT_S, left)


def test_a_run_is_a_value(home: Path) -> None:
    result = muster.local.run(
        "train.py",
        hosts=2,
        isolation="process",
        hyperparameters={"lr": 0.5, "name": "x=y", "flag": True},
        arguments=["--more"],
        quiet=True,
    )
    assert result.succeeded
    assert (result.exit_code, result.failure, len(result.ranks)) == (0, None, 2)
    second = result.rank(1)
    assert (second.host, second.exit_code, second.stderr) == ("algo-2", 0, "to stderr\n")
    assert "'--lr', '0.5', '--name', 'x=y', '--more'" in second.stdout
    assert Path(result.folder).parent == home / "muster-runs"
    assert result.summary == json.loads(Path(result.folder, "summary.json").read_text())
    with pytest.raises(IndexError, match="no rank 2; its ranks: 0, 1"):
        result.rank(2)


def test_the_metrics_of_all_ranks_are_there(home: Path) -> None:
    (home / "train.py").write_text(
        "import math, muster\n"
        "for step in range(2): muster.metrics(step=step, loss=0.5 if step else math.inf)\n"
    )
    result = muster.local.run("train.py", hosts=2, isolation="process", quiet=True)
    found = [(one["rank"], one["host"], one["step"], one["values"]) for one in result.metrics]
    assert found == [
        (0, "algo-1", 0, {"loss": math.inf}),
        (0, "algo-1", 1, {"loss": 0.5}),
        (1, "algo-2", 0, {"loss": math.inf}),
        (1, "algo-2", 1, {"loss": 0.5}),
    ]


def test_a_failed_run_says_who_and_why(home: Path) -> None:
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        result = muster.local.run(
            "train.py", hosts=2, isolation="process", env={"FAIL": "algo-2"}, output="here"
        )
    assert (result.exit_code, result.folder) == (1, str(home / "here"))
    assert result.failure is not None
    assert (result.failure.rank, result.failure.host) == (1, "algo-2")
    assert "ValueError: bad batch" in result.failure.headline
    assert result.failure.text.endswith("ValueError: bad batch")
    assert result.failure.fix in str(result)
    assert "FAILED algo-2 rank 1: ValueError: bad batch" in shown.getvalue()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": "x"}, ["--hosts=x"]),
        ({"hostz": 2}, ["--hostz=2"]),
        ({"processes": 2}, ["--processes-per-host=2"]),
        ({"timeout_s": -1}, ["--timeout=-1"]),
        ({"channels": {"train": "nowhere"}}, ["--channel=train=nowhere"]),
        ({"hyperparameters": {"sagemaker_mpi_enabld": True}},
         ["--hyperparameter=sagemaker_mpi_enabld=true"]),
        ({"env": {"C-D": None, "A-B": 1}}, ["--env=A-B=1"]),
        ({"env": ["A=1", "A-B=1"]}, ["--env=A=1", "--env=A-B=1"]),
        ({"fault": ["stop@1s", "klil:rank=1"]}, ["--fault=stop@1s", "--fault=klil:rank=1"]),
        ({"debug": (0, "0:70000")}, ["--debug=0", "--debug=0:70000"]),
        ({"pdb": [0, "x"]}, ["--pdb=0", "--pdb=x"]),
        ({"distribution": {"mpi": [1]}, "hosts": 0}, ['--distribution={"mpi": [1]}', "--hosts=0"]),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_the_words_of_the_command(
    home: Path, options: dict[str, object], words: list[str]
) -> None:
    parser = Parser("muster local", script_arguments=True)
    add_arguments(parser)
    with pytest.raises(UsageError) as said:
        read_request(parser.parse(["train.py", *words]))
    with pytest.raises(ValueError, match=re.escape(said.value.message)) as refused:
        muster.local.run("train.py", quiet=True, **options)  # type: ignore[arg-type]
    assert str(refused.value) == f"{said.value.message}\n  {said.value.fix}".rstrip()
    assert not (home / "muster-runs").exists()


def test_nothing_of_the_caller_reaches_the_ranks(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called from a thread that blocks signals, in a process that ignores them and has descriptors
    that children inherit, while an event loop runs."""
    (home / "train.py").write_text(
        "import os\n"
        "print({name for name in os.environ if name.startswith(('JPY_', 'PYTEST_', 'MPL'))})\n"
        "print('77' in os.listdir('/proc/self/fd'))\n"
    )
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    inherited = os.dup2(1, 77, inheritable=True)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def call() -> tuple[muster.local.Result, muster.local.Result]:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        first = muster.local.run("train.py", isolation="process", quiet=True)
        with muster.local.start("forever.py", isolation="process") as job:
            wait_until(lambda: "ready" in _written(job.folder), WAIT_S)
            job.stop()
            return first, job.wait(WAIT_S)

    async def main() -> tuple[muster.local.Result, muster.local.Result]:
        return await asyncio.to_thread(call)

    try:
        first, stopped = asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(inherited)
    assert first.rank(0).stdout == "set()\nFalse\n"
    assert stopped.exit_code == 143
    assert stopped.summary["local"]["killed"] is False


def test_a_started_job_is_waited_for_and_stopped(home: Path) -> None:
    with muster.local.start("forever.py", hosts=2, isolation="process") as job:
        assert job.alive
        assert os.path.isdir(job.folder)
        with pytest.raises(TimeoutError):
            job.wait(0.1)
    assert not job.alive
    assert job.wait().exit_code == 143
    assert job.wait().failure == muster.local.Failure("stopped: SIGTERM")


def test_the_exit_code_is_known_where_somebody_else_reaps(home: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        result = muster.local.run(
            "train.py", isolation="process", env={"FAIL": "algo-1"}, quiet=True
        )
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert result.exit_code == 1


def test_ctrl_c_ends_the_job_before_the_caller_hears_of_it(home: Path, trace: Trace) -> None:
    with _caller(home) as caller:
        wait_until(
            lambda: len(list(home.glob("muster-runs/2*/algo-*/logs/rank-*.out"))) == 2, WAIT_S
        )
        trace.look()
        caller.send_signal(signal.SIGINT)
        out, _ = caller.communicate(timeout=WAIT_S)
    word, _, summary = out.rpartition("interrupted ")
    assert word, out
    assert json.loads(summary)["local"]["ended_by"] == "SIGINT"


def test_a_job_ends_with_the_process_that_wanted_it(home: Path, trace: Trace) -> None:
    """Also where a child that this one forked holds its pipes open."""
    with _caller(home, "fork") as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "started\n"
        wait_until(lambda: len(trace.look()) > 5, WAIT_S)
        (child,) = (p.pid for p in trace.look() if _is_copy(p.pid, p.parent, caller.pid))
        caller.kill()
        caller.wait(WAIT_S)

        def others() -> set[int]:
            trace.look()
            return set(trace.alive()) - {child}

        wait_until(lambda: not others(), LEFT_S, lambda: "\n".join(map(describe, others())))
        os.kill(child, signal.SIGKILL)


def test_a_thread_may_end_before_its_job(home: Path) -> None:
    jobs: list[muster.local.RunningJob] = []
    thread = threading.Thread(
        target=lambda: jobs.append(muster.local.start("forever.py", isolation="process"))
    )
    thread.start()
    thread.join(WAIT_S)
    with jobs[0] as job, pytest.raises(TimeoutError):
        job.wait(0.5)


def test_importing_it_imports_next_to_nothing() -> None:
    code = (
        "import sys, muster; muster.local;"
        "heavy = {'argparse', 'subprocess', 'rich'} & {*sys.modules};"
        "from muster.local import run, start, Result; print(heavy, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() False\n"


def _caller(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(home / "caller.py"), *words]
    return subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True)


def _is_copy(pid: int, parent: int, caller: int) -> bool:
    return parent == caller and "caller.py" in describe(pid)


def _written(folder: str) -> str:
    return "".join(path.read_text() for path in Path(folder).glob("algo-*/logs/rank-*.out"))
