"""pytest's fixture `muster_job`, in every pytest beside which muster is installed.

Off with `-p no:muster`. Nothing of muster is imported before a test asks for the fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from muster.local.api.testing import TestJobs

DEADLINE_S = 120.0
_OPTION, _INI, _MARK = "--muster-job-timeout", "muster_job_timeout_s", "muster_job"


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"seconds that all jobs of a test have together ({DEADLINE_S:g})"
    parser.getgroup("muster").addoption(_OPTION, type=float, metavar="SECONDS", help=text)
    parser.addini(_INI, text, default=str(DEADLINE_S))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{_MARK}(timeout_s): seconds that the jobs of the test have together"
    )


@pytest.fixture
def muster_job(request: pytest.FixtureRequest, tmp_path: Path) -> TestJobs:
    """Runs a job as `muster.local.run` does, with its run folder below `tmp_path`, and returns its
    Result. What is known of each job stands in the text of a test that fails. A test whose jobs
    are not over in time fails, and none of them goes on."""
    from muster.local.api.testing import TestJobs

    return TestJobs(request.node, tmp_path, _deadline_s(request))


def _deadline_s(request: pytest.FixtureRequest) -> float:
    mark = request.node.get_closest_marker(_MARK)
    if mark is not None and (mark.args or "timeout_s" in mark.kwargs):
        return float(mark.kwargs.get("timeout_s", *mark.args))
    option = request.config.getoption(_OPTION)
    return float(request.config.getini(_INI) if option is None else option)
