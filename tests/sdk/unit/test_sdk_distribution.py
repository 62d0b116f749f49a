"""A `distribution` as hyperparameters: what SDK v2 sends, and no silence where it is silent."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.contract.request.read import read_job
from muster.sdk.distribution import to_hyperparameters
from muster.types.distribution import MODEL_PARALLEL, Mpi, ParameterServer, Single, Torchrun
from muster.types.errors import ConfigError
from tests.support.mltree import PROGRAM, write_tree

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sdk_distributions.json").read_text())
# The SDK sends these, and the job then runs another way than it was asked to.
REFUSED = {"mp_alone", "torch_mpi", "ps_mpi"}
ON = {"enabled": True}


def refused(distribution: Any, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        to_hyperparameters(distribution, **options)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_every_form_gives_what_the_sdk_sends(case: dict[str, Any]) -> None:
    if case["name"] in REFUSED:
        assert refused(case["distribution"])
        return
    sent = to_hyperparameters(case["distribution"], instance_type=GOLDEN["instance_type"])
    assert sent == case["hyperparameters"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", Single()),
        ("torch_distributed", Torchrun(processes_per_host=2)),
        ("torchrun", Torchrun(processes_per_host=2)),
        ("smddp", Mpi("smdistributed.dataparallel", 2)),
        ("smdistributed.dataparallel", Mpi("smdistributed.dataparallel", 2)),
        ("pytorchddp", Mpi("smdistributed.dataparallel", 2)),
        ("mpi", Mpi("mpi", 2)),
        ("horovod", Mpi("mpi", 2)),
        ("parameter_server", ParameterServer("parameter_server", 2)),
        ("multi_worker_mirrored_strategy", ParameterServer("multi_worker_mirrored_strategy", 2)),
    ],
)
def test_a_bare_name_reads_back_as_its_option(tmp_path: Path, name: str, expected: object) -> None:
    sent = to_hyperparameters(name, processes_per_host=None if name == "none" else 2)
    job = read_job(write_tree(tmp_path, {**PROGRAM, **sent}))
    assert job.distribution == expected
    assert job.warnings == ()


SMDDP = "smdistributed.dataparallel"
# what each recording of the SDK's is, read back
READ_BACK = {
    **dict.fromkeys(("torch_off", "smddp_off", "mpi_off"), Single()),
    **dict.fromkeys(("torch", "mp_empty", "mp_off"), Torchrun()),
    "smddp_torch": Torchrun(data_parallel=True),
    **dict.fromkeys(("smddp", "pytorchddp"), Mpi(SMDDP)),
    "smddp_opts": Mpi(SMDDP, custom_options="-verbose -x A=1"),
    "pytorchddp_opts": Mpi(SMDDP, custom_options="-x A=1"),
    "mpi": Mpi(),
    "mpi4": Mpi("mpi", 4, custom_options="--NCCL_DEBUG INFO"),
    "mp_mpi": Mpi(MODEL_PARALLEL, 2),
    "mp_torch": Torchrun(MODEL_PARALLEL),
    "torch_mpi": Torchrun(),  # the SDK drops mpi
    "ps": ParameterServer(),
    "mwms": ParameterServer("multi_worker_mirrored_strategy"),
}


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_what_the_sdk_sends_becomes_its_option(tmp_path: Path, case: dict[str, Any]) -> None:
    environ = write_tree(tmp_path, {**PROGRAM, **case["hyperparameters"]})
    if case["name"] in READ_BACK:
        job = read_job(environ)
        assert job.distribution == READ_BACK[case["name"]]
        assert job.warnings == ()
        return
    assert case["name"] in ("mp_alone", "ps_mpi")
    with pytest.raises(ConfigError):
        read_job(environ)


@pytest.mark.parametrize("name", ["smp", "smdistributed.modelparallel"])
def test_a_bare_name_of_model_parallelism_means_torchrun(tmp_path: Path, name: str) -> None:
    """With the parameters that the request has elsewhere."""
    sent = to_hyperparameters(name, processes_per_host=2)
    assert "mp_parameters" not in sent
    assert read_job(write_tree(tmp_path, {**PROGRAM, **sent})).distribution == Torchrun(
        processes_per_host=2
    )
    sent["mp_parameters"] = '{"partitions": 2}'
    job = read_job(write_tree(tmp_path, {**PROGRAM, **sent}))
    assert job.distribution == Torchrun(MODEL_PARALLEL, 2)
    assert job.warnings == ()


def test_instance_groups_are_sent_by_name_for_every_strategy() -> None:
    groups = [SimpleNamespace(instance_group_name="gpu"), "cpu"]
    sent = to_hyperparameters({"torch_distributed": ON, "instance_groups": groups})
    assert json.loads(sent["sagemaker_distribution_instance_groups"]) == ["gpu", "cpu"]


def test_processes_of_the_call_win_over_the_dictionary() -> None:
    mpi = {"mpi": {"enabled": True, "processes_per_host": 4}}
    assert to_hyperparameters(mpi)["sagemaker_mpi_num_of_processes_per_host"] == "4"
    sent = to_hyperparameters(mpi, processes_per_host=8)
    assert sent["sagemaker_mpi_num_of_processes_per_host"] == "8"


@pytest.mark.promise("B24")
@pytest.mark.parametrize(
    ("distribution", "text"),
    [
        ("torch_distributd", "'torch_distributd', did you mean 'torch_distributed'?"),
        ({"torch_distributd": ON}, "'torch_distributd', did you mean 'torch_distributed'?"),
        (
            {"mpi": {"enabled": True, "procs_per_host": 8}},
            "mpi: unknown key 'procs_per_host', did you mean 'processes_per_host'?",
        ),
        ({"mpi": {"enbled": True}}, "mpi: unknown key 'enbled', did you mean 'enabled'?"),
        (
            {"smdistributed": {"dataparalel": ON}},
            "smdistributed: unknown key 'dataparalel', did you mean 'dataparallel'?",
        ),
        ({"parameter_server": {"enabled": True, "x": 1}}, "parameter_server: unknown key 'x'"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest(distribution: Any, text: str) -> None:
    assert text in refused(distribution)[0]


@pytest.mark.parametrize(
    ("distribution", "text"),
    [
        ({"mpi": True}, "distribution['mpi']: expected a dictionary, got True"),
        ({"mpi": {}}, "mpi.enabled: expected True or False, it is missing"),
        ({"mpi": {"enabled": "yes"}}, "mpi.enabled: expected True or False, got 'yes'"),
        (
            {"mpi": {**ON, "custom_mpi_options": 1}},
            "mpi.custom_mpi_options: expected a string",
        ),
        ({"smdistributed": {"dataparallel": 1}}, "smdistributed.dataparallel: expected a dict"),
        (
            {"smdistributed": {"dataparallel": ON, "modelparallel": ON}},
            "smdistributed: choose dataparallel or modelparallel, not both",
        ),
        (
            {"smdistributed": {"modelparallel": {**ON, "parameters": 3}}, "mpi": ON},
            "smdistributed.modelparallel.parameters: expected a dictionary, got 3",
        ),
        ({"mpi": ON, "instance_groups": "gpu"}, "instance_groups: expected a list"),
        ({"instance_groups": ["gpu"]}, "instance_groups: no strategy is enabled for the groups"),
        (
            {"mpi": ON, "parameter_server": ON},
            "conflicting distributions: mpi and param",
        ),
    ],
)
def test_what_cannot_work_is_refused(distribution: Any, text: str) -> None:
    assert refused(distribution)[0].startswith(text)


@pytest.mark.promise("B27")
@pytest.mark.parametrize("count", [0, -1, 1025, 1.5, True, "8 "])
def test_processes_per_host_are_a_positive_integer(count: Any) -> None:
    expected = "expected a positive integer up to 1,024, got "
    assert refused({"mpi": {**ON, "processes_per_host": count}})[0].startswith(
        f"mpi.processes_per_host: {expected}"
    )
    assert refused("mpi", processes_per_host=count)[0].startswith(f"processes_per_host: {expected}")


def test_all_mistakes_are_told_at_once() -> None:
    assert len(refused({"mpi": {"enabled": 1, "x": 2}, "parameter_sever": ON})) == 3
