"""Hosts without an IPv4 address: a network of their own in which even 127.0.0.1 is missing."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.support.mpi import TRAIN
from tests.support.waiting import wait_until

NET = f"fd00:{secrets.randbelow(60_000):x}::"
ADDRESSES = {"algo-1": f"{NET}1", "algo-2": f"{NET}2"}
UP = f"""
ip link set lo up && ip -4 address flush dev lo &&
ip address add {NET}1/128 dev lo && ip address add {NET}2/128 dev lo && exec sleep 600
"""
REDUCE = """\
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), "at", os.environ["MASTER_ADDR"])
dist.destroy_process_group()
"""
Make = Callable[..., Cluster]


@pytest.fixture
def network() -> Iterator[list[str]]:
    """What stands before a command that is to run without IPv4."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        pytest.skip(f"needs root{' and ' if missing else ''}{', '.join(missing)}")
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", UP])
    enter = ["nsenter", "-t", str(holder.pid), "-n"]

    def ready() -> bool:
        shown = subprocess.run(
            [*enter, "ip", "address"], capture_output=True, text=True, check=False
        )
        return f"{NET}2/" in shown.stdout and "inet " not in shown.stdout

    try:
        wait_until(ready, 10)
        yield enter
    finally:
        holder.kill()
        holder.wait()


@pytest.fixture
def pair(network: list[str], tmp_path: Path) -> Iterator[dict[str, list[str]]]:
    """The same for two hosts with a link of their own, which know each other by name."""
    names = tmp_path / "hosts"
    names.write_text("".join(f"{address} {name}\n" for name, address in ADDRESSES.items()))
    hold = f"mount --bind {names} /etc/hosts && exec sleep 600"
    holders = {
        name: subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", hold])
        for name in ADDRESSES
    }
    enter = {
        name: ["nsenter", "-t", str(holder.pid), "-n", "-m"] for name, holder in holders.items()
    }

    def ready() -> bool:
        shown = [
            subprocess.run([*one, "cat", "/etc/hosts"], capture_output=True, check=False).stdout
            for one in enter.values()
        ]
        return all(text == names.read_bytes() for text in shown)

    try:
        wait_until(ready, 10)
        ends = [f"eth0 netns {holder.pid}".split() for holder in holders.values()]
        link = ["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]]
        subprocess.run(link, check=True)
        for name, address in ADDRESSES.items():
            up = f"ip link set lo up && ip -4 address flush dev lo && ip link set eth0 up && \
                ip address add {address}/64 dev eth0 nodad"
            subprocess.run([*enter[name], "sh", "-c", up], check=True)
        yield enter
    finally:
        for holder in holders.values():
            holder.kill()
            holder.wait()


def started(job: Cluster, network: list[str]) -> Cluster:
    job.environ["MUSTER_HOST_ADDRESSES"] = ",".join(f"{n}={a}" for n, a in ADDRESSES.items())
    for name in job.names:
        job.start(name, command=[*network, *TRAIN])
    return job


def test_a_job_of_two_hosts_runs_over_ipv6_alone(cluster: Make, network: list[str]) -> None:
    job = cluster(REDUCE, hyperparameters={"sagemaker_torch_distributed_enabled": "true"})
    results = started(job, network).wait(90)
    assert {result.code for result in results.values()} == {0}, results["algo-1"].err
    for result in results.values():
        assert f"sum 2.0 at {ADDRESSES['algo-1']}" in result.out


def test_names_of_ipv6_addresses_lead_hosts_to_each_other(
    cluster: Make, pair: dict[str, list[str]]
) -> None:
    """Without a secret: the address that a host comes from must be one of its name's."""
    job = cluster(
        REDUCE,
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
        resources={"network_interface_name": "eth0"},
    )
    del job.environ["MUSTER_HOST_ADDRESSES"], job.environ["MUSTER_JOB_SECRET"]
    for name in job.names:
        job.start(name, command=[*pair[name], *TRAIN])
    results = job.wait(90)
    assert {result.code for result in results.values()} == {0}, results["algo-1"].err
    assert f"admitted by algo-1 address={ADDRESSES['algo-1']}" in results["algo-2"].err
    assert all("sum 2.0 at algo-1" in result.out for result in results.values())


def test_mpi_over_ipv6_alone_is_refused_on_every_host(cluster: Make, network: list[str]) -> None:
    job = cluster("pass\n", hyperparameters={"sagemaker_mpi_enabled": "true"})
    results = started(job, network).wait(30)
    assert {result.code for result in results.values()} == {100}
    assert {result.first_line for result in results.values()} == {
        "ConfigError: mpi: needs an IPv4 address on every host; with IPv6 alone: algo-1, algo-2"
    }
