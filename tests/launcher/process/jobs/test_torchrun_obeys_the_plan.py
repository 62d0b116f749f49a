"""Real torchruns start what the plan says: the rank table and the list of variables are theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.plan import plan
from muster.plan.script import RANK_SHIM
from muster.stage.machine.programs import find_tools
from muster.types.distribution import Torchrun
from muster.types.job import Settings
from tests.launcher.support.jobs import launcher_of, make_cluster, make_facts, make_job, make_staged
from tests.support.ports import free_port

pytestmark = pytest.mark.torch

RECORDER = """\
import json, os, sys
with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "x") as file:
    json.dump(dict(os.environ), file)
"""
DEVICES = (2, 1)  # per host: two groups, so that torchrun has to sum up unequal counts


@pytest.mark.slow
def test_two_hosts_of_unequal_size_make_the_ranks_of_the_table(tmp_path: Path) -> None:
    recorder = tmp_path / "recorder.py"
    recorder.write_text(RECORDER)
    environ = {"PATH": os.environ["PATH"], "PET_NNODES": "7", "RANK": "9", "LC_ALL": "C.UTF-8"}
    cluster = make_cluster(2, groups={"big": (0,), "small": (1,)})._replace(distribution=(0, 1))
    facts = tuple(
        fact._replace(address="127.0.0.1", interface="lo", gpus=gpus, resolves_leader=False)
        for fact, gpus in zip(make_facts(2), DEVICES, strict=True)
    )
    settings = Settings(store_port=free_port(), control_port=1)
    running = []
    for current in (1, 0):  # the follower first: it must wait for the leader
        job = make_job(
            distribution=Torchrun(),
            cluster=cluster._replace(current=current),
            settings=settings,
            base=str(tmp_path),
        )
        staged = make_staged(job, python=sys.executable, environ=environ)
        made = plan(job, facts, staged, find_tools(environ, sys.executable))
        end = launcher_of(made).argv.index(RANK_SHIM)
        argv = [*launcher_of(made).argv[:end], str(recorder), str(tmp_path)]
        running.append(subprocess.Popen(argv, env=launcher_of(made).env, cwd=tmp_path))
    try:
        assert [process.wait(60) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for slot in made.ranks:
        got = json.loads((tmp_path / f"{slot.rank}.json").read_text())
        assert got["LOCAL_RANK"] == str(slot.local_rank)
        assert got["GROUP_RANK"] == str(slot.host)
        assert got["WORLD_SIZE"] == str(made.world_size) == "3"
        assert got["LOCAL_WORLD_SIZE"] == str(DEVICES[slot.host])
        assert (got["MASTER_ADDR"], got["MASTER_PORT"]) == ("127.0.0.1", str(settings.store_port))
        made_by_torchrun = {
            name for name in got if name not in made.script.env and name != "LC_CTYPE"
        }
        assert {name for name in made_by_torchrun if not listed(name, made.made_at_start)} == set()


def listed(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the names, or of the prefixes ending in `*`, fits."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )
