"""Stops, exits and aborts under mpirun, in both versions.

mpirun is never on the way of a signal and never decides an outcome. Ranks have called MPI_Init.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Result
from tests.launcher.support.records import WAIT_SHOWN, ended, keep_record
from tests.support.mpi import BEGIN, WAITS, MakeMpi, MpiCluster, wait_ranks
from tests.support.waiting import wait_until, within

GRACE = {"MUSTER_STOP_GRACE_S": "20"}
MOMENT = "time.sleep(0.3); "  # until the others have said what they say
SAVE_S = 2.5  # longer than any version of mpirun lets a rank live after a stop
# `leave` is what a rank does in place of saving
SAVES = (
    BEGIN
    + """
def stop(number, frame):
    if rank == 1 and LEAVE:
        os._exit(143)
    until = time.monotonic() + SAVE_S
    while time.monotonic() < until:
        time.sleep(0.02)
    say("saved", rank)
    os._exit(0)
if rank != 1 or LEAVE is not None:
    signal.signal(signal.SIGTERM, stop)
say("ready", rank)
while True:
    time.sleep(0.02)
"""
)


def saving(leave: bool | None) -> str:
    """`leave`: rank 1 exits with 143 at once; None: it dies by the signal; False: it saves too."""
    return f"LEAVE, SAVE_S = {leave}, {SAVE_S}\n{SAVES}"


def statuses(job: MpiCluster) -> list[int]:
    """The true status of each rank, from the summary."""
    text = (job.folder / "run" / "summary.json").read_text()
    return [rank["status"] for rank in json.loads(text)["ranks"]]


def recorded(job: MpiCluster) -> MpiCluster:
    keep_record(job)
    return job


def lines_of(results: dict[str, Result]) -> set[str]:
    return {result.first_line for result in results.values()}


@pytest.mark.promise("F01")
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_stop_gives_every_rank_its_full_grace(mpi: MakeMpi, host: str) -> None:
    job = recorded(mpi(saving(leave=False), environ=GRACE))
    job.start()
    wait_ranks(job, "ready", 4)
    job.signal(host)
    results = job.wait(SAVE_S + 8)
    assert {result.code for result in results.values()} == {143}
    assert sum(result.out.count("saved") for result in results.values()) == 4
    assert statuses(job) == [0, 0, 0, 0]


@pytest.mark.parametrize(("leave", "status"), [(True, 143), (None, -signal.SIGTERM)])
def test_a_rank_that_is_gone_early_takes_no_other_from_its_saving(
    mpi: MakeMpi, leave: bool | None, status: int
) -> None:
    """Bare mpirun kills the others after 2 s; they need longer."""
    job = recorded(mpi(saving(leave), environ=GRACE))
    job.start()
    wait_ranks(job, "ready", 4)
    job.signal("algo-1")
    results = job.wait(SAVE_S + 8)
    assert {result.code for result in results.values()} == {143}
    assert sum(result.out.count("saved") for result in results.values()) == 3
    assert statuses(job) == [0, status, 0, 0]


@pytest.mark.promise("F31")
@pytest.mark.parametrize("others", ["comm.recv(source=2)", "comm.allreduce(1)"])
def test_an_exception_on_a_follower_ends_all_hosts_with_its_error(
    mpi: MakeMpi, others: str
) -> None:
    script = f"{BEGIN}if rank == 2:\n    {MOMENT}raise ValueError('bad batch')\n{others}\n"
    job = mpi(script)
    job.start()
    wait_ranks(job, "up", 4)
    results = job.wait(20)
    assert {result.code for result in results.values()} == {1}
    expected = "UserScriptError: ValueError: bad batch (algo-2 rank 2, exit code 1)"
    assert lines_of(results) == {expected}
    for result in results.values():
        assert "Traceback (most recent call last):" in result.failure
        assert "raise ValueError('bad batch')" in result.failure


@pytest.mark.promise("F09")
def test_an_exit_code_of_one_rank_is_that_of_every_host(mpi: MakeMpi) -> None:
    job = mpi(f"{BEGIN}if rank == 3:\n    os._exit(42)\ncomm.Barrier()\n")
    results = job.run(20)
    assert {result.code for result in results.values()} == {42}
    assert lines_of(results) == {
        "UserScriptError: exit(42) without an error message (algo-2 rank 3, exit code 42)"
    }


@pytest.mark.promise("F10")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGSEGV, 139), (signal.SIGABRT, 134)])
def test_a_crash_is_named_by_its_signal(mpi: MakeMpi, number: int, code: int) -> None:
    """Open MPI writes what it caught to the rank's own stream."""
    script = f"{BEGIN}if rank == 3:\n    os.kill(os.getpid(), {int(number)})\ncomm.Barrier()\n"
    results = mpi(script).run(20)
    assert {result.code for result in results.values()} == {code}
    (line,) = lines_of(results)
    assert signal.Signals(number).name in line
    assert line.endswith(f"(algo-2 rank 3, exit code {code})")


