"""A second host that fails fails the job, and whoever watches the SDK is told why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.sdk.local_mode.conftest import Run
from tests.sdk.local_mode.jobs import Client, Job
from tests.sdk.local_mode.table import CODE
from tests.support.images import image

pytestmark = [pytest.mark.dev, pytest.mark.effort, pytest.mark.timeout(1800)]
WHY = "ValueError: bad batch on host 1"
COLOURS = re.compile(r"\x1b\[\d*m")  # of compose, before every line
FAIL = {"fail": 1}  # the place of the host whose ranks fail at the end


def check(job: Job) -> None:
    """The SDK raises, both hosts have the code and the failure, and the block is on the screen."""
    assert job.error is not None and "code: 1" in job.error, job.story()
    assert [host.code for host in job.hosts] == [1, 1], job.story()
    second = job.hosts[1].name
    for host in job.hosts:
        first = (host.failure or b"").decode().partition("\n")[0]
        assert first.startswith("UserScriptError: ") and WHY in first, job.story()
        assert second in first, first
    job.check()
    said = [line.partition("| ")[2] for line in COLOURS.sub("", job.out).splitlines()]
    begins = [n for n, line in enumerate(said) if line.startswith(f"FAILED {second} rank ")]
    assert len(begins) == 1 and WHY in said[begins[0]], job.out[-6000:]
    # the block is whole, up to its last line: only then may the leader be stopped
    assert "exit code 1" in said[begins[0] :], job.out[-6000:]


@pytest.mark.promise("F31")
def test_it_fails_an_estimator_of_sdk_v2(v2: Client, run: Run) -> None:
    request: dict[str, Any] = {
        "class": "PyTorch", "hosts": 2, "hyperparameters": FAIL,
        "arguments": {"entry_point": "job.py", "source_dir": CODE},
    }  # fmt: skip
    check(run(v2, {"image": image("cpu"), **request}))


@pytest.mark.promise("F31")
def test_it_fails_a_model_trainer_of_sdk_v3(v3: Client, run: Run) -> None:
    request = {
        "hosts": 2, "hyperparameters": FAIL,
        "source_code": {"source_dir": CODE, "entry_script": "job.py"},
        "distributed": {"class": "Muster", "arguments": {"distribution": "smddp"}},
    }  # fmt: skip
    check(run(v3, {"image": image("cpu"), **request}))
