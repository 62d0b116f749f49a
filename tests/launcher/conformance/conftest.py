"""The runs behind the conformance tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launcher.conformance.isolated import why_not
from tests.launcher.conformance.launchers import OURS, launcher
from tests.launcher.conformance.scenario import BARE
from tests.launcher.conformance.suite import Suite
from tests.support.venvs import UnavailableError


@pytest.fixture(scope="session")
def suite(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Suite]:
    """All selected scenarios, started in the order of the tests."""
    try:
        launcher(BARE)
    except UnavailableError as reason:
        pytest.skip(f"the incumbent cannot be installed here: {reason}")
    runs = Suite(tmp_path_factory.mktemp("conformance"))
    for item in request.session.items:
        values = getattr(item, "callspec", None)
        if values is not None and "scenario" in values.params:
            scenario, oracle = values.params["scenario"], values.params["oracle"]
            if not (scenario.isolated and why_not()):
                runs.start([(scenario, oracle), (scenario, OURS)])
    yield runs
    runs.close()
