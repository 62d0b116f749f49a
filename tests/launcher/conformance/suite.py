"""Runs scenarios two at a time in the background and hands each test the facets that it needs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.launcher.conformance.facets import facets
from tests.launcher.conformance.launchers import Launcher, launcher
from tests.launcher.conformance.runner import run
from tests.launcher.conformance.scenario import Scenario
from tests.launcher.conformance.wheels import make_wheels

_AT_ONCE = 2
_LIMIT_S = 100.0


class Suite:
    """All runs of a test session. A run starts as soon as there is room."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wheels = make_wheels(folder / "wheels")
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._runs: dict[tuple[str, str], Future[dict[str, str]]] = {}
        self._numbers = itertools.count(1)

    def start(self, wanted: Iterable[tuple[Scenario, str]]) -> None:
        """Puts runs into the queue, in order; the launchers must be available."""
        for scenario, name in wanted:
            key = (scenario.name, name)
            if key not in self._runs:
                self._runs[key] = self._pool.submit(self._run, scenario, launcher(name))

    def facets(self, scenario: Scenario, name: str) -> dict[str, str]:
        """The facets of one run; raises what the run raised, and then forgets it."""
        self.start([(scenario, name)])
        try:
            return self._runs[scenario.name, name].result(_LIMIT_S)
        except BaseException:
            self.forget(scenario)
            raise

    def forget(self, scenario: Scenario) -> None:
        """Whoever asks for its facets again has it run again."""
        for key in [key for key in self._runs if key[0] == scenario.name]:
            self._runs.pop(key).cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, scenario: Scenario, launcher: Launcher) -> dict[str, str]:
        # no ':' in the name: the folder is an entry of PATH
        name = re.sub(r"\W+", "-", scenario.name)
        folder = self._folder / launcher.name / f"{name}-{next(self._numbers)}"
        folder.mkdir(parents=True)
        return facets(run(scenario, launcher, folder, self._wheels))
