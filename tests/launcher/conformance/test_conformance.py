"""Every scenario through the incumbent and through ours: they differ where we mean to, only there.

The differences that we mean are listed beside the scenarios, with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.launcher.conformance.compare import differences, judge
from tests.launcher.conformance.intended import intended
from tests.launcher.conformance.isolated import why_not
from tests.launcher.conformance.launchers import OURS
from tests.launcher.conformance.scenario import Scenario
from tests.launcher.conformance.scenarios import ALL
from tests.launcher.conformance.suite import Suite


def _cases() -> Iterator[Any]:
    """Scenarios that both incumbents can run are held against them in turns; test-long holds each
    against both."""
    for number, scenario in enumerate(ALL):
        first = number % len(scenario.oracles)
        for place, oracle in enumerate(scenario.oracles):
            marks = [] if place == first else [pytest.mark.long]
            yield pytest.param(scenario, oracle, id=f"{scenario.name} [{oracle}]", marks=marks)


@pytest.mark.parametrize(("scenario", "oracle"), list(_cases()))
def test_ours_differs_from_the_incumbent_exactly_as_intended(
    suite: Suite, scenario: Scenario, oracle: str
) -> None:
    if scenario.isolated and why_not():
        pytest.skip(f"hosts cannot be isolated here: {why_not()}")
    theirs = suite.facets(scenario, oracle)
    ours = suite.facets(scenario, OURS)
    verdict = judge(differences(theirs, ours), intended(scenario, theirs, ours), oracle)
    if verdict.unmeant or verdict.gone:  # where the test is repeated, so are the runs
        suite.forget(scenario)
    assert not (verdict.unmeant or verdict.gone), f"\n{verdict}"


def test_scenarios_have_names_of_their_own_and_are_at_least_forty() -> None:
    names = {scenario.name for scenario in ALL}
    assert len(names) == len(ALL) >= 40
