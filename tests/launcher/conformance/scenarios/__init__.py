"""Every scenario, by area."""

from __future__ import annotations

from tests.launcher.conformance.scenario import Scenario
from tests.launcher.conformance.scenarios import (
    arguments,
    badinput,
    cluster,
    code,
    distribution,
    endings,
    module,
    mpi,
)

ALL: tuple[Scenario, ...] = (
    *arguments.SCENARIOS,
    *code.SCENARIOS,
    *cluster.SCENARIOS,
    *endings.SCENARIOS,
    *badinput.SCENARIOS,
    *module.SCENARIOS,
    *distribution.SCENARIOS,
    *mpi.SCENARIOS,
)
