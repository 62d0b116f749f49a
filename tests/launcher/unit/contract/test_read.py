"""contract.read: where each value of a Job comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.contract.request.read import read_cluster, read_job
from muster.types.distribution import Mpi, Single, Torchrun
from muster.types.errors import ConfigError
from muster.types.job import Job
from tests.support.mltree import ONE_HOST, PROGRAM, TWO_GROUPS, TWO_HOSTS, write_tree


def read(tmp_path: Path, **tree: Any) -> Job:
    return read_job(write_tree(tmp_path, **tree))


def test_a_plain_job_is_read_with_defaults(tmp_path: Path) -> None:
    job = read(tmp_path, hyperparameters={**PROGRAM, "lr": "0.1"})
    assert (job.id, job.program, job.source, job.arguments) == ("", "train.py", "", ("--lr", "0.1"))
    assert job.distribution == Single()
    assert (job.log_level, job.platform, job.warnings) == (20, None, ())
    assert job.paths.model == f"{tmp_path}/model"
    assert job.cluster.is_leader and job.cluster.interface == "eth0"
    assert job.origins["program"] == "hyperparameter sagemaker_program"
    assert job.origins["distribution"] == "default: no distribution key is enabled"


@pytest.mark.parametrize(
    ("variables", "hyperparameter", "program", "origin"),
    [
        ({"SAGEMAKER_PROGRAM": "a.py"}, '"b.py"', "a.py", "variable SAGEMAKER_PROGRAM"),
        ({"SAGEMAKER_PROGRAM": ""}, '"b.py"', "b.py", "hyperparameter sagemaker_program"),
        ({"SM_ENTRY_SCRIPT": "c.py"}, "b.py", "b.py", "hyperparameter sagemaker_program"),
        ({"SM_ENTRY_SCRIPT": "c.py"}, "null", "c.py", "variable SM_ENTRY_SCRIPT"),
        ({}, "./dir//my train.sh", "dir/my train.sh", "hyperparameter sagemaker_program"),
    ],
)
def test_the_program_is_found_in_the_order_of_the_contract(
    tmp_path: Path, variables: dict[str, str], hyperparameter: str, program: str, origin: str
) -> None:
    hyperparameters = {"sagemaker_program": hyperparameter}
    job = read(tmp_path, hyperparameters=hyperparameters, **variables)
    assert (job.program, job.origins["program"]) == (program, origin)


@pytest.mark.promise("B16")
def test_an_entry_script_of_null_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no training program"):
        read(tmp_path, hyperparameters={}, SM_ENTRY_SCRIPT="null")


def test_the_source_is_the_submit_directory_then_the_v3_folder_then_the_channel(
    tmp_path: Path,
) -> None:
    submitted = {**PROGRAM, "sagemaker_submit_directory": '"s3://bucket/source.tar.gz"'}
    channel = tmp_path / "input" / "data" / "code"
    channel.mkdir(parents=True)
    assert read(tmp_path).source == ""
    (channel / "train.py").touch()
    assert read(tmp_path).source == str(channel)
    (channel / "sourcedir.tar.gz").touch()
    assert read(tmp_path).source == str(channel / "sourcedir.tar.gz")
    assert read(tmp_path, SM_SOURCE_DIR="/v3/code").source == "/v3/code"
    job = read(tmp_path, hyperparameters=submitted, SM_SOURCE_DIR="/v3/code")
    assert job.source == "s3://bucket/source.tar.gz"
    assert job.origins["source"] == "hyperparameter sagemaker_submit_directory"


def test_the_code_folder_named_as_source_is_the_code_folder(tmp_path: Path) -> None:
    hyperparameters = {**PROGRAM, "sagemaker_submit_directory": f'"{tmp_path}/code/"'}
    assert read(tmp_path, hyperparameters=hyperparameters).source == ""


@pytest.mark.parametrize(
    ("variables", "hyperparameters", "expected"),
    [
        ({"TRAINING_JOB_NAME": "n", "TRAINING_JOB_ARN": "arn:n"}, {}, "n"),
        ({"TRAINING_JOB_ARN": "arn:n"}, {"sagemaker_job_name": '"h"'}, "arn:n"),
        ({}, {"sagemaker_job_name": '"h"'}, "h"),
        ({}, {}, ""),
    ],
)
def test_the_job_is_named_by_the_platform_first(
    tmp_path: Path, variables: dict[str, str], hyperparameters: dict[str, str], expected: str
) -> None:
    job = read(tmp_path, hyperparameters={**PROGRAM, **hyperparameters}, **variables)
    assert job.id == expected


def test_hosts_keep_the_order_of_the_file_and_the_first_leads(tmp_path: Path) -> None:
    resources = {**ONE_HOST, "hosts": ["algo-10-x_y", "algo-1", "h.example.org"]}
    cluster = read(tmp_path, resources=resources).cluster
    assert [host.name for host in cluster.hosts] == ["algo-10-x_y", "algo-1", "h.example.org"]
    assert (cluster.leader.name, cluster.current, cluster.is_leader) == ("algo-10-x_y", 1, False)


def test_hosts_outside_the_named_group_take_no_part(tmp_path: Path) -> None:
    hyperparameters = {
        **PROGRAM,
        "sagemaker_mpi_enabled": "true",
        "sagemaker_distribution_instance_groups": '["gpu"]',
    }
    cluster = read(tmp_path, resources=TWO_GROUPS, hyperparameters=hyperparameters).cluster
    assert (cluster.distribution, cluster.leader.name) == ((1, 2), "algo-2")
    assert not cluster.in_distribution
    assert [(host.group, host.instance_type) for host in cluster.hosts[:2]] == [
        ("cpu", "ml.c5.xlarge"),
        ("gpu", "ml.g5.xlarge"),
    ]


def test_without_a_distribution_hosts_of_all_groups_run_the_script(tmp_path: Path) -> None:
    assert read(tmp_path, resources=TWO_GROUPS).cluster.distribution == (0, 1, 2)


def test_group_names_without_groups_mean_all_hosts_as_in_local_mode(tmp_path: Path) -> None:
    hyperparameters = {
        **PROGRAM,
        "sagemaker_mpi_enabled": "true",
        "sagemaker_distribution_instance_groups": '["homogeneousCluster"]',
    }
    cluster = read(tmp_path, resources=TWO_HOSTS, hyperparameters=hyperparameters).cluster
    assert cluster.distribution == (0, 1)


def test_local_mode_stops_within_ten_seconds(tmp_path: Path) -> None:
    local = {**ONE_HOST, "current_instance_type": "local_gpu"}
    assert read(tmp_path, resources=local).deadlines.stop_total_s == 9.0
    assert read(tmp_path).deadlines.stop_total_s == 110.0


def test_the_hosts_of_a_job_with_bad_hyperparameters_can_still_be_read(tmp_path: Path) -> None:
    environ = write_tree(tmp_path, b"{", TWO_HOSTS, MUSTER_JOIN_S="7")
    with pytest.raises(ConfigError):
        read_job(environ)
    cluster, settings, deadlines = read_cluster(environ)
    assert [host.name for host in cluster.hosts] == ["algo-1", "algo-2"]
    assert (settings.control_port, deadlines.join_s) == (7776, 7)


def test_reading_only_the_hosts_finds_the_same_leader_as_reading_the_job(tmp_path: Path) -> None:
    hyperparameters = {
        "sagemaker_program": "../bad",
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_distribution_instance_groups": '["gpu"]',
    }
    cluster, _, _ = read_cluster(write_tree(tmp_path, hyperparameters, TWO_GROUPS))
    assert cluster.leader.name == "algo-2"


def test_hosts_that_are_bad_themselves_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="current_host"):
        read_cluster(write_tree(tmp_path, resources={**ONE_HOST, "current_host": "b"}))


def test_documents_keep_the_three_kinds_of_hyperparameters_apart(tmp_path: Path) -> None:
    hyperparameters = {
        **PROGRAM,
        "lr": "0.1",
        "sagemaker_region": '"us-west-2"',
        "sagemaker_instance_type": '"local"',
        "_tuning_objective_metric": '"loss"',
    }
    documents = read(tmp_path, hyperparameters=hyperparameters).documents
    assert documents.hyperparameters == {"lr": 0.1}
    assert documents.framework_parameters == {"sagemaker_instance_type": "local"}
    assert set(documents.fixed_parameters) == {
        "sagemaker_program",
        "sagemaker_region",
        "_tuning_objective_metric",
    }


ON = "true"
DISTRIBUTIONS = [
    ({}, Single()),
    ({"sagemaker_mpi_enabled": "false", "sagemaker_mpi_custom_mpi_options": '""'}, Single()),
    ({"sagemaker_torch_distributed_enabled": ON}, Torchrun()),
    ({"sagemaker_torch_distributed_enabled": "True"}, Torchrun()),
    (
        {
            "sagemaker_torch_distributed_enabled": ON,
            "sagemaker_mpi_num_of_processes_per_host": '"4"',
        },
        Torchrun("torch_distributed", 4),
    ),
    (
        {"sagemaker_mpi_enabled": ON, "sagemaker_mpi_num_processes": "6"},
        Mpi("mpi", processes=6),
    ),
    (
        {
            "sagemaker_mpi_enabled": ON,
            "sagemaker_mpi_num_of_processes_per_host": "2",
            "sagemaker_mpi_custom_mpi_options": '"-x A=1"',
        },
        Mpi("mpi", 2, None, "-x A=1"),
    ),
    (
        {
            "sagemaker_distributed_dataparallel_enabled": ON,
            "sagemaker_distributed_dataparallel_custom_mpi_options": '"-v"',
        },
        Mpi("smdistributed.dataparallel", custom_options="-v"),
    ),
    ({"sagemaker_pytorch_ddp_enabled": ON}, Mpi("pytorchddp")),
    (
        {"sagemaker_pytorch_ddp_enabled": ON, "sagemaker_distributed_dataparallel_enabled": ON},
        Mpi("smdistributed.dataparallel"),
    ),
    # what the SDK sends for smdistributed beside torch_distributed, compulsory on p5
    (
        {
            "sagemaker_torch_distributed_enabled": ON,
            "sagemaker_distributed_dataparallel_enabled": ON,
        },
        Torchrun(data_parallel=True),
    ),
    (
        {
            "sagemaker_torch_distributed_enabled": ON,
            "sagemaker_distributed_dataparallel_enabled": "false",
            "mp_parameters": '{"partitions": 2}',
        },
        Torchrun("smdistributed.modelparallel"),
    ),
    (
        {
            "sagemaker_mpi_enabled": ON,
            "sagemaker_distributed_dataparallel_enabled": "false",
            "mp_parameters": '{"partitions": 2}',
        },
        Mpi("smdistributed.modelparallel"),
    ),
]


@pytest.mark.parametrize(("keys", "expected"), DISTRIBUTIONS)
def test_the_keys_of_the_sdk_choose_the_distribution(
    tmp_path: Path, keys: dict[str, str], expected: object
) -> None:
    job = read(tmp_path, hyperparameters={**PROGRAM, **keys})
    assert job.distribution == expected
    assert job.warnings == ()


@pytest.mark.parametrize("option", ["parameter_server", "multi_worker_mirrored_strategy"])
def test_servers_keep_the_name_of_their_option(tmp_path: Path, option: str) -> None:
    job = read(tmp_path, hyperparameters={**PROGRAM, f"sagemaker_{option}_enabled": ON})
    assert type(job.distribution).__name__ == "ParameterServer"
    assert job.distribution.option == option


@pytest.mark.promise("B25")
def test_a_conflict_can_be_allowed_and_is_then_a_warning(tmp_path: Path) -> None:
    both = {
        **PROGRAM,
        "sagemaker_mpi_enabled": ON,
        "sagemaker_torch_distributed_enabled": ON,
    }
    job = read(tmp_path, hyperparameters=both, MUSTER_ALLOW_CONFLICTS="1")
    assert job.distribution == Mpi()
    assert job.warnings == (
        "conflicting distributions: mpi and torch_distributed are both enabled; mpi is used, "
        "as configured",
    )


def test_model_parallelism_without_a_launcher_is_refused(tmp_path: Path) -> None:
    sent = {
        **PROGRAM,
        "mp_parameters": '{"partitions": 2}',
        "sagemaker_distributed_dataparallel_enabled": "false",
    }
    with pytest.raises(ConfigError, match="needs mpi or torch_distributed beside it"):
        read(tmp_path, hyperparameters=sent)


def test_an_argument_that_happens_to_be_called_mp_parameters_is_only_a_warning(
    tmp_path: Path,
) -> None:
    job = read(tmp_path, hyperparameters={**PROGRAM, "mp_parameters": "7"})
    assert job.arguments == ("--mp_parameters", "7")
    assert "only an argument of the script" in job.warnings[0]