@pytest.mark.promise("F32")
def test_of_two_ranks_that_fail_almost_together_the_earlier_is_named(mpi: MakeMpi) -> None:
    """The earlier one is gone last: what they said decides, not the order of exits."""
    script = (
        f"{BEGIN}{WAIT_SHOWN}"
        "show = sys.excepthook\n"
        "def show_and_stay(*error):\n"
        "    show(*error)\n"
        "    wait_ended(1)\n"
        "if rank == 3:\n"
        # the later one's end has this one stopped, which is to end by its own error
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    sys.excepthook = show_and_stay\n"
        "    raise ValueError('earlier')\n"
        "if rank == 1:\n"
        "    wait_shown('algo-2', 3, 'ValueError: earlier')\n"
        "    time.sleep(0.1)\n"
        "    raise ValueError('later')\n"
        "while True:\n    time.sleep(1)\n"
    )
    job = recorded(mpi(script, environ={"MUSTER_FAILFAST_GRACE_S": "20"}))
    results = job.run(60)
    assert {result.code for result in results.values()} == {1}
    assert lines_of(results) == {
        "UserScriptError: ValueError: earlier (algo-2 rank 3, exit code 1) and 1 more"
    }
    assert statuses(job)[1::2] == [1, 1]
    assert [rank for rank in ended(job) if rank in (1, 3)] == [1, 3]


@pytest.mark.parametrize("others", ["comm.Barrier()", "time.sleep(600)"])
def test_mpi_abort_is_the_abort_of_its_rank_and_of_no_other(mpi: MakeMpi, others: str) -> None:
    """mpirun kills all shims then; their scripts are adopted and keep their true statuses."""
    job = recorded(mpi(f"{BEGIN}if rank == 2:\n    {MOMENT}comm.Abort(7)\n{others}\n"))
    job.start()
    wait_ranks(job, "up", 4)
    began = time.monotonic()
    results = job.wait(20)
    assert time.monotonic() - began < within(5)
    assert {result.code for result in results.values()} == {7}
    assert lines_of(results) == {
        "UserScriptError: exit(7) without an error message (algo-2 rank 2, exit code 7)"
    }
    assert statuses(job)[2] == 7
    assert "MPI_ABORT was invoked on rank 2" in results["algo-1"].err


def test_ranks_that_end_without_mpi_finalize_after_all_is_done_are_a_success(
    mpi: MakeMpi,
) -> None:
    """They leave together, so that none of them misses another."""
    job = mpi(f"{BEGIN}{MOMENT}os._exit(0)\n")
    assert {result.code for result in job.run(20).values()} == {0}


@pytest.mark.promise("F33")
def test_ranks_may_end_apart(mpi: MakeMpi) -> None:
    job = mpi(f"{BEGIN}time.sleep(1.5 * (rank == 3))\nsay('done', rank)\n")
    results = job.run(20)
    assert {result.code for result in results.values()} == {0}
    assert sum(result.out.count("done") for result in results.values()) == 4


@pytest.mark.promise("F33")
def test_a_job_that_does_nothing_ends_within_three_seconds(mpi: MakeMpi) -> None:
    times: list[float] = []
    while not times or (min(times) >= within(3) and len(times) < 3):  # other load only adds
        job = mpi("print('ran')\n")
        began = time.monotonic()
        results = job.run(20)
        times.append(time.monotonic() - began)
        assert [(r.code, r.out) for r in results.values()] == [(0, "ran\n" * 2)] * 2
    assert min(times) < within(3), times


@pytest.mark.promise("F17")
def test_a_killed_mpirun_is_the_failure_and_takes_its_tree_along(mpi: MakeMpi) -> None:
    job = mpi(WAITS)
    job.start()
    wait_ranks(job, "up", 4)
    os.kill(job.launcher(), signal.SIGKILL)
    began = time.monotonic()
    results = job.wait(20)
    assert time.monotonic() - began < within(5)
    assert {result.code for result in results.values()} == {137}
    (line,) = lines_of(results)
    assert "the launcher mpirun was killed by SIGKILL while its ranks ran (on algo-1)" in line


