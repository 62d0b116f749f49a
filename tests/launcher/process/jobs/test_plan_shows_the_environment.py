"""What `muster plan` shows of a rank's environment is what that rank sees, value by value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.cluster import Cluster
from tests.launcher.support.local.local_runs import Start, facts_of, start

__all__ = ["start"]

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
    [{"lr": "0.1"}, pytest.param(TORCHRUN, marks=(pytest.mark.torch, pytest.mark.slow))],
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


@pytest.mark.parametrize(
    ("isolation", "of_each_run"),
    [("process", ("TRAINING_JOB_NAME", "MASTER_ADDR")), ("netns", ("TRAINING_JOB_NAME",))],
)
def test_the_plan_of_a_script_shows_what_its_rank_sees(
    start: Start, tmp_path: Path, isolation: str, of_each_run: tuple[str, ...]
) -> None:
    """`of_each_run`: variables whose values no plan can know, wherever they stand."""
    if isolation == "netns" and (reason := why_not_isolated(str(tmp_path))):
        pytest.skip(f"this machine allows no namespaces: {reason}")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text(SEES.replace("print(", "print('facts', "))
    ports = [f"MUSTER_{name}_PORT={port}" for name, port in (("CONTROL", 7777), ("STORE", 7778))]
    options = ["--isolation", isolation, "--hosts", "2", *(f"--env={port}" for port in ports)]
    run = start(tmp_path, ("src/train.py", *options))
    result = run.wait()
    assert result.code == 0, result.err
    argv = [sys.executable, "-m", "muster", "plan", "--json", "src/train.py", *options]
    argv += ["--output", str(run.folder)]
    environ = {**os.environ, **run.environ}
    answer = subprocess.run(
        argv, cwd=tmp_path, env=environ, capture_output=True, timeout=60, check=True
    )
    plan = json.loads(answer.stdout)
    shown = {row["name"]: row["value"] for row in plan["environment"]}
    seen = facts_of(result.out)["algo-1"]
    text = json.dumps(known(seen, plan["made_at_start"]))
    for name in of_each_run:
        text = text.replace(seen[name], shown[name])
    assert json.loads(text) == shown


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
