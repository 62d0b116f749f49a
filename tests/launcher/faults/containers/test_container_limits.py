"""What the kernel grants a container: memory, processes, files, rights.

reliability.md F11, F16, F62, F63.
"""

from __future__ import annotations

import os

import pytest

from tests.launcher.support.containers import Make
from tests.support.mpi import chosen

# memory

LIMIT_MIB = 64
MEMORY = (f"--memory={LIMIT_MIB}m", f"--memory-swap={LIMIT_MIB}m")
ALLOCATES = """\
import os, time
if os.environ["SM_CURRENT_HOST"] == os.environ["THE_GREEDY"]:
    print("allocating", flush=True)
    data = bytearray(os.urandom(1 << 20)) * 500
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.promise("F11")
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_rank_killed_for_memory_is_said_on_every_host(containers: Make, hosts: int) -> None:
    greedy = f"algo-{hosts}"
    job = containers(ALLOCATES, hosts, environ={"THE_GREEDY": greedy})
    job.start(options=MEMORY)
    results = job.wait(30)
    assert job.state(greedy)["OOMKilled"]  # the fault
    for result in results.values():
        assert result.code == 137, result.err
        assert result.first_line == (
            f"UserScriptError: killed by the kernel: container memory limit of {LIMIT_MIB} MiB "
            f"reached ({greedy} rank {hosts - 1}, exit code 137)"
        )


ALL_REDUCES = """\
import os
import torch.distributed as dist, torch
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("sum", int(one), flush=True)
if dist.get_rank() == 1:
    data = bytearray(os.urandom(1 << 20)) * 4000
dist.all_reduce(one)
"""


@pytest.mark.promise("F11")
@pytest.mark.torch
def test_a_rank_of_torchrun_killed_for_memory_is_the_one_that_is_named(containers: Make) -> None:
    """The other one fails as well, since it loses its peer in the middle of a collective."""
    torchrun = {"sagemaker_torch_distributed_enabled": "true"}
    job = containers(ALL_REDUCES, hyperparameters=torchrun)
    job.start(options=["--memory=1g", "--memory-swap=1g"])
    results = job.wait(60)
    assert {result.out for result in results.values()} == {"sum 2\n"}
    assert job.state("algo-2")["OOMKilled"]
    assert not job.state("algo-1")["OOMKilled"]
    for result in results.values():
        assert result.code == 137, result.err
        assert result.first_line.removesuffix(" and 1 more") == (
            "UserScriptError: killed by the kernel: container memory limit of 1024 MiB reached "
            "(algo-2 rank 1, exit code 137)"
        )


ALL_MEET = """\
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
print("sum", comm.allreduce(1), flush=True)
if comm.rank == 1:
    data = bytearray(os.urandom(1 << 20)) * 4000
comm.Barrier()
"""


@pytest.mark.promise("F11")
def test_a_rank_of_mpirun_killed_for_memory_is_the_one_that_is_named(containers: Make) -> None:
    """`train` is PID 1 of both hosts; mpirun has no way to the other but through it."""
    chosen("5.0.11")
    mpi = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"}
    job = containers(ALL_MEET, hyperparameters=mpi)
    job.start(options=["--memory=1g", "--memory-swap=1g"])
    results = job.wait(60)
    assert {r.out for r in results.values()} == {"sum 2\n"}, job.story("they did not meet")
    assert job.state("algo-2")["OOMKilled"]
    for result in results.values():
        assert result.code == 137, result.err
        assert result.first_line.removesuffix(" and 1 more") == (
            "UserScriptError: killed by the kernel: container memory limit of 1024 MiB reached "
            "(algo-2 rank 1, exit code 137)"
        )


# processes

MOST_PROCESSES, AT_ONCE = 12, 3
LIMITED_S = 60.0  # of a job that cannot start all its processes


def run_limited(containers: Make, limits: range) -> dict[int, int]:
    """Runs a job below each limit, all at once; the exit codes of those that the engine started."""
    jobs = {limit: containers("print('ran')", hosts=1) for limit in limits}
    for limit, job in jobs.items():
        job.expect(limit_s=LIMITED_S)
        job.start(options=[f"--pids-limit={limit}"])
    codes = {}
    for limit, job in jobs.items():
        result = job.wait(LIMITED_S)["algo-1"]
        if not job.has_run("algo-1"):
            job.processes.clear()  # nothing to look at
            continue
        codes[limit] = result.code
        if result.code == 0:
            assert result.out == "ran\n"
        else:
            assert (result.code, result.out) == (106, ""), result.err
            assert "the limit of processes is reached" in result.first_line
    return codes


@pytest.mark.promise("F16")
def test_no_limit_of_processes_hangs_a_job_and_each_is_named(containers: Make) -> None:
    codes: dict[int, int] = {}
    for first in range(1, MOST_PROCESSES + 1, AT_ONCE):
        codes |= run_limited(containers, range(first, first + AT_ONCE))
    assert codes[MOST_PROCESSES] == 0
    if set(codes.values()) == {0}:
        pytest.skip(f"the engine itself can start nothing with fewer than {min(codes)} processes")


USES_ALL_UP = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    while True:
        subprocess.Popen(["sleep", "600"])
except BlockingIOError:
    print("none left", flush=True)
    if os.environ["THEN"] == "fail":
        raise
time.sleep(600)
"""