@pytest.mark.promise("F17")
def test_a_killed_launch_daemon_of_a_follower_is_the_failure(mpi: MakeMpi) -> None:
    """The daemon of Open MPI 5 has a parent, which tells its end as 255."""
    job = mpi(WAITS)
    job.start()
    wait_ranks(job, "up", 4)
    os.kill(job.daemon("algo-2"), signal.SIGKILL)
    results = job.wait(20)
    (line,) = lines_of(results)
    (code,) = {result.code for result in results.values()}
    assert f"the launch daemon {job.open_mpi.daemon} " in line
    assert "while its ranks ran (on algo-2)" in line
    assert code in (137, 255)


@pytest.mark.promise("F17")
def test_a_rank_that_only_lost_its_daemon_does_not_end_the_job_before_that_is_told(
    mpi: MakeMpi,
) -> None:
    """Its status comes first, and whoever hears of it ends the job."""
    leaves = "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: os._exit(195))\n"
    job = mpi(f"{leaves}{BEGIN}time.sleep(600)\n")  # in Python, which runs handlers
    job.start()
    wait_ranks(job, "up", 4)
    daemon = job.daemon("algo-2")
    for pid in job.find("algo-2", Path(sys.executable).name, "train.py"):
        os.kill(pid, signal.SIGUSR1)
    os.kill(daemon, signal.SIGKILL)
    (line,) = lines_of(job.wait(20))
    assert f"the launch daemon {job.open_mpi.daemon} " in line
    assert "(on algo-2)" in line


@pytest.mark.promise("F17")
def test_a_launch_daemon_counts_also_when_the_ranks_of_its_own_host_have_ended(
    mpi: MakeMpi,
) -> None:
    works = "if os.environ['SM_CURRENT_HOST'] == 'algo-1':\n    time.sleep(600)\n"
    job = recorded(mpi(f"import os, time\nprint('up', flush=True)\n{works}"))
    job.start()
    wait_ranks(job, "up", 4)
    wait_until(lambda: sorted(ended(job)) == [2, 3], 30, lambda: job.story("they work on"))
    os.kill(job.daemon("algo-2"), signal.SIGKILL)
    results = job.wait(20)
    (line,) = lines_of(results)
    (code,) = {result.code for result in results.values()}
    assert f"the launch daemon {job.open_mpi.daemon} " in line
    assert "after its ranks (on algo-2)" in line
    assert code in (137, 255)


@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_killed_shim_is_the_failure_and_not_the_ranks_that_mpirun_ends_for_it(
    mpi: MakeMpi, host: str
) -> None:
    job = mpi(WAITS)
    job.start()
    wait_ranks(job, "up", 4)
    os.kill(job.shims(host)[0], signal.SIGKILL)
    results = job.wait(20)
    assert {result.code for result in results.values()} == {106}
    (line,) = lines_of(results)
    assert line.startswith("LaunchError: the process above rank ")
    assert line.endswith(f"was killed (on {host})")


@pytest.mark.promise("F02")
@pytest.mark.promise("F03")
def test_a_stop_reaches_ranks_when_a_shell_stands_above_train(mpi: MakeMpi) -> None:
    job = mpi(saving(leave=False), environ=GRACE)
    line = "trap 'kill -TERM $child; wait $child' TERM; python -m muster train & child=$!; "
    shell = ["sh", "-c", line.replace("python", sys.executable) + "wait $child"]
    job.start("algo-1", command=shell)
    job.start("algo-2")
    wait_ranks(job, "ready", 4)
    job.signal("algo-1")
    results = job.wait(SAVE_S + 8)
    assert {result.code for result in results.values()} == {143}
    assert sum(result.out.count("saved") for result in results.values()) == 4


@pytest.mark.promise("F08")
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_killed_train_leaves_neither_ranks_nor_shared_memory(mpi: MakeMpi, host: str) -> None:
    job = mpi(WAITS)
    job.start()
    wait_ranks(job, "up", 4)
    job.signal(host, signal.SIGKILL)
    results = job.wait(20)
    (other,) = (result for name, result in results.items() if name != host)
    assert other.code == 102
    assert other.first_line.startswith(f"PeerError: lost {host} (")
