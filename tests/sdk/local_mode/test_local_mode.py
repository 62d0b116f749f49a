"""Local mode of both SDKs for real: every combination of table.py, and every host looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.sdk.local_mode.conftest import Run
from tests.sdk.local_mode.jobs import Client, Job
from tests.sdk.local_mode.table import COVERING, Case, v2_cases, v3_cases
from tests.support.effort import effort
from tests.support.images import image

# the first may build the image and make the SDK's environment
pytestmark = [pytest.mark.dev, pytest.mark.timeout(1800)]


def cases(every: Iterable[Case]) -> list[Any]:
    """All with TEST_EFFORT, without it those that cover each SDK and each option."""
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.effort, *proven(case)])
        for case in every
        if case.name in COVERING or effort() > 1
    ]


def proven(case: Case) -> Iterator[pytest.MarkDecorator]:
    """What `check_warnings` proves with this job."""
    if case.name.startswith("v3") and case.ours:
        if case.hosts > 1:
            yield pytest.mark.promise("B12")
        if case.request["source_code"]:
            yield pytest.mark.promise("F03")


def check(job: Job, case: Case) -> None:
    """The SDK says that all is well, and so does every host and every rank."""
    assert job.error is None, job.story()
    assert len(job.hosts) == case.hosts, job.story()
    assert [host.code for host in job.hosts] == [0] * case.hosts, job.story()
    assert [host.failure for host in job.hosts] == [None] * case.hosts, job.story()
    job.check(case.ours)
    told = [(rank["rank"], rank["world"], rank["sum"]) for rank in job.ranks]
    if case.world > 1:
        assert told == [(rank, case.world, case.world) for rank in range(case.world)], job.story()
    else:
        assert told == [(0, 1, 1)] * case.hosts, job.story()
    for rank in job.ranks:
        assert rank["options"].pop("--lr") == "0.1"
        assert not rank["options"], "the script is told of its own hyperparameters only"
        assert rank["greeting"] == case.greeting
        assert rank["data"] == ["digits.txt"]


@pytest.mark.parametrize("case", cases(v2_cases()))
def test_an_estimator_of_sdk_v2_runs(v2: Client, run: Run, case: Case) -> None:
    check(run(v2, {"image": image("cpu"), **case.request}), case)


@pytest.mark.parametrize("case", cases(v3_cases()))
def test_a_model_trainer_of_sdk_v3_runs(v3: Client, run: Run, case: Case) -> None:
    job = run(v3, {"image": image("cpu"), **case.request})
    check(job, case)
    if case.ours:
        check_warnings(job, case)


def check_warnings(job: Job, case: Case) -> None:
    """What is special about local mode of v3 is told on every host."""
    wanted = set()
    if case.hosts > 1:
        wanted.add("network_interface_name: 'ethwe' not found; eth0 leads to")
    if case.request["source_code"]:
        wanted.add("PID 1 is the shell bash: a stop signal will not reach this job")
    for host in job.hosts:
        for text in wanted:
            assert text in host.log, f"{text!r} is missing on {host.name}:\n{host.log}"
