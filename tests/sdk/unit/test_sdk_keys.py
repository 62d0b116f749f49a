"""`muster.sdk.hyperparameters`: what every SDK hands on, and `train` understands."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.contract.request.read import read_job
from muster.sdk import RequestError, hyperparameters
from muster.types.distribution import MODEL_PARALLEL, Distribution, Mpi, ParameterServer, Torchrun
from tests.support.mltree import PROGRAM, TWO_GROUPS, write_tree

ON = {"enabled": True}
OPTIONS = "-x A='b c' --bind-to none"
MODEL = {"smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": 2}}}}
# a distribution, and what it must be in the container
CASES: tuple[tuple[Any, dict[str, Any], Distribution], ...] = (
    ("torch_distributed", {"processes_per_host": 2}, Torchrun(processes_per_host=2)),
    ({"mpi": {**ON, "processes_per_host": 2, "custom_mpi_options": OPTIONS}}, {},
     Mpi("mpi", 2, custom_options=OPTIONS)),
    ("mpi", {"custom_mpi_options": OPTIONS}, Mpi("mpi", custom_options=OPTIONS)),
    ("mpi", {}, Mpi()),
    ("pytorchddp", {"custom_mpi_options": OPTIONS},
     Mpi("smdistributed.dataparallel", custom_options=OPTIONS)),
    ("parameter_server", {}, ParameterServer()),
    ({**MODEL, "torch_distributed": ON}, {}, Torchrun(MODEL_PARALLEL)),
)  # fmt: skip


def generic(values: Mapping[str, object]) -> dict[str, str]:
    """What SDK v2's generic Estimator sends of an image without an entry point."""
    return {name: str(value) for name, value in values.items()}


def with_entry_point(values: Mapping[str, object]) -> dict[str, str]:
    """What it sends when it has one."""
    return {name: json.dumps(value) for name, value in values.items()}


def v3(values: Mapping[str, object]) -> dict[str, str]:
    """What ModelTrainer sends."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}


@pytest.mark.parametrize("client", [generic, with_entry_point, v3])
@pytest.mark.parametrize(("distribution", "options", "expected"), CASES)
def test_every_client_hands_the_distribution_on_unharmed(
    tmp_path: Path,
    client: Callable[[Mapping[str, object]], dict[str, str]],
    distribution: Any,
    options: dict[str, Any],
    expected: Distribution,
) -> None:
    sent = client({**PROGRAM, **hyperparameters(distribution, **options), "lr": "0.1"})
    job = read_job(write_tree(tmp_path, sent))
    assert job.distribution == expected
    assert job.warnings == ()
    assert job.arguments[:2] == ("--lr", "0.1")


@pytest.mark.parametrize("client", [generic, with_entry_point, v3])
def test_instance_groups_and_model_parallel_parameters_arrive_as_what_they_are(
    tmp_path: Path, client: Callable[[Mapping[str, object]], dict[str, str]]
) -> None:
    asked = {**MODEL, "torch_distributed": ON, "instance_groups": ["gpu"]}
    sent = client({**PROGRAM, **hyperparameters(asked)})
    job = read_job(write_tree(tmp_path, sent, TWO_GROUPS))
    assert job.cluster.distribution == (1, 2)
    assert job.documents.hyperparameters == {"mp_parameters": {"partitions": 2}}


def test_an_undistributed_job_gets_no_key() -> None:
    assert hyperparameters("none") == {}


@pytest.mark.promise("B24")
def test_the_text_of_a_refusal_is_all_that_is_wrong_with_its_fixes() -> None:
    with pytest.raises(RequestError) as caught:
        hyperparameters({"mpi": {"enbled": True, "procs_per_host": 2}})
    lines = str(caught.value).splitlines()
    assert lines[0] == "mpi: unknown key 'enbled', did you mean 'enabled'?"
    assert lines[1] == "  Fix: known: enabled, processes_per_host, custom_mpi_options"
    assert "did you mean 'processes_per_host'?" in lines[2]
    assert lines[-1] == '  Fix: write {"enabled": True}'


@pytest.mark.parametrize(
    ("distribution", "options", "text"),
    [
        ("torch_distributed", {"custom_mpi_options": "-x A=1"}, "torch_distributed does not run m"),
        ("none", {"custom_mpi_options": ""}, "no distribution does not run mpirun"),
        (
            "mpi",
            {"custom_mpi_options": ["-x"]},
            "custom_mpi_options: expected a string, got ['-x']",
        ),
        ("none", {"processes_per_host": 2}, "processes_per_host: no distribution is enabled"),
        (["mpi"], {}, "distribution: expected a name or a dictionary, got ['mpi']"),
    ],
)
def test_an_option_that_nothing_would_come_of_is_refused(
    distribution: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(RequestError) as caught:
        hyperparameters(distribution, **options)
    assert text in str(caught.value)
