"""A debugger at a rank of `muster local --debug`, as an editor attaches it."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.launcher.support.local.local_runs import LocalRun
from tests.support.dap import Debugger
from tests.support.waiting import wait_until


def attached(run: LocalRun, who: str = "rank 0") -> tuple[Debugger, dict[str, Any]]:
    """A debugger and the configuration of the run's launch.json, once the rank waits."""
    said = who + r" waits for a debugger on 127\.0\.0\.1:(\d+)"
    wait_until(
        lambda: bool(re.search(said, run.err)) or run.process.poll() is not None,
        60,  # a container has to start first
        lambda: run.err,
    )
    found = re.search(said, run.err)
    assert found, run.err
    (configuration,) = json.loads((run.folder / "launch.json").read_text())["configurations"]
    assert configuration["connect"] == {"host": "127.0.0.1", "port": int(found[1])}
    return Debugger(int(found[1])), configuration
