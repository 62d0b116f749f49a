"""Jobs that hang, each in another way: the roll call names the rank to look at, and its line."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.support.disks.silent_mount import silent_mount
from tests.launcher.support.local.asking import verdict_of
from tests.launcher.support.local.hangs import (
    BACKENDS,
    HANGS,
    START_S,
    here,
    script_of,
    start_job,
    wait_ready,
)
from tests.launcher.support.local.local_runs import PROCESS, LocalRun, Start
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("muster.run.observe.agent_link") is None, reason="no agents in this build"
    ),
]
FOUND_S = 30.0
SHORT = {  # one cell for each hang, over all pairs of backend and hosts; the cheap ones most
    ("sleeps before it", "muster", 2), ("holds the GIL in C", "gloo", 1),
    ("calls in another order", "gloo", 2), ("calls with another shape", "mpi4py", 1),
    ("skips a call and goes on", "mpi4py", 1), ("is stopped", "mpi4py", 1),
    ("loops in Python", "mpi4py", 1), ("waits for a lock", "mpi4py", 2),
    ("waits for its loader", "mpi4py", 1), ("waits for a FIFO", "mpi4py", 2),
    ("reads a dead mount", "mpi4py", 1), ("does not receive", "mpi4py", 1),
}  # fmt: skip
# what the libraries themselves say of calls that differ, where these end the job
NOTICED = {
    "muster": "MismatchError: ",
    "gloo": "Is there a distributed collective mismatch",
    "mpi4py": "MPI_ERR_TRUNCATE",
}


def cells() -> list[Any]:
    return [
        pytest.param(
            hang,
            backend,
            hosts,
            id=f"{hang}, {backend}, {hosts}",
            marks=[] if (hang, backend, hosts) in SHORT else [pytest.mark.long],
        )
        for hang in HANGS
        for backend in BACKENDS
        for hosts in (1, 2)
    ]


@pytest.mark.promise("H08")
@pytest.mark.parametrize(("name", "backend", "hosts"), cells())
def test_the_guilty_rank_and_its_line_are_named(
    name: str, backend: str, hosts: int, start: Start, tmp_path: Path
) -> None:
    hang, found = HANGS[name], dict[str, Any]()
    with ExitStack() as stack:
        if "rows" in hang.guilty:
            stack.enter_context(silent_mount(tmp_path / "mount"))
        run = start_job(start, tmp_path, backend, hosts, script_of(hang, BACKENDS[backend]))
        wait_ready(run)

        def named() -> bool:
            if run.process.poll() is not None:
                return hang.differs
            try:
                found.update(verdict_of(run))
            except AssertionError:
                if run.process.poll() is None:
                    raise
                return hang.differs  # it has ended meanwhile
            right = (found["kind"] == "busy") is hang.works and found["kind"] != "work"
            return right and 1 in found["guilty"]

        wait_until(named, FOUND_S, lambda: f"{found} {run.err}")
        print(name, backend, hosts, found)
    if run.process.poll() is not None:
        assert NOTICED[backend] in (run.base("algo-1") / "output" / "failure").read_text()
        assert run.wait().code != 0
        return
    if name != "is stopped":  # such a rank cannot say where it is
        assert here(tmp_path) in found["sentence"], found
    _end(run)


def _end(run: LocalRun) -> None:
    for pid in run.alive():
        if "T (stopped)" in Path(f"/proc/{pid}/status").read_text():
            os.kill(pid, signal.SIGCONT)
    run.signal(signal.SIGTERM)
    assert run.wait().code == 143


@pytest.mark.promise("H06")
def test_a_wait_in_a_collective_ends_the_job_where_that_is_asked_for(
    start: Start, tmp_path: Path
) -> None:
    script = script_of(HANGS["sleeps before it"], BACKENDS["gloo"])
    run = start_job(start, tmp_path, "gloo", 1, script, MUSTER_HANG_S="3")
    result = run.wait(START_S)
    assert result.code == 103, result.err
    failure = (run.base("algo-1") / "output" / "failure").read_text()
    assert failure.startswith("HangError: rank 0 waits in all_reduce no. 4 of world (train.py:")
    assert "rank 1 is at train.py:" in failure


LEADER_LEAVES = """\
import os, time
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    time.sleep(600)  # here
"""


@pytest.mark.promise("H05")
@pytest.mark.promise("H06")
def test_a_host_hangs_after_the_ranks_of_the_leader_have_ended(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LEADER_LEAVES)
    limits = {"MUSTER_STALL_IDLE_S": "1", "MUSTER_HANG_S": "3"}
    result = (run := start(tmp_path, ("train.py", "--hosts", "2", *PROCESS), environ=limits)).wait()
    assert result.code == 103, result.err
    assert "roll call: rank 1 is idle" in result.err
    for host in ("algo-1", "algo-2"):
        failure = (run.base(host) / "output" / "failure").read_text()
        assert failure.startswith("HangError: rank 1 is idle")
        assert here(tmp_path) in failure
