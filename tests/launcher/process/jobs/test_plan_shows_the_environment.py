"""What `muster plan` shows of a rank's environment is what that rank sees, value by value."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.launcher.support.cluster import Cluster

Make = Callable[..., Cluster]
SEES = "import json, os\nprint(json.dumps({**os.environ, 'MY_API_TOKEN': '***'}), flush=True)\n"
ENVIRON = {
    "LC_ALL": "C.UTF-8",
    "MASTER_ADDR": "mine",
    "PYTHONPATH": "/mine",
    "MUSTER_START_S": "60",
}
TORCHRUN = {
    "sagemaker_torch_distributed_enabled": "true",
    "sagemaker_mpi_num_of_processes_per_host": "2",
    "sagemaker_distributed_dataparallel_enabled": "true",
}


def planned(job: Cluster, host: str) -> Any:
    """What `muster plan` says on that host."""
    argv = [sys.executable, "-m", "muster", "plan", "--json", "--base-dir", str(job.base(host))]
    answer = subprocess.run(argv, env=job.environ, capture_output=True, timeout=60, check=True)
    return json.loads(answer.stdout)


def known(seen: Mapping[str, str], made_at_start: list[str]) -> dict[str, str]:
    """What a rank sees, less what no plan can know."""
    names = {name for name in made_at_start if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in made_at_start if name.endswith("*"))
    return {
        name: value
        for name, value in seen.items()
        if name not in names and not name.startswith(prefixes)
    }


@pytest.mark.parametrize(
    "hyperparameters",
    [{"lr": "0.1"}, pytest.param(TORCHRUN, marks=pytest.mark.torch)],
    ids=["none", "torchrun"],
)
def test_the_plan_shows_what_a_rank_sees(cluster: Make, hyperparameters: dict[str, str]) -> None:
    job = cluster(SEES, hyperparameters=hyperparameters, environ=ENVIRON)
    plans = {name: planned(job, name) for name in job.names}
    results = job.run(limit_s=90)
    for name, plan in plans.items():
        assert results[name].code == 0, results[name].err
        (here,) = (host for host in plan["hosts"] if host["name"] == name)
        shown = {row["name"]: row["value"] for row in plan["environment"]}
        own = list(here["each_rank"].values()) or [{}] * len(here["ranks"])
        ranks = [json.loads(line) for line in results[name].out.splitlines()]
        assert len(ranks) == len(own)
        for seen in ranks:
            assert known(seen, plan["made_at_start"]) in [{**shown, **each} for each in own]
            assert "MUSTER_RUN_ID" in seen


def test_every_variable_names_its_origin(cluster: Make) -> None:
    job = cluster(SEES, environ=ENVIRON)
    rows = {row["name"]: row["source"] for row in planned(job, "algo-2")["environment"]}
    assert rows["LC_ALL"] == "user"
    assert rows["SM_HOSTS"] == "contract"
    assert rows["PYTHONPATH"] == "contract: the code folder first"
    assert rows["MASTER_ADDR"].startswith("muster: the leader's address")
    assert rows["GLOO_SOCKET_IFNAME"].startswith("machine: the interface of the job")
    assert all(rows.values())
    job.run()


def test_what_is_too_large_is_exported_and_named_as_made_at_the_start(cluster: Make) -> None:
    """As files, whose names no plan knows."""
    large = {f"text{number}": "x" * 60_000 for number in range(3)}
    plan = planned(cluster(SEES, hosts=1, hyperparameters=large), "algo-1")
    assert len(plan["exports"]["SM_HPS"]) > 180_000
    assert "SM_HPS_FILE" in plan["made_at_start"]
    shown = {row["name"]: row["value"] for row in plan["environment"]}
    assert shown["SM_HPS_FILE"] == "" and "SM_HPS" not in shown