@pytest.mark.promise("F16")
def test_a_script_that_used_up_all_processes_fails_as_a_script_does(containers: Make) -> None:
    """To tell the end, and to end them all, takes no process or thread."""
    job = containers(USES_ALL_UP, hosts=1, environ={"THEN": "fail"})
    job.start(options=["--pids-limit=30"])
    result = job.wait(20)["algo-1"]
    assert (result.code, result.out) == (1, "none left\n")
    assert result.first_line.startswith("UserScriptError: BlockingIOError: [Errno 11] Resource")


@pytest.mark.promise("F16")
def test_a_job_that_used_up_all_processes_can_still_be_stopped(containers: Make) -> None:
    job = containers(USES_ALL_UP, environ={"THEN": "wait"})
    job.start(options=["--pids-limit=30"])
    for name in job.names:
        job.wait_for(name, "none left")
    job.signal("algo-1")
    for result in job.wait(10).values():
        assert (result.code, result.failure) == (143, ""), result.err


# files, rights


@pytest.mark.promise("F62")
def test_256_open_files_are_enough_for_a_job_of_two_containers(containers: Make) -> None:
    job = containers("import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))\n")
    job.start(options=["--ulimit=nofile=256:256"])
    for result in job.wait(20).values():
        assert (result.code, result.out) == (0, "(256, 256)\n"), result.err


USER = 1234
CONFINED = (
    f"--user={USER}:{USER}",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--read-only",
    "--tmpfs=/tmp",
)
LOOKS = """\
import os, re
status = open("/proc/self/status").read()
print(os.getuid(), *re.findall(r"(?:CapEff|CapBnd|NoNewPrivs):\\t(\\w+)", status))
for folder in ("/", "/root", "/var/tmp", "/usr", "/opt"):
    try:
        open(os.path.join(folder, "probe"), "w")
    except OSError as error:
        print(error.strerror)
for name in ("SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR"):
    open(os.path.join(os.environ[name], "written"), "w").close()
open("/tmp/written", "w").close()
"""


@pytest.mark.promise("F63")
def test_a_user_without_any_right_on_a_read_only_root_runs_a_job(containers: Make) -> None:
    """What else was written, in the containers or in /opt/ml, is looked at after every test."""
    job = containers(LOOKS)
    for path in [job.folder, *job.folder.rglob("*")]:
        os.chown(path, USER, USER)
    job.start(options=CONFINED)
    results = job.wait(20)
    for name, result in results.items():
        who, *probes = result.out.splitlines()
        assert who == f"{USER} {'0' * 16} {'0' * 16} 1", result.err  # the fault: no right, and
        assert probes == ["Read-only file system"] * 5  # no place to write to
        assert (result.code, result.success, result.failure) == (0, True, ""), result.err
        assert (job.base(name) / "model" / "written").exists()
        assert (job.base(name) / "output" / "data" / "written").exists()
