"""What scripts see and say of their run, in real jobs of several ranks and hosts."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.sdk.metric_definitions import metric_definitions
from tests.launcher.support.cluster import Cluster

Make = Callable[..., Cluster]
TWO_PER_HOST = {
    "sagemaker_torch_distributed_enabled": "true",
    "sagemaker_mpi_num_of_processes_per_host": "2",
}
TRAINS = """
import muster
for step in range(1, 4):
    muster.metrics(step=step, samples=step * 8, loss=1 / step, accuracy=float("nan"))
"""
FACTS = """
import json, muster
print(json.dumps(muster.runtime.facts()._asdict()), flush=True)
"""


def request(job: Cluster, definitions: list[dict[str, str]], **more: Any) -> None:
    """The platform's own file, on every host."""
    for name in job.names:
        path = job.base(name) / "input" / "config" / "trainingjobconfig.json"
        algorithm = {"MetricDefinitions": definitions}
        path.write_text(json.dumps({"AlgorithmSpecification": algorithm, **more}))


def kept(job: Cluster, host: str) -> dict[str, list[Any]]:
    folder = job.base(host) / "output" / "data" / "muster" / host / "metrics"
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.iterdir())
    }


@pytest.mark.torch
@pytest.mark.slow
def test_one_rank_of_the_world_prints_and_each_keeps_its_entries(cluster: Make) -> None:
    names = ["loss", "accuracy", "step"]
    job = cluster(TRAINS, hyperparameters=TWO_PER_HOST, environ={"MUSTER_START_S": "60"})
    request(job, metric_definitions(names))
    results = job.run(limit_s=90)
    first, second = results["algo-1"].out, results["algo-2"].out
    assert first.splitlines() == [
        f"muster metrics step={n} samples={n * 8} loss={1 / n!r} accuracy=nan" for n in (1, 2, 3)
    ]
    assert second == ""
    for one in metric_definitions(names):
        assert len(re.findall(one["Regex"], first)) == 3
    assert sorted(kept(job, "algo-1")) == ["rank-0.jsonl", "rank-1.jsonl"]
    assert sorted(kept(job, "algo-2")) == ["rank-2.jsonl", "rank-3.jsonl"]
    last = kept(job, "algo-2")["rank-3.jsonl"][-1]
    assert (last["schema"], last["step"], last["samples"]) == (1, 3, 24)
    assert last["values"] == {"loss": 1 / 3, "accuracy": "NaN"}
    assert "metric definition" not in results["algo-1"].err + results["algo-2"].err


@pytest.mark.promise("B56")
def test_definitions_that_never_matched_are_named_at_the_end(cluster: Make) -> None:
    script = "print('step 3: loss=0.5 state=good')\nprint('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!')"
    job = cluster(script, hosts=1)
    found = {
        "loss": "loss=([0-9.]+)", "acc": "acc=([0-9.]+)", "state": "state=([a-z]+)",
        "bare": "loss=", "broken": "loss=(", "deep": "(" * 5000, "slow": "(a+)+$",
    }  # fmt: skip
    request(job, [{"Name": name, "Regex": regex} for name, regex in found.items()])
    began_s = time.monotonic()
    result = job.run(limit_s=40)["algo-1"]
    assert time.monotonic() - began_s < 20
    assert result.code == 0
    said = [line for line in result.err.splitlines() if "metric definition" in line]
    words = [line.partition("metric definition ")[2].partition(" (docs/")[0] for line in said]
    assert words == [
        "'acc' matched nothing that ranks of algo-1 wrote",
        "'state', 'bare' captured no number on algo-1: put one in its first group, such as "
        "([0-9.]+)",
        "'broken', 'deep' is no regular expression of Python's and was not tried",
        "'slow' was not tried to its end within 5 s: its expression may be slow",
    ]


def test_a_metric_that_several_hosts_print_is_named(cluster: Make) -> None:
    job = cluster("print('loss=0.5')", hosts=2)
    request(job, [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    results = job.run(limit_s=40)
    assert "metric definitions match lines of algo-2 too: 'loss'" in results["algo-2"].err
    assert "metric definition" not in results["algo-1"].err


def test_an_anchored_definition_is_warned_of_where_lines_have_a_prefix(cluster: Make) -> None:
    job = cluster("print('loss=0.5')", hosts=1, environ={"MUSTER_LOG_PREFIX": "1"})
    request(job, [{"Name": "loss", "Regex": "^loss=([0-9.]+)"}])
    result = job.run(limit_s=40)["algo-1"]
    assert "metric definition 'loss' begins with ^" in result.err
    assert "'loss' matched nothing" in result.err


def test_the_facts_of_a_job_are_those_of_its_request(cluster: Make) -> None:
    job = cluster(FACTS, hosts=2, environ={"RUN_FACTS": "/of/another/job"})
    request(
        job, [], StoppingCondition={"MaxRuntimeInSeconds": 3600}, EnableManagedSpotTraining=True
    )
    for name in job.names:
        path = job.base(name) / "input" / "config" / "init-config.json"
        path.write_text(json.dumps({"jobRunInfo": {"jobRunNumber": 3}}))
    began = time.time()
    results = job.run(limit_s=40)
    for index, (name, result) in enumerate(results.items()):
        found = json.loads(result.out)
        assert abs(found.pop("deadline") - began - 3600) < 60
        assert found == {
            "job": "a-job", "host": name, "hosts": ["algo-1", "algo-2"], "attempt": 3,
            "spot": True, "world_size": 2, "rank": index, "local_rank": 0,
        }  # fmt: skip


def test_the_file_of_facts_holds_no_secret_and_goes_with_the_job(cluster: Make) -> None:
    script = "import os; p = os.environ['RUN_FACTS']; print(p); print(open(p).read())"
    job = cluster(script, hosts=1, hyperparameters={"api_token": "canary-0123456789"})
    path, text = job.run()["algo-1"].out.splitlines()
    assert "canary" not in text
    assert job.canary not in text
    assert not os.path.exists(path)


def test_facts_that_cannot_be_written_are_left_out(cluster: Make, tmp_path: Path) -> None:
    """Without a record nothing is kept, and metrics are printed as ever."""
    job = cluster(TRAINS, hosts=1, environ={"MUSTER_RECORD": "off"})
    result = job.run()["algo-1"]
    assert len(result.out.splitlines()) == 3
    assert not (job.base("algo-1") / "output" / "data" / "muster").exists()
