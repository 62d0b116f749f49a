"""What a person at a terminal meets: the script soon, progress live, nothing lost at its end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from benchmarks.launcher.jobs import environ
from benchmarks.table import Bound, Row, at_least
from tests.support.terminals import read_to_hangup
from tests.support.waiting import wait_until

CLOSED_TIMES = 10
HOSTS = 2
STEPS = 60
LIMIT_S = 120.0
MOST_LINES, LEAST_UPDATES = 8, 50
_SAVES = """\
import os, pathlib, signal, sys, time
def save(number, frame):
    time.sleep(1)
    pathlib.Path(os.environ["SM_MODEL_DIR"], "saved").write_text("")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
# writes as tqdm does
_BAR = f"""\
import sys, time
for step in range(1, {STEPS + 1}):
    time.sleep(0.1)
    sys.stderr.write(f"\\rstep {{step}}/{STEPS} |{{'#' * (step // 6):10}}|")
    sys.stderr.flush()
sys.stderr.write("\\n")
"""
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[@-~]")
_TABLE = re.compile(r"host +phase|algo-\d+ +\w+( |$)|\s*$")


def rows(folder: Path) -> Iterator[Row]:
    folder.mkdir(exist_ok=True)
    yield _closing(folder)
    yield _first_line(folder)
    yield _bar(folder)


def _closing(folder: Path) -> Row:
    saved = [_close_once(folder, number) for number in range(CLOSED_TIMES)]
    count, codes = sum(ranks for ranks, _ in saved), {code for _, code in saved}
    all_ranks = CLOSED_TIMES * HOSTS
    text = f"{all_ranks} of {all_ranks}, and all runs with 143 and a whole record"
    return Row(
        "closing the terminal of `muster local`: ranks that saved",
        "ranks",
        count,
        {},
        (Bound(text, count == all_ranks and codes == {143}),),
        f"{CLOSED_TIMES} runs of {HOSTS} hosts whose ranks take 1 s to save; exit codes {codes}",
        more_is_better=True,
    )


def _close_once(folder: Path, number: int) -> tuple[int, int]:
    """(ranks that saved, exit code); -1 for a run without a whole record."""
    output = folder / f"closed-{number}"
    script = _script(folder, "saves", _SAVES)
    process, other = _on_terminal(folder, script, "--output", str(output), "--hosts", str(HOSTS))
    logs = [output / f"algo-{n + 1}" / "logs" / f"rank-{n}.out" for n in range(HOSTS)]
    wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs), LIMIT_S)
    os.close(other)
    code = process.wait(LIMIT_S)
    saved = list(output.glob("algo-*/opt/ml/model/saved"))
    return len(saved), code if (output / "summary.json").exists() else -1


def _first_line(folder: Path) -> Row:
    script = _script(folder, "first", "print('first line of the script', flush=True)\n")
    options = ("--hosts", "2", "--distribution", "torch_distributed")
    process, other = _on_terminal(folder, script, "--output", str(folder / "first"), *options)
    screen = _CONTROL.sub(b"", read_to_hangup(other)).decode("utf-8", "replace")
    if process.wait(LIMIT_S):
        raise RuntimeError(screen)
    lines = screen.splitlines()
    first = next(place for place, line in enumerate(lines) if "first line of" in line)
    ours = [line for line in lines[:first] if not _TABLE.match(line)]
    longest = max(map(len, lines))
    return Row(
        "first line of a 2-host torchrun script: lines of ours before it",
        "lines",
        len(ours),
        {},
        (
            Bound(f"at most {MOST_LINES}", len(ours) <= MOST_LINES),
            Bound("none over 200 characters", longest <= 200),
        ),
        f"on a terminal, beside the live table; the longest line has {longest} characters",
    )


def _bar(folder: Path) -> Row:
    script = _script(folder, "bar", _BAR)
    process, other = _on_terminal(folder, script, "--output", str(folder / "bar"))
    seen: dict[int, float] = {}

    def look(data: bytes) -> None:
        for found in re.findall(rb"step (\d+)/", data[-4096:]):
            seen.setdefault(int(found), time.monotonic())

    read_to_hangup(other, look)
    if process.wait(LIMIT_S):
        raise RuntimeError(f"muster local ended with {process.returncode}")
    times = sorted(seen.values())
    apart = sum(later - earlier > 0.01 for earlier, later in pairwise(times))
    return Row(
        f"a tqdm bar of {STEPS} steps: updates seen live",
        "updates",
        apart + 1,
        {},
        (at_least(apart + 1, LEAST_UPDATES, "updates"),),
        f"a step each 0.1 s, written as tqdm writes; {len(seen)} steps seen, those counted that "
        f"came at a time of their own, in {times[-1] - times[0]:.1f} s",
        more_is_better=True,
    )


def _script(folder: Path, name: str, text: str) -> Path:
    place = folder / f"code-{name}"
    place.mkdir(exist_ok=True)
    (place / f"{name}.py").write_text(text)
    return place / f"{name}.py"


def _on_terminal(folder: Path, script: Path, *options: str) -> tuple[subprocess.Popen[bytes], int]:
    """`muster local` on a terminal of its own, and the other end of that."""
    other, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "muster", "local", str(script), "--isolation", "process", *options],
        cwd=folder,
        env=environ(Path(sys.executable).parent, TERM="xterm", MUSTER_STOP_GRACE_S="7"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )
    os.close(terminal)
    return process, other
