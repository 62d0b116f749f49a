"""smdistributed.modelparallel: its parameters, and the package that its scripts import."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.contract.environ import exports
from muster.contract.request.read import read_job
from muster.sdk.distribution import to_hyperparameters
from muster.stage.python.packages import missing_packages, require_packages
from muster.types.distribution import MODEL_PARALLEL, Mpi, Torchrun
from muster.types.errors import ConfigError
from muster.types.job import Job, Program
from muster.types.machine import Machine
from tests.support.mltree import PROGRAM, write_tree

ON = {"enabled": True}
VERSION_1 = {
    "pipeline_parallel_degree": 2,
    "partitions": 2,
    "tensor_parallel_degree": 4,
    "microbatches": 8,
    "pipeline": "interleaved",
    "optimize": "memory",
    "placement_strategy": "PTD",
    "memory_weight": 0.5,
    "active_microbatches": None,
    "ddp": True,
    "shard_optimizer_state": False,
    "sdp_gradient_clipping": 1,
    "default_partition": 1,
    "overlapping_allreduce": False,
}
VERSION_2 = {
    "tensor_parallel_degree": 4,
    "hybrid_shard_degree": 4,
    "context_parallel_degree": 4,
    "sm_activation_offloading": True,
    "activation_loading_horizon": 2,
    "partitions": None,
}


def read(tmp_path: Path, parameters: str, launcher: str = "sagemaker_mpi_enabled") -> Job:
    sent = {**PROGRAM, "mp_parameters": parameters, launcher: "true"}
    sent["sagemaker_distributed_dataparallel_enabled"] = "false"
    return read_job(write_tree(tmp_path, sent))


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("sagemaker_mpi_enabled", Mpi(MODEL_PARALLEL)),
        ("sagemaker_torch_distributed_enabled", Torchrun(MODEL_PARALLEL)),
    ],
)
def test_parameters_reach_the_script_as_json_and_as_an_argument(
    tmp_path: Path, launcher: str, expected: object
) -> None:
    """test_exports.py compares the argument and the variable with the incumbent's."""
    job = read(tmp_path, '{"partitions": 2, "ddp": true, "optimize": "speed"}', launcher)
    assert job.distribution == expected
    assert job.arguments == ("--mp_parameters", "ddp=True,optimize=speed,partitions=2")
    program = Program("script", "train.py", job.paths.code, job.arguments)
    made = exports(job, Machine(1, 0, 0, False, (), None, None), program)
    assert made["SM_HP_MP_PARAMETERS"] == '{"ddp":true,"optimize":"speed","partitions":2}'
    assert job.warnings == ()


@pytest.mark.parametrize("sent", [VERSION_1, VERSION_2])
def test_every_documented_key_is_known(tmp_path: Path, sent: dict[str, object]) -> None:
    assert read(tmp_path, json.dumps(sent)).warnings == ()


def test_a_pipeline_that_cannot_be_full_is_a_warning_that_says_what_it_costs(
    tmp_path: Path,
) -> None:
    assert read(tmp_path, '{"partitions": 4, "microbatches": 1}').warnings == (
        "microbatches 1 are fewer than the 4 stages of the pipeline, which stand idle 75 % of the "
        "time",
    )


