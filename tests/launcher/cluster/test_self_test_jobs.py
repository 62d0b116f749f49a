"""`muster doctor --self-test` with torch, MPI and namespaces: every job has the right world."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from muster.commands.self_test import TRIALS


@pytest.mark.torch
def test_every_distribution_of_this_machine_has_the_right_world() -> None:
    command = [sys.executable, "-m", "muster", "doctor", "--self-test", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    checks = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    jobs = {name: one for name, one in checks.items() if name.startswith("job: ")}
    assert list(jobs) == [f"job: {trial.name}" for trial in TRIALS]
    assert not [one for one in jobs.values() if one["level"] != "OK"]
    assert jobs["job: torch_distributed, gloo"]["found"].startswith("2 ranks, sum 3 on 2 hosts")
