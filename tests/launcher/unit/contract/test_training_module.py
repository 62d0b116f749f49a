"""SAGEMAKER_TRAINING_MODULE: whose function runs the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.contract.request.read import read_job
from muster.types.errors import ConfigError
from tests.support.mltree import write_tree


def test_a_function_of_the_image_needs_no_program(tmp_path: Path) -> None:
    environ = write_tree(tmp_path, {}, SAGEMAKER_TRAINING_MODULE="mine.training:main")
    job = read_job(environ)
    assert (job.function, job.program) == ("mine.training:main", "")


@pytest.mark.parametrize(
    "value",
    ["sagemaker_pytorch_container.training:main", "muster.contract.hook:main"],
)
def test_a_vendor_s_function_gives_way_with_one_line(tmp_path: Path, value: str) -> None:
    job = read_job(write_tree(tmp_path, SAGEMAKER_TRAINING_MODULE=value))
    assert job.function == ""
    assert [w for w in job.warnings if value in w]


@pytest.mark.parametrize("value", ["mine", "mine:", ":main", "a b:c", "os:system('x')"])
def test_what_is_no_function_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="expected module:function"):
        read_job(write_tree(tmp_path, SAGEMAKER_TRAINING_MODULE=value))
