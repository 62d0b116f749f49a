"""The platform's undocumented files: hints when they can be read, never an error.

The tree is built after recordings of 2020 and 2022.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.contract.request.read import read_job
from muster.types.job import Job, Platform
from tests.support.mltree import write_tree

RECORDED: dict[str, Any] = {
    "checkpointconfig.json": {"LocalPath": "/state"},
    "init-config.json": {
        "inputMode": "FILE",
        "channels": {"train": {"s3DataSource": {"s3Uri": "s3://b/t"}, "sharded": False}},
        "checkpointChannel": {"s3Uri": "s3://b/c", "allowEmpty": True},
        "hostConfig": {"clusterSize": 1, "hostNumber": 1},
        "jobRunInfo": {"jobRunNumber": 2},
    },
    "trainingjobconfig.json": {
        "TrainingJobName": "job",
        "TrainingJobArn": "arn:aws:sagemaker:us-east-1:111122223333:training-job/job",
        "RoleArn": "arn:aws:iam::111122223333:role/canary-role",
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
        "EnableManagedSpotTraining": True,
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": False,
        "CheckpointConfig": {"LocalPath": "/state", "S3Uri": "s3://bucket/checkpoints"},
        "AlgorithmSpecification": {
            "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
        },
        "Tags": [{"Key": "owner", "Value": "canary-tag"}],
    },
    "metric-definition-regex.json": [],
    "tensorboardoutputconfig.json": {
        "S3OutputPath": "s3://bucket/tb",
        "LocalPath": "/opt/ml/output/tensorboard/",
    },
    "debughookconfig.json": {"not": "ours"},
}


def read(tmp_path: Path, files: dict[str, Any], **variables: str) -> Job:
    environ = write_tree(tmp_path, **variables)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / "input" / "config" / name).write_bytes(data)
    return read_job(environ)


def test_without_files_there_is_no_platform(tmp_path: Path) -> None:
    assert read(tmp_path, {"debughookconfig.json": {}}).platform is None


def test_everything_recorded_is_understood(tmp_path: Path) -> None:
    job = read(tmp_path, RECORDED, SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY="/opt/ml/cache")
    assert job.warnings == ()
    assert job.platform == Platform(
        attempt=2,
        max_runtime_s=3600,
        max_wait_s=7200,
        spot=True,
        encrypted_traffic=False,
        network_isolation=False,
        checkpoint_dir="/state",
        checkpoint_uri="s3://bucket/checkpoints",
        tensorboard_dir="/opt/ml/output/tensorboard/",
        warm_pool_dir="/opt/ml/cache",
        metrics=(("loss", "loss=([0-9.]+)"),),
        found=tuple(name for name in RECORDED if name != "debughookconfig.json"),
    )


@pytest.mark.promise("S08")
def test_nothing_else_of_the_files_leaves_the_reader(tmp_path: Path) -> None:
    assert "canary" not in repr(read(tmp_path, RECORDED))


def test_a_warm_pool_alone_is_a_platform(tmp_path: Path) -> None:
    job = read(tmp_path, {}, SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY="/cache")
    assert job.platform == Platform(warm_pool_dir="/cache")


@pytest.mark.parametrize(
    "entries",
    [
        [{"Name": "a", "Regex": "x"}, {"Name": "b", "Regex": "y"}],
        [{"name": "a", "regex": "x"}, {"name": "b", "regex": "y"}],
    ],
)
def test_metric_definitions_are_read_in_either_case(tmp_path: Path, entries: list[Any]) -> None:
    platform = read(tmp_path, {"metric-definition-regex.json": entries}).platform
    assert platform is not None and platform.metrics == (("a", "x"), ("b", "y"))


MALFORMED: list[Any] = [
    b"", b"{", b"\xff\xfe", b"[" * 100_000, None, 3, "text", [], [1], {}, {"LocalPath": 7},
    {"jobRunInfo": [1]}, {"jobRunInfo": {"jobRunNumber": "x"}}, {"StoppingCondition": "soon"},
    {"StoppingCondition": {"MaxRuntimeInSeconds": True}}, {"EnableManagedSpotTraining": "yes"},
    {"AlgorithmSpecification": {"MetricDefinitions": {"Name": 1}}}, [{"Name": "n"}],
]  # fmt: skip


@pytest.mark.parametrize("content", MALFORMED, ids=lambda content: repr(content)[:30])
def test_malformed_files_are_at_most_one_warning(tmp_path: Path, content: Any) -> None:
    ours = [name for name in RECORDED if name != "debughookconfig.json"]
    job = read(tmp_path, dict.fromkeys(ours, content))
    assert job.platform is not None and job.platform.found == tuple(ours)
    assert job.platform._replace(found=()) == Platform()
    assert len(job.warnings) <= 1
    if content not in (None, {}, []):
        assert "not understood" in job.warnings[0]


def test_a_folder_in_the_place_of_a_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "input" / "config" / "init-config.json").mkdir(parents=True)
    assert read(tmp_path, {}).warnings == (
        "platform files not understood, left out: init-config.json",
    )
