"""Ranks that each trained a model of their own are named, and no others."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.local.hosts import why_not_isolated
from muster.run.child.group_watch import EXCHANGED_NOTHING, connections, moved
from tests.launcher.support.cluster import Cluster
from tests.launcher.support.local.local_runs import Start

Make = Callable[..., Cluster]
BEGIN = """
import time
import torch
import torch.distributed as dist
def work(step=lambda: None):  # over several looks; as many steps on each rank
    for _ in range(90):
        step()
        time.sleep(0.1)
"""
TORCHRUN = {"sagemaker_torch_distributed_enabled": "true"}
MPI = {"sagemaker_mpi_enabled": "true"}
TWO = {"sagemaker_mpi_num_of_processes_per_host": "2"}
# as Hugging Face's libraries leave ranks on CPUs: a group that nothing goes over
BEGUN, ENDED = "dist.init_process_group('gloo')\n", "dist.destroy_process_group()\n"
GROUP_FOR_NOTHING = f"{BEGUN}work()\nimport os; os._exit(0)\n"  # gloo's threads abort some ends
TRAINS = f"{BEGUN}work(lambda: dist.all_reduce(torch.ones(4)))\n{ENDED}"


def said(cluster: Make, script: str, option: dict[str, str]) -> int:
    job = cluster(BEGIN + script, hosts=1, hyperparameters={**option, **TWO})
    result = job.run()["algo-1"]
    assert result.code == 0, result.err
    return result.err.count(EXCHANGED_NOTHING)


@pytest.mark.torch
def test_ranks_that_exchange_nothing_are_named_once(start: Start, tmp_path: Path) -> None:
    """In a network of their own: what others do on this machine between the last look and the end
    would leave it unsaid."""
    reason = why_not_isolated(str(tmp_path))
    if reason:
        pytest.skip(f"this machine allows no namespaces: {reason}")
    (tmp_path / "train.py").write_text(BEGIN + GROUP_FOR_NOTHING)
    options = ("--distribution", "torch_distributed", "--processes-per-host", "2")
    result = start(tmp_path, ("train.py", *options, "--isolation", "netns")).wait()
    assert result.code == 0, result.err
    assert result.err.count(EXCHANGED_NOTHING) == 1


@pytest.mark.torch
def test_ranks_that_train_together_are_not_named(cluster: Make) -> None:
    assert said(cluster, TRAINS, TORCHRUN) == 0


@pytest.mark.torch
@pytest.mark.dev
def test_ranks_that_may_talk_through_memory_are_not_named(cluster: Make) -> None:
    assert said(cluster, "from mpi4py import MPI\nwork()\n", MPI) == 0


def test_the_bytes_of_a_connection_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        with near, far:
            inode = os.fstat(near.fileno()).st_ino
            before = moved([os.getpid()])[inode]
            near.sendall(b"x" * 1000)
            assert far.recv(1000, socket.MSG_WAITALL)
            far.sendall(b"y" * 50)
            assert near.recv(50, socket.MSG_WAITALL)
            after = moved([os.getpid()])[inode]
            assert after - before == 1050
        assert inode not in dict(connections())
