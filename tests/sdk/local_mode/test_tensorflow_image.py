"""A bring-your-own image: TensorFlow on our base, with TensorFlow's estimator and its servers."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.images.engine import outward
from scripts.images.inputs import find_inputs
from tests.sdk.local_mode.conftest import Run
from tests.sdk.local_mode.jobs import Client
from tests.support.effort import effort
from tests.support.images import LABEL, RUN, client, image
from tests.support.venvs import CHECKOUT

pytestmark = [pytest.mark.dev, pytest.mark.effort, pytest.mark.timeout(1800)]
EXAMPLES = CHECKOUT / "examples"
BUILD_S = 1200.0  # 300 MB of wheels, on a machine that others keep busy


@pytest.fixture(scope="module")
def tensorflow() -> Iterator[str]:
    """The image of examples/tensorflow-image, on the base of this checkout."""
    if effort() == 1:
        pytest.skip("300 MB of wheels: make test-long builds it")
    base, docker = image("base"), client()
    reference = f"muster-test-{RUN}:tensorflow"
    words = ["buildx", "build", "--load"] if docker.buildx else ["build"]
    code = docker.show(
        *words,
        *find_inputs(docker, os.environ).arguments(),
        *outward(docker),
        f"--build-arg=MUSTER_BASE={base}",
        f"--label={LABEL}={RUN}",
        f"--tag={reference}",
        str(EXAMPLES / "tensorflow-image"),
        limit_s=BUILD_S,
    )
    assert code == 0, "the example's image was not built"
    yield reference
    docker.run("rmi", "--force", reference)


def test_the_tensorflow_estimator_trains_on_parameter_servers(
    v2: Client, run: Run, tensorflow: str, tmp_path: Path
) -> None:
    source = shutil.copytree(EXAMPLES / "parameter_server_tensorflow", tmp_path / "source")
    arguments: dict[str, Any] = {
        "entry_point": "train.py",
        "source_dir": str(source),
        "model_dir": False,
        "distribution": {"parameter_server": {"enabled": True}},
        "environment": {"MUSTER_IDLE_S": "5"},
    }
    job = run(
        v2,
        {
            "class": "TensorFlow", "image": tensorflow, "hosts": 2, "arguments": arguments,
            "hyperparameters": {"epochs": 5}, "environment": {"TF_CPP_MIN_LOG_LEVEL": "2"},
        },
    )  # fmt: skip
    assert job.error is None, job.story()
    assert [host.code for host in job.hosts] == [0, 0], job.story()
    assert [host.failure for host in job.hosts] == [None, None], job.story()
    job.check()
    said = "\n".join(host.log for host in job.hosts)
    assert "chief: 1 workers, 2 servers" in said, job.story()
    found = re.search(r"final loss=\S+ accuracy=(\S+)", said)
    assert found and float(found[1]) > 0.9, job.story()
