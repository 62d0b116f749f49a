"""`muster local --debug` and `--pdb`: a debugger and a terminal look into a rank of a real job."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
from pathlib import Path

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.local.attaching import attached
from tests.launcher.support.local.local_runs import PROCESS, Start
from tests.support.terminals import read_to_hangup
from tests.support.waiting import wait_until

SCRIPT = """\
import os, subprocess, sys
value = 42
breakpoint() if "SM_HP_STOP" in os.environ else None
print("value", value, sys.stdin.fileno(), flush=True)
subprocess.run([sys.executable, "-c", "print('a child is not debugged')"], check=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.dev
@pytest.mark.parametrize("isolation", ["process", "netns"])
def test_a_debugger_stops_a_rank_reads_and_lets_go(
    start: Start, home: Path, isolation: str
) -> None:
    if isolation == "netns" and (reason := why_not_isolated(str(home))):
        pytest.skip(reason)
    run = start(home, ["train.py", "--debug", "0", "--isolation", isolation])
    debugger, configuration = attached(run)
    try:
        debugger.attach(configuration, str(home / "train.py"), 4)
        frame = debugger.stopped()
        assert (frame["line"], frame["source"]["path"]) == (4, str(home / "train.py"))
        assert debugger.value("value", frame) == "42"
        debugger.ask("continue", threadId=frame["thread"])
        result = run.wait()
    finally:
        debugger.close()
    assert result.code == 0, result.err
    assert "value 42 0" in result.out
    assert "a child is not debugged" in result.out
    assert "MUSTER_HANG_S" in result.err
    assert "init_process_group(timeout=...)" in result.err
    assert not list(run.folder.glob("*/debugger"))
    assert "  other " not in result.err  # launch.json is no file of the script's


FAILING = """\
import os, time
me = os.environ["SM_CURRENT_HOST"]
secret = "of " + me
if me == "algo-1":
    time.sleep(0.5)
raise ValueError(me)
"""


@pytest.mark.dev
def test_the_first_failure_is_held_with_its_frames(start: Start, home: Path) -> None:
    (home / "train.py").write_text(FAILING)
    run = start(home, ["train.py", *PROCESS, "--hosts", "2", "--debug-on-failure"])
    debugger, configuration = attached(run, "the rank that failed first")
    try:
        debugger.attach(configuration, str(home / "train.py"), 2)
        frame = debugger.stopped()
        assert (frame["line"], frame["source"]["path"]) == (6, str(home / "train.py"))
        assert debugger.value("secret", frame) == "'of algo-2'"
        wait_until(lambda: "ValueError: algo-1" in run.err, 20, lambda: run.err)
        assert run.process.poll() is None  # it waits for the first to go
        debugger.ask("continue", threadId=frame["thread"])
        result = run.wait()
    finally:
        debugger.close()
    assert result.code == 1, result.err
    assert "muster: rank 1 failed, and is held with its frames" in result.err
    assert "FAILED algo-2 rank 1: ValueError: algo-2" in result.err


@pytest.mark.dev
@pytest.mark.parametrize("option", [["--debug", "0"], ["--debug-on-failure"]])
def test_a_stop_ends_a_rank_that_waits_for_a_debugger(
    start: Start, home: Path, option: list[str]
) -> None:
    (home / "train.py").write_text(FAILING)
    run = start(home, ["train.py", *PROCESS, *option])
    wait_until(lambda: "waits for a debugger on" in run.err, 30, lambda: run.err)
    run.signal(signal.SIGINT)
    result = run.wait()
    assert result.code == 143, result.err


def test_a_breakpoint_that_nobody_can_answer_says_how(start: Start, home: Path) -> None:
    result = start(home, ["train.py", *PROCESS, "--hyperparameter", "stop=1"]).wait()
    assert result.code == 1
    said = "breakpoint() at train.py:3: rank 0 has no terminal; run it with `muster local ... "
    assert f"FAILED algo-1 rank 0: RuntimeError: {said}" in result.err
    assert "--pdb 0" in result.err
    assert "--debug 0" in result.err


def test_a_hook_of_the_users_own_is_left_alone(start: Start, home: Path) -> None:
    argv = ["train.py", *PROCESS, "--hyperparameter", "stop=1", "--env", "PYTHONBREAKPOINT=0"]
    result = start(home, argv).wait()
    assert result.code == 0, result.err


def test_a_rank_gets_the_terminal(start: Start, home: Path) -> None:
    other, terminal = pty.openpty()
    argv = ["train.py", *PROCESS, "--hyperparameter", "stop=1", "--pdb", "0"]
    run = start(home, argv, environ={"TERM": "xterm"}, terminal=terminal)
    os.close(terminal)
    words = [b"p value + 1\n", b"c\n"]

    def answer(seen: bytes) -> None:
        if words and seen.count(b"(Pdb) ") > 2 - len(words):
            os.write(other, words.pop(0))

    seen = read_to_hangup(other, answer).decode()
    assert run.wait().code == 0, seen
    assert "rank 0 has this terminal" in seen
    assert re.search(r"\(Pdb\) p value \+ 1\r\n43\r\n", seen), seen
    assert "[algo-1:0] value 42 0" in seen


ODD = """\
import io, os, sys
how = os.environ["SM_HP_HOW"]
if how == "variable":
    os.environ["PYTHONBREAKPOINT"] = "0"
elif how == "input":
    sys.stdin = io.StringIO("c\\n")
else:
    import pdb
    pdb.set_trace = lambda *_arguments, **_named: None
breakpoint()
print("went on", flush=True)
"""


@pytest.mark.parametrize("how", ["variable", "input", "debugger"])
def test_a_script_that_answers_its_own_breakpoint_goes_on(
    start: Start, home: Path, how: str
) -> None:
    (home / "train.py").write_text(ODD)
    result = start(home, ["train.py", *PROCESS, "--hyperparameter", f"how={how}"]).wait()
    assert result.code == 0, result.err
    assert "went on" in result.out


def test_a_rank_that_cannot_be_held_fails_as_it_would_have(start: Start, home: Path) -> None:
    (home / "train.py").write_text(
        "import sys\nsys.modules['debugpy'] = None\n"
        "import atexit\natexit.register(print, 'tidied up')\nraise ValueError('bad batch')\n"
    )
    result = start(home, ["train.py", *PROCESS, "--debug-on-failure"]).wait()
    assert result.code == 1, result.err
    assert "FAILED algo-1 rank 0: ValueError: bad batch" in result.err
    assert "rank 0 cannot be held: " in result.err
    assert "tidied up" in result.out


def test_a_rank_is_debugged_whose_agent_finds_files_of_its_own(start: Start, home: Path) -> None:
    (home / "train.sh").write_text(
        f'exec bash -c \'numbers=${{RANK_AGENT#*:}}; eval "exec ${{numbers%%,*}}>lock"; '
        f"exec {sys.executable} train.py'\n"
    )
    result = start(home, ["train.sh", *PROCESS, "--hyperparameter", "stop=1"]).wait()
    assert "breakpoint() at train.py:3: rank 0 has no terminal" in result.err


@pytest.mark.dev
def test_a_rank_that_waits_ends_with_a_killed_command(start: Start, home: Path) -> None:
    run = start(home, ["train.py", *PROCESS, "--debug", "0"])
    wait_until(lambda: "waits for a debugger on" in run.err, 30, lambda: run.err)
    run.process.kill()
    run.process.wait()
    run.check_nothing_left(20)