def test_a_key_that_nobody_knows_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    job = read(tmp_path, '{"partitons": 2, "something_else": [1]}')
    assert job.warnings == (
        "unknown key 'partitons' of mp_parameters, did you mean 'partitions'?",
        "unknown key 'something_else' of mp_parameters is passed on",
    )


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ('"partitions=2"', "mp_parameters: expected a JSON object, got 'partitions=2'"),
        ("{'partitions': 2}", "mp_parameters: expected a JSON object"),
        ("[1]", "mp_parameters: expected a JSON object, got [1]"),
        ("7", "mp_parameters: expected a JSON object, got 7"),
        ('{"partitions": 0}', ".partitions: expected an integer from 1 to 1,048,576, got 0"),
        ('{"partitions": "2"}', ".partitions: expected an integer"),
        ('{"partitions": true}', ".partitions: expected an integer"),
        ('{"microbatches": 1.5}', ".microbatches: expected an integer"),
        ('{"ddp": 1}', ".ddp: expected true or false, got 1"),
        ('{"ddp": "True"}', ".ddp: expected true or false, got 'True'"),
        ('{"optimize": "fast"}', ".optimize: expected one of speed, memory, got 'fast'"),
        ('{"pipeline": "gpipe"}', ".pipeline: expected one of interleaved, simple"),
        ('{"placement_strategy": "DD"}', ".placement_strategy: expected one of cluster, spread"),
        ('{"memory_weight": 1.5}', ".memory_weight: expected a number from 0 to 1, got 1.5"),
        ('{"memory_weight": false}', ".memory_weight: expected a number from 0 to 1, got False"),
        ('{"sdp_reduce_bucket_size": -1}', ": expected an integer of at least 0, got -1"),
        ('{"partition_file": 3}', ".partition_file: expected a string, got 3"),
        ('{"fp16": true, "bf16": true}', "mp_parameters: fp16 and bf16 are both true"),
        (
            '{"partitions": 2, "pipeline_parallel_degree": 4}',
            "mp_parameters: partitions is 2 and pipeline_parallel_degree 4: both name one thing",
        ),
        (
            '{"partitions": 2, "default_partition": 2}',
            "mp_parameters: default_partition 2 is none of the 2 partitions, which begin at 0",
        ),
        (
            '{"shard_optimizer_state": true, "sharded_data_parallel_degree": 2}',
            "mp_parameters: sharded_data_parallel_degree 2 shards the optimizer's state already",
        ),
        (
            '{"context_parallel_degree": 4, "hybrid_shard_degree": 2}',
            "mp_parameters: context_parallel_degree 4 is more than hybrid_shard_degree 2",
        ),
        (
            '{"partitions": 1, "random_seed": 0}',
            "mp_parameters: random_seed is a key of version 2 of the library, beside keys of",
        ),
        ('{"overlapping_allreduce": "no"}', ".overlapping_allreduce: expected true or false"),
    ],
)
def test_a_value_that_no_library_can_use_is_refused(
    tmp_path: Path, parameters: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, parameters)
    assert text in str(caught.value.problems[0])


def test_the_same_is_said_before_a_job_is_sent() -> None:
    distribution: dict[str, Any] = {
        "smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": "2"}}},
        "mpi": ON,
    }
    with pytest.raises(ConfigError, match=r"parameters\.partitions: expected an integer"):
        to_hyperparameters(distribution)


def test_parameters_may_come_from_a_file_as_sdk_v2_allows(tmp_path: Path) -> None:
    path = tmp_path / "parameters.json"
    path.write_text('{"partitions": 2}')

    def sent(parameters: str) -> dict[str, str]:
        options = {"modelparallel": {**ON, "parameters": parameters}}
        return to_hyperparameters({"smdistributed": options, "mpi": ON})

    assert sent(str(path))["mp_parameters"] == '{"partitions": 2}'
    for bad in (str(tmp_path / "none.json"), str(tmp_path)):
        with pytest.raises(ConfigError, match="cannot be read"):
            sent(bad)
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        sent(str(path))


def environ(*folders: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def package(root: Path, *parts: str, text: str = "raise SystemExit('imported')\n") -> Path:
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(text)
    return root


def without_the_library(root: Path) -> Path:
    """A folder whose package hides the smdistributed of muster-compat, which is installed here."""
    return package(root, "smdistributed")


def test_a_package_is_found_without_being_imported(tmp_path: Path) -> None:
    package(tmp_path, "smdistributed", "modelparallel")
    name = MODEL_PARALLEL
    assert missing_packages([name], sys.executable, environ(tmp_path)) == ()
    lacking = environ(without_the_library(tmp_path / "other"))
    assert missing_packages([name, "json.tool"], sys.executable, lacking) == (name,)
    (tmp_path / "smdistributed" / "__init__.py").write_text("raise SystemExit('imported')\n")
    assert missing_packages([name], sys.executable, environ(tmp_path)) == ()
    assert missing_packages(["smdistributed.x.y"], sys.executable, environ(tmp_path)) == (
        "smdistributed.x.y",
    )


def test_a_script_whose_python_lacks_the_library_is_told_its_name(tmp_path: Path) -> None:
    lacking = without_the_library(tmp_path / "other")
    with pytest.raises(ConfigError) as caught:
        require_packages(MODEL_PARALLEL, sys.executable, environ(lacking))
    assert "needs the package smdistributed.modelparallel" in caught.value.message
    assert "add muster-compat" in caught.value.fix
    require_packages("mpi", sys.executable, environ())
    package(tmp_path, "torch", "sagemaker")
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    require_packages(MODEL_PARALLEL, sys.executable, environ(tmp_path, lacking))


def test_an_interpreter_that_does_not_answer_is_left_to_the_script(tmp_path: Path) -> None:
    assert missing_packages(["x"], str(tmp_path / "no-python"), environ()) == ()
