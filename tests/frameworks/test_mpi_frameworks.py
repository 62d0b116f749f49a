"""The `mpi` option and its relatives with real frameworks, under both versions of Open MPI."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.support.local.local_runs import LocalRun
from tests.support.effort import effort
from tests.support.frameworks import JOB_S, SHARED, Start, ended_well, finals
from tests.support.mpi import chosen

# the first test may make an environment
pytestmark = [pytest.mark.dev, pytest.mark.timeout(900)]
OLD, NEW = "4.1.4", "5.0.11"
# test_mpi_hosts.py has each number of hosts under each Open MPI; what starts slowly runs under the
# newer one only, but in make test-long
TWO = pytest.mark.parametrize(("hosts", "open_mpi"), [(1, OLD), (2, NEW)])
SLOW = pytest.mark.parametrize(
    ("hosts", "open_mpi"),
    [(2, NEW), *([pytest.param(1, OLD, marks=pytest.mark.effort)] if effort() > 1 else [])],
)
RANKS = 2  # on each host; what imports a framework for seconds has as many on all hosts together
ALL_REDUCE = """\
import os, torch
from torch import distributed as dist
dist.init_process_group("gloo")
values = torch.tensor([float(dist.get_rank()), 1.0])
dist.all_reduce(values)
print(f"final rank={dist.get_rank()} sum={values[0]:.0f} count={values[1]:.0f}", flush=True)
dist.destroy_process_group()
"""
# How a request may ask for DDP: --distribution, options for a key of the SDK before 2.232, and the
# backend that the example takes for it. The SDK of today sends the same for the first two
# (test_sdk_distribution.py has both), so that the first is test-long's.
DATA_PARALLEL: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "pytorchddp": (json.dumps({"pytorchddp": {"enabled": True}}), (), "smddp"),
    "smdistributed": (
        json.dumps({"smdistributed": {"dataparallel": {"enabled": True}}}), (), "smddp",
    ),
    "old key": ("none", ("--hyperparameter", "sagemaker_pytorch_ddp_enabled=true"), "gloo"),
}  # fmt: skip
COUNTERS = "output/data/collectives"  # below /opt/ml: what each rank's group did


def start_mpi(
    start: Start, python: Path, script: str | Path, hosts: int, open_mpi: str, per_host: int
) -> LocalRun:
    """A job of the `mpi` option under that Open MPI."""
    environ = chosen(open_mpi).environ
    for_scripts = {name: value for name, value in environ.items() if name == "MPI4PY_LIBMPI"}
    pairs = {**for_scripts, **SHARED}.items()
    given = [word for name, value in pairs for word in ("--env", f"{name}={value}")]
    return start(
        python, script, "mpi", hosts, "--processes-per-host", str(per_host), "--verbose", *given,
        environ=environ,
    )  # fmt: skip


def check(run: LocalRun, ranks: int, open_mpi: str) -> None:
    """It trained on all ranks, under the version that was asked for."""
    result = ended_well(run)
    (final,) = finals(result.out).values()
    assert final["ranks"] == str(ranks)
    assert float(final["accuracy"]) > 0.9
    assert f"mpirun of Open MPI {open_mpi}" in result.err


@TWO
def test_numpy_and_mpi4py_train(start: Start, mxnet: Path, hosts: int, open_mpi: str) -> None:
    check(start_mpi(start, mxnet, "mpi", hosts, open_mpi, RANKS), hosts * RANKS, open_mpi)


@SLOW
def test_tensorflow_trains(start: Start, tensorflow: Path, hosts: int, open_mpi: str) -> None:
    run = start_mpi(start, tensorflow, "mpi_tensorflow", hosts, open_mpi, RANKS // hosts)
    check(run, RANKS, open_mpi)


@SLOW
def test_mxnet_trains(start: Start, mxnet: Path, hosts: int, open_mpi: str) -> None:
    run = start_mpi(start, mxnet, "mpi_mxnet", hosts, open_mpi, RANKS // hosts)
    check(run, RANKS, open_mpi)


@pytest.mark.torch
@TWO
def test_pytorch_finds_its_process_group_in_the_environment(
    start: Start, tmp_path: Path, hosts: int, open_mpi: str
) -> None:
    script = tmp_path / "src" / "reduce.py"
    script.parent.mkdir()
    script.write_text(ALL_REDUCE)
    run = start_mpi(start, Path(sys.executable), script, hosts, open_mpi, RANKS // hosts)
    said = finals(ended_well(run).out)
    assert said == {
        rank: {"rank": str(rank), "sum": "1", "count": str(RANKS)} for rank in range(RANKS)
    }


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "hosts"),
    [
        *([pytest.param("pytorchddp", 1, marks=pytest.mark.effort)] if effort() > 1 else []),
        ("smdistributed", 2),
        ("old key", 1),
    ],
)
def test_the_data_parallel_options_train_with_ddp(start: Start, how: str, hosts: int) -> None:
    """The script is the one of `make demo`, which fails when ranks do not agree."""
    distribution, options, backend = DATA_PARALLEL[how]
    run = start(
        Path(sys.executable), "digits", distribution, hosts,
        "--processes-per-host", str(RANKS // hosts), *options,
        "--env", f"COLLECTIVES_SUMMARY_DIR=/opt/ml/{COUNTERS}", epochs=8,
    )  # fmt: skip
    result = ended_well(run)
    assert f"ranks={RANKS} backend={backend}" in result.out
    accuracies = [float(found) for found in re.findall(r"accuracy=([\d.]+)", result.out)]
    assert len(accuracies) == 8 and accuracies[-1] > 0.9
    metrics = written(run, hosts, "output/data/metrics-rank*.json")
    assert sorted(one["rank"] for one in metrics) == list(range(RANKS))
    assert {one["world_size"] for one in metrics} == {RANKS}
    assert len({one["accuracy"] for one in metrics}) == 1
    assert {one["backend"] for one in metrics} == {backend}
    groups = written(run, hosts, f"{COUNTERS}/*.json")
    assert sorted(one["rank"] for one in groups) == (
        list(range(RANKS)) if backend == "smddp" else []
    )
    for one in groups:  # the gradients went through our core, and nothing through gloo
        assert one["verbs"]["all_reduce"]["calls"] > 100, one
        assert one["transport"] == "native" and not one["why"] and one["fallback"] == {}, one
        assert len(set(one["nodes"])) == hosts, one


@pytest.mark.torch
def test_data_parallel_trains_where_nothing_was_compiled_and_says_what_it_uses(
    start: Start,
) -> None:
    run = start(
        Path(sys.executable), "digits", "smdistributed.dataparallel", 1,
        "--processes-per-host", str(RANKS), "--env", "COLLECTIVES_CORE=/no/such/core.so", epochs=2,
    )  # fmt: skip
    result = ended_well(run)
    said = result.out + result.err
    assert f"ranks={RANKS} backend=smddp" in result.out
    assert said.count("no compiled core at /no/such/core.so") == 1, said[-5000:]
    assert said.count("CPU tensors go to gloo") == 1


def written(run: LocalRun, hosts: int, pattern: str) -> list[dict[str, Any]]:
    """The JSON files of all hosts that match, below each one's /opt/ml."""
    return [
        json.loads(path.read_text())
        for place in range(hosts)
        for path in run.base(f"algo-{place + 1}").glob(pattern)
    ]


def test_an_example_that_did_not_learn_fails(start: Start, mxnet: Path) -> None:
    run = start(mxnet, "mpi", "mpi", 1, "--processes-per-host", str(RANKS), steps=1)
    result = run.wait(JOB_S)
    assert result.code == 1, result.err[-5000:]
    assert "is below 0.9: it did not learn" in result.err
