"""Faults of stopping, failing, ports and limits."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.support.servers import Server
from tests.support.waiting import wait_until, within

Make = Callable[..., Cluster]
TRAIN = [sys.executable, "-m", "muster", "train"]
STOPS_IN_S = 5
SILENCE_S = 60.0


def stopped_within_the_limit(job: Cluster, host: str, number: int = signal.SIGTERM) -> None:
    """Stops the host; every host that was started says so, in time."""
    began = time.monotonic()
    job.signal(host, number)
    results = job.wait(STOPS_IN_S + 1)
    assert time.monotonic() - began < within(STOPS_IN_S)
    name = signal.Signals(number).name
    for result in results.values():
        assert (result.code, result.failure, result.success) == (143, "", False), result.err
    assert f"STOPPED by {name} on {host}, exit code 143" in results["algo-1"].err


@pytest.mark.promise("F06")
def test_a_leader_that_still_waits_for_hosts_stops_at_once(cluster: Make) -> None:
    job = cluster("print('ran')")
    job.start("algo-1")
    # the leader says nothing while nobody is late: its open port is what shows that it waits
    address = (job.addresses["algo-1"], job.ports[0])
    wait_until(lambda: answers(address), 20, "the leader never listened")
    stopped_within_the_limit(job, "algo-1")
    assert "ran" not in job.text("algo-1")


@pytest.mark.promise("F06")
def test_a_follower_that_still_looks_for_its_leader_stops_at_once(cluster: Make) -> None:
    job = cluster("print('ran')")
    job.start("algo-2")
    job.wait_for("algo-2", "looking for the leader", "err")
    job.signal("algo-2")
    result = job.wait(STOPS_IN_S)["algo-2"]
    assert (result.code, result.failure, result.out) == (143, "", "")


STAND_IN_PIP = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen(['setsid', 'sleep', '600'])\n"
    "print('installing', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.mark.promise("F06")
def test_an_installer_that_ignores_the_stop_is_gone_with_its_children(cluster: Make) -> None:
    job = cluster("print('ran')")
    tools = job.folder / "tools" / "pip"
    tools.mkdir(parents=True)
    (tools / "__init__.py").touch()
    (tools / "__main__.py").write_text(STAND_IN_PIP)
    for name in job.names:
        (job.base(name) / "code" / "requirements.txt").write_text("demo\n")
    job.start(environ={"PYTHONPATH": str(tools.parent)})
    for name in job.names:
        job.wait_for(name, "installing")
    stopped_within_the_limit(job, "algo-2")
    assert not job.marked_processes()
    assert "ran" not in job.text("algo-1") + job.text("algo-2")


@pytest.mark.promise("F06")
def test_a_pip_that_waits_for_its_index_is_ended(cluster: Make, tmp_path: Path) -> None:
    job = cluster("print('ran')", hosts=1)
    (job.base("algo-1") / "code" / "requirements.txt").write_text("demo\n")
    with Server(SILENCE_S) as server:
        index = {"PIP_INDEX_URL": f"{server.url}/simple", "PIP_CONFIG_FILE": os.devnull}
        target = {"MUSTER_INSTALL_TARGET": str(tmp_path / "site")}
        job.start(environ={**index, **target})
        wait_until(server.asked.is_set, 30, lambda: job.text("algo-1", "err"))
        stopped_within_the_limit(job, "algo-1")
    assert not job.marked_processes()


@pytest.mark.promise("F06")
def test_a_download_that_never_answers_is_left(cluster: Make) -> None:
    job = cluster("", hosts=1, hyperparameters={"sagemaker_submit_directory": "s3://b/c.tar.gz"})
    (job.base("algo-1") / "code" / "train.py").unlink()
    with Server(SILENCE_S) as server:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        job.start(environ={**keys, **server.environ})
        wait_until(server.asked.is_set, 30, lambda: job.text("algo-1", "err"))
        stopped_within_the_limit(job, "algo-1")


WAITS = (
    "import signal, sys, time\n"
    "def stop(number, _):\n"
    "    print('told', signal.Signals(number).name, flush=True)\n"
    "    sys.exit(0)\n"
    "for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):\n"
    "    signal.signal(one, stop)\n"
    "print('ready', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.mark.promise("F07")
@pytest.mark.parametrize(
    ("host", "name"),
    [("algo-1", "SIGINT"), ("algo-2", "SIGINT"), ("algo-2", "SIGHUP"), ("algo-2", "SIGQUIT")],
)
def test_a_signal_from_the_terminal_of_any_host_reaches_each_script_only_once(
    cluster: Make, host: str, name: str
) -> None:
    """A terminal sends it to its whole process group; scripts are in others."""
    job = cluster(WAITS)
    job.start_until("ready")
    os.killpg(job.processes[host].pid, signal.Signals[name])
    results = job.wait(STOPS_IN_S)
    for result in results.values():
        assert (result.code, result.out) == (143, "ready\ntold SIGTERM\n")
    assert f"STOPPED by {name} on {host}, exit code 143" in results["algo-1"].err


@pytest.mark.promise("F26")
@pytest.mark.parametrize("which", ["control", "store"])
def test_a_port_in_use_is_told_with_its_holder(cluster: Make, which: str) -> None:
    job = cluster("print('ran')")
    port = job.ports[which == "store"]
    if which == "control":  # the hosts never meet
        job.environ["MUSTER_JOIN_S"] = "2"
        job.expect(apart=frozenset({"algo-2"}))
    with socket.socket() as holder:
        holder.bind((job.addresses["algo-1"], port))
        holder.listen(8)
        results = job.run(limit_s=15)
    assert results["algo-1"].code == 102
    held = f"in use by PID {os.getpid()} ("
    assert results["algo-1"].first_line.startswith(f"ClusterError: port {port} ({which}) is {held}")
    assert results["algo-2"].code == 102
    assert "ran" not in results["algo-1"].out + results["algo-2"].out


@pytest.mark.promise("F62")
@pytest.mark.torch
def test_256_open_files_are_enough_for_eight_ranks(cluster: Make) -> None:
    script = "import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    eight = {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "8",
    }
    job = cluster(script, 1, hyperparameters=eight, environ={"MUSTER_START_S": "60"})
    job.start(command=["prlimit", "--nofile=256:256", *TRAIN])
    result = job.wait(60)["algo-1"]
    assert result.code == 0, result.err
    assert result.out == "(256, 256)\n" * 8


@pytest.mark.promise("F62")
@pytest.mark.parametrize("limit", [8, 12, 19])
def test_too_few_open_files_are_told_before_anything_runs(cluster: Make, limit: int) -> None:
    job = cluster("print('ran')", 1)
    job.start(command=["prlimit", f"--nofile={limit}:{limit}", *TRAIN])
    result = job.wait(10)["algo-1"]
    assert (result.code, result.out) == (100, "")
    told = f"the limit of open files is {limit}; any job needs at least 20"
    assert told in result.first_line
    assert "--ulimit nofile" in result.failure


@pytest.mark.promise("F62")
def test_a_limit_that_is_too_low_for_the_ranks_is_told_before_they_start(cluster: Make) -> None:
    sixteen = {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "16",
    }
    job = cluster("print('ran')", 1, hyperparameters=sixteen)
    tools = job.folder / "tools"
    tools.mkdir()
    (tools / "torchrun").write_text("#!/bin/sh\necho started >&2\nexit 3\n")
    (tools / "torchrun").chmod(0o755)
    job.environ["PATH"] = f"{tools}:{job.environ['PATH']}"
    job.start(command=["prlimit", "--nofile=64:64", *TRAIN])
    result = job.wait(20)["algo-1"]
    assert (result.code, result.out) == (100, ""), result.err
    assert "the limit of open files is 64; 16 rank(s) on this host need 1" in result.first_line
    assert "started" not in result.err


def answers(address: tuple[str, int]) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(address) == 0
