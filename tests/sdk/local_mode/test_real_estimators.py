"""What the real SDKs send and accept, without a container: our tables against their classes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from muster.contract.request.modeltrainer import FIELDS
from muster.sdk import hyperparameters
from muster.types.errors import ConfigError
from tests.sdk.local_mode.conftest import Ask
from tests.sdk.local_mode.jobs import Client
from tests.support.venvs import CHECKOUT

# the first may make the SDK's environment
pytestmark = [pytest.mark.dev, pytest.mark.timeout(1200)]
GOLDEN = CHECKOUT / "tests" / "sdk" / "unit" / "golden" / "sdk_distributions.json"
ON = {"enabled": True}
MODEL = {"smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": 2}}}}
# of every script-mode job, whatever its distribution
ALWAYS = ("sagemaker_program", "sagemaker_submit_directory", "sagemaker_container_log_level",
          "sagemaker_job_name", "sagemaker_region", "model_dir")  # fmt: skip
# docs/how-to/sdk.md: what is asked for, and the keys that nevertheless are all that is sent
SILENT: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "a generic Estimator has no distribution": ("Estimator", {"mpi": ON}, ()),
    "a misspelt name": ("PyTorch", {"torchdistributed": ON}, ()),
    "torch_distributed of TensorFlow": ("TensorFlow", {"torch_distributed": ON}, ()),
    "smdistributed of MXNet": ("MXNet", {"smdistributed": {"dataparallel": ON}}, ()),
    "mpi beside torch_distributed": (
        "PyTorch", {"torch_distributed": ON, "mpi": ON},
        ("sagemaker_instance_type", "sagemaker_torch_distributed_enabled"),
    ),
    "modelparallel beside torch_distributed of HuggingFace": (
        "HuggingFace", {**MODEL, "torch_distributed": ON},
        ("sagemaker_instance_type", "sagemaker_torch_distributed_enabled"),
    ),
}  # fmt: skip


TYPES = ("ml.p5.48xlarge", "ml.trn1.32xlarge")


def case(name: str, kind: str, distribution: Any, **more: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"entry_point": "job.py", "source_dir": "@code"}
    if kind == "Estimator":
        arguments = {}
    if distribution is not None:
        arguments["distribution"] = distribution
    if kind == "HuggingFace":
        arguments["py_version"] = "py311"
    return {"name": name, "class": kind, "arguments": arguments, **more}


def keys(values: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in values.items() if name not in ALWAYS}


def test_pytorch_and_tensorflow_send_what_the_golden_file_says(v2: Client, asked: Ask) -> None:
    golden = json.loads(GOLDEN.read_text())
    answers = asked(v2, {"cases": [
        case(one["name"], one["estimator"], one["distribution"], instance_type="ml.c5.xlarge")
        | ({"arguments": {"entry_point": "job.py", "distribution": one["distribution"],
                          "framework_version": "2.11"}} if one["estimator"] == "TensorFlow" else {})
        for one in golden["cases"]
    ]})  # fmt: skip
    assert f"sagemaker {answers['version']}" == golden["recorded_from"]
    for one in golden["cases"]:
        assert keys(answers[one["name"]]) == one["hyperparameters"], one["name"]


def test_a_generic_estimator_hands_on_what_hyperparameters_makes(v2: Client, asked: Ask) -> None:
    made = hyperparameters({"mpi": {**ON, "processes_per_host": 2, "custom_mpi_options": "-x A=1"}})
    with_entry = {"entry_point": "job.py", "source_dir": "@code"}
    answers = asked(v2, {"cases": [
        {"name": "without", "class": "Estimator", "hyperparameters": made},
        {"name": "with", "class": "Estimator", "hyperparameters": made, "arguments": with_entry},
    ]})  # fmt: skip
    assert answers["without"] == made
    assert keys(answers["with"]) == {name: json.dumps(text) for name, text in made.items()}


@pytest.mark.parametrize("kind", ["PyTorch", "Estimator"])
def test_smddp_reaches_types_that_the_sdk_refuses_by_keys_alone(
    v2: Client, asked: Ask, kind: str
) -> None:
    """docs/how-to/sdk.md, "smddp on p5, trn1": `hyperparameters("smddp")`, no `distribution=`."""
    made = hyperparameters("smddp")
    answers = asked(v2, {"cases": [
        typed(case(name, kind, None, hyperparameters=made), name) for name in TYPES
    ] + [typed(case("refused", "PyTorch", {"smdistributed": {"dataparallel": ON}}), TYPES[0])]
    })  # fmt: skip
    encoded = made if kind == "Estimator" else {key: json.dumps(v) for key, v in made.items()}
    for name in TYPES:
        assert keys(answers[name]) == encoded, answers[name]
    assert "do not support p5 instances" in str(answers["refused"]), answers["refused"]


def typed(one: dict[str, Any], instance_type: str) -> dict[str, Any]:
    return {**one, "arguments": {**one["arguments"], "instance_type": instance_type}}


def test_what_the_sdk_drops_in_silence_is_what_the_page_says(v2: Client, asked: Ask) -> None:
    cases = [case(name, kind, asks) for name, (kind, asks, _) in SILENT.items()]
    answers = asked(v2, {"cases": cases})
    for name, (_, _, sent) in SILENT.items():
        assert sorted(keys(answers[name])) == sorted(sent), name
    page = (CHECKOUT / "docs" / "how-to" / "sdk.md").read_text()
    for name in SILENT:
        assert f"| {name} |" in page, f"docs/how-to/sdk.md does not tell of {name}"


@pytest.mark.parametrize(
    "distribution", [{"torchdistributed": ON}, {"torch_distributed": ON, "mpi": ON}]
)
def test_ours_refuses_what_the_sdk_drops(distribution: Any) -> None:
    with pytest.raises(ConfigError):
        hyperparameters(distribution)


@pytest.mark.promise("B24")
def test_muster_is_a_distribution_of_sdk_v3_with_its_driver_from_the_wheel(
    v3: Client, asked: Ask
) -> None:
    answers = asked(v3, {"cases": [
        {"name": "good", "arguments": {"distribution": "mpi", "processes_per_host": 2}},
        {"name": "count", "arguments": {"distribution": "mpi", "process_count_per_node": 2}},
        {"name": "name", "arguments": {"distributon": "mpi"}},
    ]})  # fmt: skip
    driver = Path(answers["good"]["folder"], answers["good"]["script"])
    assert driver.is_file() and driver.is_relative_to(v3.packages)
    assert "did you mean processes_per_host?" in answers["count"]
    assert "did you mean 'distribution'?" in answers["name"]


def test_a_muster_that_was_dumped_makes_the_same_again(v3: Client, asked: Ask) -> None:
    arguments = {"distribution": "mpi", "custom_mpi_options": "-x A='b c'"}
    answers = asked(v3, {"cases": [
        {"name": "made", "arguments": arguments},
        {"name": "strange", "arguments": {"muster": {"lr": "0.1"}}},
        {"name": "both", "arguments": {"distribution": "mpi", "muster": {}}},
    ]})  # fmt: skip
    made = answers["made"]
    assert made["dumped"]["muster"]["sagemaker_mpi_enabled"] == "true"
    assert made["again"] == made["validated"] == made["read"] == made["dumped"]
    assert "'muster' cannot hold the key 'lr'" in answers["strange"]
    assert "muster= is a whole request" in answers["both"]


def test_the_classes_of_sdk_v3_have_the_fields_by_which_train_knows_them(
    v3: Client, asked: Ask
) -> None:
    found = asked(v3, {"cases": []})["fields"]
    assert {name: tuple(names) for name, names in found.items()} == FIELDS


def test_muster_under_sdk_v2_says_what_to_install(v2: Client, asked: Ask) -> None:
    answers = asked(v2, {"cases": [], "imports": "muster.sdk.v3"})
    assert "pip install 'sagemaker>=3'" in answers["imported"]


def examples(folder: Path, version: int) -> list[str]:
    """The examples of docs/how-to/sdk.md for one SDK, with the folders that they name made."""
    page = (CHECKOUT / "docs" / "how-to" / "sdk.md").read_text()
    for name, place in {
        "/home/me/job": "job",
        "/tmp/sagemaker-local": "a",
        "/tmp/fresh-folder": "b",
    }.items():
        (folder / place / "src").mkdir(parents=True)
        (folder / place / "src" / "train.py").touch()
        page = page.replace(name, str(folder / place))
    page = page.replace('source_dir="src"', f'source_dir="{folder}/job/src"')
    first, *others = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return [first, *(one for one in others if ("ModelTrainer" in one) == (version == 3))]


def test_the_examples_of_the_page_are_accepted_by_sdk_v2(
    v2: Client, asked: Ask, tmp_path: Path
) -> None:
    answers = asked(v2, {"examples": examples(tmp_path, 2)})
    framework, data_parallel, generic, local = answers["sent"]
    assert framework["sagemaker_torch_distributed_enabled"] == "true"
    assert (
        json.loads(json.loads(data_parallel["sagemaker_distributed_dataparallel_enabled"])) is True
    )
    assert json.loads(json.loads(generic["sagemaker_mpi_num_of_processes_per_host"])) == 8
    assert local["sagemaker_torch_distributed_enabled"] == "true"


def test_the_examples_of_the_page_are_accepted_by_sdk_v3(
    v3: Client, asked: Ask, tmp_path: Path
) -> None:
    ours, stock, local = asked(v3, {"examples": examples(tmp_path, 3)})["sent"]
    assert ours["muster"]["sagemaker_mpi_enabled"] == "true"
    assert stock == {"process_count_per_node": 8, "mpi_additional_options": None}
    assert local["muster"]["sagemaker_torch_distributed_enabled"] == "true"
