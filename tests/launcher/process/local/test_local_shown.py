"""What `muster local` shows: progress as it happens, the script soon, and little of its own."""

from __future__ import annotations

import os
import pty
import re
from pathlib import Path

import pytest

from tests.launcher.support.local.local_runs import PROCESS, SCRIPT, LocalRun, Start
from tests.support.terminals import read_to_hangup

# writes half a line, then how far it is, each only once the test has seen the one before
STEPS = """\
import os, sys, time
folder = os.environ["STEPS"]
for step in range(6):
    sys.stderr.write(f"\\r{step} of 6" if step else "loading")
    sys.stderr.flush()
    while not os.path.exists(os.path.join(folder, str(step))):
        time.sleep(0.01)
sys.stderr.write("\\r6 of 6\\n")
"""
BAR = """\
import sys, time
for step in range(30):
    sys.stderr.write(f"\\rstep {step} of 30")
    sys.stderr.flush()
    time.sleep(0.1)
sys.stderr.write("\\rstep 30 of 30\\n")
print("done")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    for name, text in (("train", SCRIPT), ("steps", STEPS), ("bar", BAR)):
        (tmp_path / f"src/{name}.py").write_text(text)
    return tmp_path


def on_terminal(start: Start, home: Path, *argv: str, **environ: str) -> tuple[LocalRun, int]:
    other, terminal = pty.openpty()
    run = start(home, argv, environ={"TERM": "xterm", **environ}, terminal=terminal)
    os.close(terminal)
    return run, other


def test_a_line_without_an_end_is_seen_while_it_stands(start: Start, home: Path) -> None:
    (home / "seen").mkdir()
    steps = str(home / "seen")
    run, other = on_terminal(start, home, "src/steps.py", *PROCESS, "--env", f"STEPS={steps}")
    seen: list[str] = []

    def look(data: bytes) -> None:
        for step in range(6):
            text = f"{step} of 6" if step else "loading"
            if text.encode() in data and text not in seen:
                seen.append(text)
                (home / "seen" / str(step)).touch()

    screen = read_to_hangup(other, look)
    assert run.process.wait(60) == 0
    assert seen == ["loading", *(f"{step} of 6" for step in range(1, 6))]
    assert screen.count(b"6 of 6\r\n") == 1
    log = run.folder / "algo-1/logs/rank-0.err"
    bar = "".join(f"\r{step} of 6" for step in range(1, 7))
    assert log.read_bytes() == f"loading{bar}\n".encode()


def test_elsewhere_a_bar_is_a_few_lines(start: Start, home: Path) -> None:
    result = start(home, ("src/bar.py", *PROCESS)).wait()
    assert result.code == 0, result.err
    lines = [line for line in result.err.splitlines() if line.startswith("[algo-1:0] step")]
    assert 2 <= len(lines) <= 12
    assert lines[-1] == "[algo-1:0] step 30 of 30"
    assert not {"\r", "\x1b"} & set(result.err)
    assert (result.folder / "algo-1/logs/rank-0.err").read_bytes().count(b"\r") == 31


@pytest.mark.parametrize("isolation", ["process", "netns"])
def test_the_script_is_reached_after_a_few_lines_of_ours(
    start: Start, home: Path, isolation: str
) -> None:
    argv = ("src/train.py", "--hosts", "2", "--isolation", isolation)
    run, other = on_terminal(start, home, *argv, MUSTER_HEARTBEAT_S="1")
    screen = re.sub(rb"\x1b\[[0-9;?]*[@-~]", b"", read_to_hangup(other)).decode()
    if run.process.wait(60) == 2:
        pytest.skip("this machine allows no namespaces")
    lines = screen.splitlines()
    first = next(place for place, line in enumerate(lines) if "ready on" in line)
    table = re.compile(r"host +phase|algo-\d +(start|\w+ )")
    ours = [line for line in lines[:first] if line.strip() and not table.match(line)]
    assert len(ours) <= 8, ours
    assert max(map(len, lines)) <= 200
    assert " INFO " not in screen
    assert " INFO " in (run.folder / "algo-1/logs/train.log").read_text()


def test_verbose_shows_what_train_says(start: Start, home: Path) -> None:
    result = start(home, ("src/train.py", "--verbose", *PROCESS)).wait()
    assert " algo-1 INFO plan Invoking user script" in result.err


def test_only_the_ranks_that_were_chosen_are_shown(start: Start, home: Path) -> None:
    result = start(home, ("src/train.py", "--hosts", "3", "--ranks", "0,last", *PROCESS)).wait()
    assert result.code == 0, result.err
    shown = sorted(line for line in result.out.splitlines() if "ready on" in line)
    assert shown == ["[algo-1:0] ready on algo-1", "[algo-3:2] ready on algo-3"]
    assert (result.folder / "algo-2/logs/rank-1.out").read_text() == "ready on algo-2\n"


def test_a_rank_that_is_not_shown_is_named_with_its_own_error(start: Start, home: Path) -> None:
    (home / "src" / "fails.py").write_text(
        "import os\nif os.environ['SM_CURRENT_HOST'] == 'algo-2': raise ValueError('bad batch')\n"
    )
    result = start(home, ("src/fails.py", "--hosts", "2", "--ranks", "0", *PROCESS)).wait()
    assert result.code == 1
    assert "ValueError: bad batch" in result.err.rpartition("FAILED")[2], result.err


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_the_verdict_has_a_colour_on_a_terminal(
    start: Start, home: Path, no_color: str, coloured: bool
) -> None:
    run, other = on_terminal(start, home, "src/train.py", *PROCESS, NO_COLOR=no_color)
    screen = read_to_hangup(other)
    assert run.process.wait(60) == 0
    assert (b"\x1b[32mmuster local: succeeded" in screen) is coloured
    assert b"muster local: succeeded" in screen
    assert bool(re.search(rb"\x1b\[3\dm", screen)) is coloured
