"""What containers are given: variables, mounts and limits, as the supervisor hears them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.local import tree
from muster.local.backends.base import Backend
from muster.local.backends.choice import named
from muster.local.backends.docker.options import DOCKER, DockerOptions
from muster.local.differences import differences
from muster.local.orders import Orders, orders_from_line, to_line
from muster.local.preparation import make_orders
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from tests.launcher.support.local.local_runs import make_request

FOLDER = RunFolder("/runs/x", "job-x", -1)
OPTIONS = DockerOptions("x:1", 1 << 30, 64 << 20, 1.5, True)


def request(**changes: object) -> Request:
    return make_request(**{"isolation": DOCKER, "docker": OPTIONS, **changes})


def backend(**changes: object) -> Backend:
    return named(DOCKER)(request(**changes), FOLDER)


def orders(caller: dict[str, str], **changes: object) -> Orders:
    return make_orders(backend(**changes), caller)


def environ(caller: dict[str, str], **changes: object) -> dict[str, str]:
    return dict(orders(caller, **changes).hosts[1].environ)


def test_of_the_caller_only_what_is_meant_for_train_reaches_a_container() -> None:
    caller = {
        "PATH": "/bin",
        "HOME": "/home/u",
        "PYTHONPATH": "/lib",
        "AWS_SECRET_ACCESS_KEY": "s",
        "MUSTER_STOP_GRACE_S": "2",
        "MUSTER_JOB_SECRET": "stale" * 8,
        "OMP_NUM_THREADS": "7",
    }
    found = environ(caller)
    assert not {"PATH", "HOME", "PYTHONPATH", "AWS_SECRET_ACCESS_KEY"} & found.keys()
    assert found["MUSTER_STOP_GRACE_S"] == "2"
    assert found["OMP_NUM_THREADS"] == "7"
    assert found["MUSTER_JOB_SECRET"] != caller["MUSTER_JOB_SECRET"]


def test_hosts_are_found_by_their_names_on_ports_of_their_own() -> None:
    assert backend().addresses() == {}
    names = {"MUSTER_HOST_ADDRESSES", "MUSTER_CONTROL_PORT", "MUSTER_STORE_PORT"}
    assert not names & environ({}).keys()
    assert backend().interface == "eth0"


def test_orders_survive_the_way_to_the_holder() -> None:
    made = orders({}, channels={"train": "/data"})._replace(lock=7)
    assert orders_from_line(to_line(made)) == made
    assert made.containers is not None
    assert made.containers[1:] == ("/runs/x", *OPTIONS)
    assert made.hosts[0].argv == ("train",)


def test_runs_have_ids_of_their_own() -> None:
    ids = {made.containers.run for made in (orders({}) for _ in range(8)) if made.containers}
    assert len(ids) == 8


@pytest.mark.parametrize(("cpus", "processes"), [(0.5, None), (1.0, None), (2.0, 2), (3.0, 2)])
def test_ranks_share_the_processors_of_their_container(cpus: float, processes: int | None) -> None:
    made = backend(docker=OPTIONS._replace(cpus=cpus), processes_per_host=processes, hosts=1)
    share = len(os.sched_getaffinity(0)) // (processes or 1)
    assert made.threads_per_rank() == max(1, min(share, int(cpus / (processes or 1))))


def test_channels_are_mounted_over_folders_not_links(tmp_path: Path) -> None:
    tree.write_tree(str(tmp_path), {}, {"train": "/data"}, mounted=True)
    place = tmp_path / "input/data/train"
    assert place.is_dir()
    assert not place.is_symlink()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (OPTIONS, "each host may take 1 GiB, 1.5 processors, 64 MiB in /dev/shm"),
        (DockerOptions("x"), "all memory, all processors, half of the memory in /dev/shm"),
    ],
)
def test_the_differences_name_the_limits(options: DockerOptions, words: str) -> None:
    said = "\n".join(differences(backend(docker=options, channels={"train": "/data"})))
    assert words in said
    assert "channels are read-only" in said
    assert "no internet" not in said
    assert "do not resolve" not in said
