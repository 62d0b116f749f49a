"""The SM_* variables and the arguments, against values recorded from the incumbent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.contract.environ import exports
from muster.contract.request.read import read_job
from muster.types.job import Job, Program
from muster.types.machine import Machine
from tests.support.mltree import PROGRAM, TWO_HOSTS, write_tree

GOLDEN = json.loads((Path(__file__).parent / "golden" / "incumbent_exports.json").read_text())
MACHINE = Machine(2, None, None, False, (), None, None)
MODELTRAINER = {
    "SM_CURRENT_HOST_RANK",
    "SM_ENTRY_SCRIPT",
    "SM_HOST_COUNT",
    "SM_INPUT_DATA_DIR",
    "SM_MASTER_ADDR",
    "SM_MASTER_PORT",
    "SM_OUTPUT_FAILURE",
    "SM_SOURCE_DIR",
}


def export(job: Job, machine: Machine = MACHINE) -> dict[str, str]:
    program = Program("script", job.program, job.paths.code, job.arguments)
    return exports(job, machine, program)


def read_case(tmp_path: Path, case: dict[str, Any]) -> Job:
    return read_job(
        write_tree(
            tmp_path,
            case["hyperparameters"],
            case["resourceconfig"],
            case["inputdataconfig"],
            **case["environ"],
        )
    )


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["title"])
def test_arguments_and_variables_equal_the_incumbents(tmp_path: Path, case: dict[str, Any]) -> None:
    job = read_case(tmp_path, case)
    ours = {k: v.replace(str(tmp_path), GOLDEN["base"]) for k, v in export(job).items()}
    theirs = dict(case["variables"])
    assert list(job.arguments) == case["argv"]
    our_env, their_env = (json.loads(env.pop("SM_TRAINING_ENV")) for env in (ours, theirs))
    if "mp_parameters" in case["hyperparameters"]:  # intended difference: the truth
        assert (
            our_env.pop("is_modelparallel_enabled"),
            their_env.pop("is_modelparallel_enabled"),
        ) == (True, None)
    assert our_env == their_env
    assert {name: ours[name] for name in theirs} == theirs
    extra = {name for name in ours.keys() - theirs.keys() if name.startswith("SM_")}
    assert {n for n in extra if not n.startswith(("SM_HP_", "SM_CHANNEL_"))} == MODELTRAINER


def test_the_whole_training_env_is_compact_json_with_sorted_keys(tmp_path: Path) -> None:
    text = export(read_case(tmp_path, GOLDEN["cases"][0]))["SM_TRAINING_ENV"]
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_hyperparameters_have_both_spellings_and_an_exact_name_wins(tmp_path: Path) -> None:
    hyperparameters = {**PROGRAM, "learning-rate": "1", "a-b": "2", "a_b": "3", "x.y": "4"}
    env = export(read_job(write_tree(tmp_path, hyperparameters)))
    assert (env["SM_HP_LEARNING-RATE"], env["SM_HP_LEARNING_RATE"]) == ("1", "1")
    assert (env["SM_HP_A-B"], env["SM_HP_A_B"]) == ("2", "3")
    assert (env["SM_HP_X.Y"], env["SM_HP_X_Y"]) == ("4", "4")


@pytest.mark.promise("B38")
def test_channels_that_collide_keep_a_variable_each(tmp_path: Path) -> None:
    env = export(read_job(write_tree(tmp_path, inputs={"train": {}, "Train": {}, "val-a": {}})))
    data = f"{tmp_path}/input/data"
    assert env["SM_CHANNELS"] == '["Train","train","val-a"]'
    assert (env["SM_CHANNEL_train"], env["SM_CHANNEL_Train"]) == (f"{data}/train", f"{data}/Train")
    assert env["SM_CHANNEL_TRAIN"] == f"{data}/Train", "the last of the file, as the incumbent"
    assert env["SM_CHANNEL_VAL-A"] == env["SM_CHANNEL_VAL_A"] == f"{data}/val-a"


def test_the_names_of_the_v3_sdk_are_there_too(tmp_path: Path) -> None:
    environ = write_tree(
        tmp_path, resources=TWO_HOSTS, MUSTER_HOST_ADDRESSES="algo-1=127.0.0.7",
        MUSTER_STORE_PORT="7070",
    )  # fmt: skip
    env = export(read_job(environ))
    assert {name: env[name] for name in MODELTRAINER} == {
        "SM_CURRENT_HOST_RANK": "0",
        "SM_ENTRY_SCRIPT": "train.py",
        "SM_HOST_COUNT": "2",
        "SM_INPUT_DATA_DIR": f"{tmp_path}/input/data",
        "SM_MASTER_ADDR": "127.0.0.7",
        "SM_MASTER_PORT": "7070",
        "SM_OUTPUT_FAILURE": f"{tmp_path}/output/failure",
        "SM_SOURCE_DIR": f"{tmp_path}/code",
    }


def test_devices_are_those_of_the_machine(tmp_path: Path) -> None:
    job = read_job(write_tree(tmp_path))
    env = export(job, Machine(96, 8, None, True, (), None, None))
    assert (env["SM_NUM_CPUS"], env["SM_NUM_GPUS"], env["SM_NUM_NEURONS"]) == ("96", "8", "0")


def test_name_and_region_are_exported_only_when_the_request_has_them(tmp_path: Path) -> None:
    named = {**PROGRAM, "sagemaker_job_name": '"j"', "sagemaker_region": "us-west-2"}
    env = export(read_job(write_tree(tmp_path, named)))
    assert (env["SAGEMAKER_JOB_NAME"], env["SAGEMAKER_REGION"]) == ("j", "us-west-2")
    env = export(read_job(write_tree(tmp_path)))
    assert env["CURRENT_HOST"] == "algo-1"
    assert not {"SAGEMAKER_JOB_NAME", "SAGEMAKER_REGION"} & env.keys()


@pytest.mark.promise("S08")
def test_the_job_secret_reaches_no_variable(tmp_path: Path) -> None:
    environ = write_tree(tmp_path, MUSTER_JOB_SECRET="canary-canary-canary")
    assert "canary" not in json.dumps(export(read_job(environ)))
