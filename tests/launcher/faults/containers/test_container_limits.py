"""What the kernel grants a container: memory, processes, rights (F11, F16, F63)."""

from __future__ import annotations

import os

import pytest

from tests.launcher.support.containers import Make

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


# processes

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


# rights

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
