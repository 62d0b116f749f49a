"""`torch_distributed` with the real torchrun and torch, on hosts of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from muster.run.observe.waits import waits_in
from tests.launcher.support.cluster import Cluster

pytestmark = pytest.mark.torch
Make = Callable[..., Cluster]
TORCHRUN = {"sagemaker_torch_distributed_enabled": "true"}
TWO_PER_HOST = {**TORCHRUN, "sagemaker_mpi_num_of_processes_per_host": "2"}
SLOW_ENOUGH = {"MUSTER_START_S": "60"}


@pytest.mark.promise("F31")
@pytest.mark.slow
def test_ranks_of_two_hosts_reduce_together_and_the_first_that_fails_is_named_and_no_victim(
    cluster: Make,
) -> None:
    """What a group of `muster` did before, in the same ranks, lies in the record of each host."""
    script = (
        "import os, torch, torch.distributed as dist, muster_collectives.torch\n"
        "dist.init_process_group('muster')\n"
        "dist.all_reduce(torch.ones(4))\n"
        "dist.destroy_process_group()\n"
        "dist.init_process_group('gloo')\n"
        "t = torch.tensor([float(dist.get_rank() + 1)])\n"
        "dist.all_reduce(t)\n"
        "print(dist.get_rank(), dist.get_world_size(), t.item(),\n"
        "      os.environ['LOCAL_RANK'], os.environ.get('MUSTER_JOB_SECRET'), flush=True)\n"
        "if dist.get_rank() == 1:\n    raise ValueError('bad batch')\n"
        "dist.all_reduce(t)\n"
    )
    job = cluster(script, hyperparameters=TORCHRUN, environ=SLOW_ENOUGH)
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")
    results = job.run(limit_s=90)
    assert [r.out for r in results.values()] == [f"{rank} 2 3.0 0 None\n" for rank in (0, 1)]
    assert len(ends := {(r.first_line, r.code) for r in results.values()}) == 1
    # gloo's threads sometimes abort a process that is on its way out
    assert ends <= {
        ("UserScriptError: ValueError: bad batch (algo-2 rank 1, exit code 1)", 1),
        ("UserScriptError: ValueError: bad batch [SIGABRT] (algo-2 rank 1, exit code 134)", 134),
    }
    for rank, name in enumerate(job.names):
        (file,) = (job.folder / "run" / name / "collectives").glob("collectives-*.json")
        summary = json.loads(file.read_text())
        assert summary["global_ranks"][summary["rank"]] == rank
        assert waits_in(str(file.parent), 0.0) == {rank: summary["wait_s"]}


@pytest.mark.promise("F12")
def test_a_launcher_that_dies_early_is_a_launch_error(cluster: Make) -> None:
    job = cluster("print('ran')", hosts=1, hyperparameters=TORCHRUN)
    tools = job.folder / "tools"
    tools.mkdir(parents=True)
    (tools / "torchrun").write_text("#!/bin/sh\necho broken torchrun >&2\nexit 3\n")
    (tools / "torchrun").chmod(0o755)
    job.environ["PATH"] = f"{tools}:{job.environ['PATH']}"
    result = job.run(limit_s=20)["algo-1"]
    assert result.code == 106
    assert result.first_line == (
        "LaunchError: the launcher torchrun exited with 3 before all ranks ran (on algo-1)"
    )
    assert "broken torchrun" in result.failure


@pytest.mark.slow
def test_a_stop_reaches_every_rank_and_gives_the_whole_grace(cluster: Make) -> None:
    script = (
        "import os, signal, sys, time\n"
        "def stop(*_):\n    time.sleep(1)\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    job = cluster(script, hyperparameters=TWO_PER_HOST, environ=SLOW_ENOUGH)
    job.start_until("ready\nready", limit_s=60)
    job.signal("algo-2")
    results = job.wait(15)
    assert {(r.code, r.failure) for r in results.values()} == {(143, "")}
    assert [r.out.count("saved") for r in results.values()] == [2, 2]
