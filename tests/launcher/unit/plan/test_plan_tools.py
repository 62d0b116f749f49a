"""What `muster plan` assumes where this machine lacks what the job will find in its image."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.commands.plan_values import Preview
from muster.commands.preview import preview
from muster.stage.machine import frameworks
from muster.types.errors import ConfigError
from tests.support.mltree import PROGRAM, write_tree

SERVERS, MIRRORED = "parameter_server", "multi_worker_mirrored_strategy"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no framework, whatever the test's interpreter has."""
    monkeypatch.setattr(frameworks, "is_there", lambda name, path: False)


def planned(folder: Path, script: str, option: str = SERVERS, **environ: str) -> Preview:
    """The plan of a job of two hosts."""
    write_tree(
        folder,
        {**PROGRAM, f"sagemaker_{option}_enabled": "true"},
        {"hosts": ["algo-1", "algo-2"], "current_host": "algo-1", "network_interface_name": "lo"},
    )
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").write_text(script)
    return preview({"SAGEMAKER_BASE_DIR": str(folder), **environ}, 2, True)


@pytest.mark.parametrize(
    ("script", "option", "environ", "assumed", "variable"),
    [
        ("import tensorflow as tf\n", SERVERS, {}, "tensorflow", "TF_CONFIG"),
        ("from mxnet import nd\n", SERVERS, {}, "mxnet", "DMLC_ROLE"),
        ("import torch\n", SERVERS, {}, "torch and muster_parameter_server",
         "PARAMETER_SERVER_ADDRESSES"),
        ("", SERVERS, {"MUSTER_PS_FRAMEWORK": "mxnet"}, "mxnet", "DMLC_ROLE"),
        ("", SERVERS, {"MUSTER_PS_FRAMEWORK": "pytorch"}, "torch and muster_parameter_server",
         "PARAMETER_SERVER_ADDRESSES"),
        ("", MIRRORED, {}, "tensorflow", "TF_CONFIG"),
    ],
)  # fmt: skip
def test_a_framework_that_the_job_asks_for_is_assumed_and_it_is_said(
    tmp_path: Path, script: str, option: str, environ: dict[str, str], assumed: str, variable: str
) -> None:
    found = planned(tmp_path, script, option, **environ)
    assert f"{assumed} is not here and is assumed" in found.assumptions
    assert all(variable in made.script.env for made in found.plans.values())
    assert len(found.plans) == 2


def test_what_nobody_asks_for_is_not_assumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, "print('no framework')\n")
    assert "none of tensorflow, mxnet and torch is installed here" in caught.value.message


def test_what_is_there_is_not_called_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frameworks, "is_there", lambda name, path: name == "mxnet")
    found = planned(tmp_path, "import mxnet\n")
    assert not [line for line in found.assumptions if "mxnet" in line]
