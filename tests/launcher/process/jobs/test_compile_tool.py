"""A launcher that works on when its ranks have ended: `neuron_parallel_compile` around torchrun.

Neuron's own tools are not to be had without the hardware: stand-ins take their places, the
torchrun between them is the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster

pytestmark = pytest.mark.torch
Make = Callable[..., Cluster]
REQUEST = {"sagemaker_torch_distributed_enabled": "true"}
CORES = """#!/bin/sh
echo '[{"neuron_device": 0, "nc_count": 1}]'
"""
COMPILER = """#!/bin/sh
"$@" || exit $?
echo compiling after the trial
sleep {seconds}
echo compiled > {marker}
exit {code}
"""


def on_neuron(cluster: Make, script: str, seconds: float, code: int) -> tuple[Cluster, Path]:
    """A job on one Neuron core whose graphs are compiled for so long; the mark of that."""
    environ = {"RUN_NEURON_PARALLEL_COMPILE": "1", "MUSTER_START_S": "60"}
    job = cluster(script, hosts=1, hyperparameters=REQUEST, environ=environ)
    marker = job.folder / "compiled"
    compiler = COMPILER.format(seconds=seconds, marker=marker, code=code)
    tools = {"neuron-ls": CORES, "neuron_parallel_compile": compiler}
    folder = job.folder / "tools"
    folder.mkdir(parents=True)
    for name, text in tools.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    job.environ["PATH"] = f"{folder}:{job.environ['PATH']}"
    return job, marker


@pytest.mark.slow
def test_graphs_are_compiled_to_the_end_after_the_last_rank(cluster: Make) -> None:
    """Longer than the two seconds after which other launchers are ended."""
    job, marker = on_neuron(cluster, "print('trial')", seconds=3.5, code=0)
    result = job.run(limit_s=60)["algo-1"]
    assert (result.code, result.success) == (0, True), result.err
    assert result.out.splitlines() == ["trial", "compiling after the trial"]
    assert marker.exists()


@pytest.mark.slow
def test_a_compiler_that_fails_fails_the_job(cluster: Make) -> None:
    job, marker = on_neuron(cluster, "print('trial')", seconds=0, code=4)
    result = job.run(limit_s=60)["algo-1"]
    assert marker.exists()  # the fault came after the ranks
    assert result.code == 4
    assert result.first_line.startswith(
        "UserScriptError: the launcher neuron_parallel_compile exited with 4 after its ranks"
    )


@pytest.mark.slow
def test_a_stop_ends_a_compiler(cluster: Make) -> None:
    job, marker = on_neuron(cluster, "print('trial')", seconds=30, code=0)
    job.start_until("compiling after the trial", limit_s=60)
    job.signal("algo-1")
    assert job.wait(20)["algo-1"].code == 143
    assert not marker.exists()


def test_a_rank_that_fails_is_named_and_nothing_is_compiled(cluster: Make) -> None:
    job, marker = on_neuron(cluster, "import sys\nsys.exit(7)", seconds=0, code=0)
    result = job.run(limit_s=60)["algo-1"]
    assert result.code == 7
    assert "algo-1 rank 0" in result.first_line
    assert not marker.exists()
