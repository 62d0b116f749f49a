"""`muster run` on two hosts that have what each engine tells its own, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.cluster.test_run_elsewhere import ADDRESSES, Hosts, ended, said, secret
from tests.support.hosts import networks, skip_without_networks

SCRIPT = """\
import json, os
from muster.runtime import facts
names = ("SM_CURRENT_HOST_RANK", "SM_MASTER_ADDR", "TRAINING_JOB_NAME")
hosts = json.loads(os.environ["SM_HOSTS"])
told = [os.environ.get(name, "") for name in names] + [facts().attempt, hosts]
print("said", json.dumps(told), flush=True)
"""
FIRST, SECOND = ADDRESSES[4]
NAMELESS = ("batch", "main node last", "train job", "indexed job")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """They know the names h1 and h2."""
    skip_without_networks()
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "hostfile").write_text("h1 slots=2\nh2 slots=2\n")
    with networks(("h1", "h2"), whole=True, known=tmp_path / "hosts") as nets:
        yield Hosts(nets, tmp_path)


def batch(index: int, main: int) -> dict[str, str]:
    """The main node does not hear its own address."""
    told = {"NUM_NODES": "2", "NODE_INDEX": f"{index}", "MAIN_NODE_INDEX": f"{main}"}
    told |= {"ID": f"j-1#{index}", "ATTEMPT": "2"}
    if index != main:
        told["MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = ADDRESSES[4][main]
    return {f"AWS_BATCH_JOB_{name}": value for name, value in told.items()}


def environment(engine: str, index: int, folder: Path) -> dict[str, str]:
    """What a host of an engine has."""
    train_job = {"NNODES": "2", "NODE_RANK": f"{index}", "NPROC_PER_NODE": "auto"}
    train_job |= {"MASTER_ADDR": "h1", "MASTER_PORT": "29500", "MAX_RESTARTS": "5"}
    indexed = {"JOB_COMPLETION_INDEX": f"{index}"}
    return {
        "batch": batch(index, 0),
        "main node last": batch(index, 1),
        "train job": {f"PET_{name}": value for name, value in train_job.items()} | indexed,
        "indexed job": indexed | {"MUSTER_HOST_COUNT": "2", "MUSTER_LEADER": "h1"},
        "mpi job": {
            "OMPI_MCA_orte_default_hostfile": f"{folder}/hostfile",
            "HOSTNAME": f"h{index + 1}",
        },
        "skypilot": {
            "SKYPILOT_NODE_IPS": f"{FIRST}\n{SECOND}",
            "SKYPILOT_NODE_RANK": f"{index}",
            "SKYPILOT_TASK_ID": "sky-1",
        },
    }[engine]


@pytest.mark.parametrize(
    ("engine", "leader", "names", "job", "attempt"),
    [
        ("batch", FIRST, [FIRST, SECOND], "batch-j-1", 2),
        ("main node last", SECOND, [SECOND, FIRST], "batch-j-1", 2),
        ("train job", FIRST, [FIRST, SECOND], "h1", None),
        ("indexed job", FIRST, [FIRST, SECOND], "h1", None),
        ("mpi job", "h1", ["h1", "h2"], "h1", None),
        ("skypilot", FIRST, [FIRST, SECOND], "sky-1", None),
    ],
)
def test_hosts_of_an_engine_run_one_job(
    hosts: Hosts, engine: str, leader: str, names: list[str], job: str, attempt: int | None
) -> None:
    around = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MUSTER_") and name != "HOSTNAME"
    }
    command = [sys.executable, "-m", "muster", "run", f"{hosts.folder}/train.py", "--output"]
    command += [f"{hosts.folder}/out", *(secret(hosts) if engine in NAMELESS else ())]
    runs = [
        subprocess.Popen(
            [*hosts.networks.inside(f"h{index + 1}"), *command],
            env={**around, "MUSTER_JOIN_S": "30", **environment(engine, index, hosts.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in (0, 1)
    ]
    found = ended(*runs)
    assert [code for code, _, _ in found] == [0, 0], found
    ranks = ["1", "0"] if engine == "main node last" else ["0", "1"]
    assert [said(out) for _, out, _ in found] == [
        [rank, leader, job, attempt, names] for rank in ranks
    ]
