"""F61: the clock of the wall jumps, and nothing depends on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import muster
from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.records import events, keep_record
from tests.launcher.support.sabotage import train_after

Make = Callable[..., Cluster]


def let_the_clock_jump() -> None:
    import time
    from itertools import cycle

    real, jumps = time.time, cycle((7200, -7200))
    time.time = lambda: real() + next(jumps)


@pytest.mark.promise("F61")
def test_a_clock_that_jumps_by_hours_changes_nothing(cluster: Make) -> None:
    job = cluster("import time\ntime.sleep(1)\nprint('ran')\n")
    keep_record(job)
    job.start(command=train_after(let_the_clock_jump))
    results = job.wait(20)
    stamps = [event["time"] for event in events(job)]
    assert max(stamps) - min(stamps) > 14000  # the clock did jump
    assert {(r.code, r.out) for r in results.values()} == {(0, "ran\n")}
    for result in results.values():
        assert not [*lines(result.err, "lost"), *lines(result.err, "connection of")]


WALL = re.compile(
    r"\btime\.(time|time_ns|localtime|gmtime|ctime|asctime|strftime|clock_gettime)\b"
    r"|\bdatetime\b|\bfrom time import\b|\bimport time as\b"
)
READERS = {  # stamps for people and programs, and what `doctor` says of the clock itself
    "run/base/record.py",
    "run/base/console.py",
    "run/job/figures.py",  # beside the stamps of files: after a jump, waits may be unknown
    "train/work.py",  # when the job began, for its script; at the end beside stamps of its log
    "runtime/facts.py",  # a word of its documentation
    "runtime/metrics.py",
    "rank_bootstrap/calls.py",  # torch stamps calls so; believed back to the look before alone
    "report/read.py",
    "submit/folder.py",  # when a job was submitted
    "submit/follow.py",  # whether somebody looked a moment ago, also where this machine slept
    "elsewhere/compose.py",  # how the end that an engine names is shown
    "elsewhere/command.py",  # how long an engine that names an end still leaves the job
    "local/launch.py",  # when the run began, beside the stamps of its checkpoints
    "local/faults/injector.py",
    "local/record/runfolder.py",
    "local/record/command_file.py",  # when a run began, for `muster history`
    "local/record/history.py",
    "commands/sbom.py",
    "commands/doctor_facts.py",
    "commands/doctor_checks.py",
}


@pytest.mark.promise("F61")
def test_the_wall_clock_is_read_for_stamps_only() -> None:
    root = Path(muster.__file__).parent
    readers = {path for path in root.rglob("*.py") if WALL.search(path.read_text())}
    assert {path.relative_to(root).as_posix() for path in readers} == READERS
