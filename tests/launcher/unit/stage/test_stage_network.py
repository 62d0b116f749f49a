"""Which interface a job takes, and who holds a port."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from muster.stage.machine.network import (
    can_bind,
    choose_interface,
    job_interface,
    port_holder,
    resolve,
    route_source,
)
from muster.types.cluster import Cluster
from muster.types.machine import Interface, Machine
from tests.launcher.support.jobs import make_cluster
from tests.launcher.support.steps import LogLines
from tests.support.ports import free_port

LO = Interface("lo", "127.0.0.1")
ETH0 = Interface("eth0", "10.0.0.1")
ETH1 = Interface("eth1", "10.9.0.1")


def machine(*interfaces: Interface) -> Machine:
    return Machine(2, 0, 0, False, interfaces, None, None)


def cluster(interface: str, hosts: int = 1, **addresses: str) -> Cluster:
    named = {name.replace("_", "-"): address for name, address in addresses.items()}
    return make_cluster(hosts)._replace(interface=interface, addresses=named)


@pytest.mark.promise("B12")
@pytest.mark.parametrize(
    ("asked", "here", "used", "reason"),
    [
        (cluster("eth0"), (LO, ETH0), ETH0, ""),
        (cluster("eth1", 2), (LO, ETH0, ETH1), ETH1, ""),
        (cluster("ethwe"), (LO, ETH0), LO, "not found"),
        (cluster("ethwe"), (), LO, "not found"),
        (cluster("ethwe", algo_1="10.9.0.1"), (LO, ETH0, ETH1), ETH1, "not found"),
        (
            cluster("eth0", algo_1="10.9.0.1"),
            (LO, ETH0, ETH1),
            ETH1,
            "does not hold this host's address",
        ),
        (cluster("eth0", algo_1="10.77.0.1"), (LO, ETH0), ETH0, ""),
        (
            cluster("lo", 2, algo_1="127.0.0.2", algo_2="127.0.0.3"),
            (LO, ETH0),
            Interface("lo", "127.0.0.2"),
            "",
        ),
        (
            cluster("eth0", 2, algo_1="127.0.0.1", algo_2="127.0.0.2"),
            (LO, ETH0),
            LO,
            "does not hold this host's address",
        ),
        (cluster("ethwe", 2, algo_2="127.0.0.9"), (LO, ETH0), LO, "not found; lo leads to algo-2"),
        (cluster("ethwe", 2), (LO, ETH0, ETH1), ETH0, "not found; eth0 is a guess"),
        (cluster("ethwe", 2), (LO,), LO, "not found"),
    ],
)
def test_the_interface_that_is_used(
    asked: Cluster,
    here: tuple[Interface, ...],
    used: Interface,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _nobody_is_known)
    assert choose_interface(asked, machine(*here)) == (used, reason)


def _nobody_is_known(*_: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.promise("B12")
def test_another_interface_than_the_named_one_is_logged() -> None:
    log = LogLines()
    assert job_interface(cluster("ethwe"), machine(LO, ETH0), log) == LO
    assert log.lines == [
        "WARNING network network_interface_name: 'ethwe' not found"
        " used=lo address=127.0.0.1 have=lo,eth0"
    ]


def test_the_named_interface_is_not_worth_a_line() -> None:
    log = LogLines()
    job_interface(cluster("eth0"), machine(LO, ETH0), log)
    assert log.lines == []


def test_names_resolve_by_the_engines_addresses_first() -> None:
    assert resolve("localhost", {"localhost": "10.1.1.1"}) == ["10.1.1.1"]
    assert resolve("127.0.0.5", {}) == ["127.0.0.5"]
    assert resolve("localhost", {}) == ["127.0.0.1"]


@pytest.mark.parametrize("name", ["no such name", "x" * 300, "a..b", "\udcff"])
def test_a_name_that_cannot_resolve_is_no_error(name: str) -> None:
    assert resolve(name, {}) == []


def test_the_way_to_loopback_is_loopback() -> None:
    assert route_source("127.0.0.7") == "127.0.0.1"
    assert route_source("256.1.1.1") == ""


@pytest.mark.promise("F26")
@pytest.mark.parametrize("asked", ["127.0.0.1", "0.0.0.0", ""])
@pytest.mark.parametrize("held", ["127.0.0.1", "0.0.0.0"])
def test_the_holder_of_a_port_is_named(held: str, asked: str) -> None:
    with socket.socket() as sock:
        port = free_port()  # none that a connection of another test is given afterwards
        sock.bind((held, port))
        sock.listen()
        with open("/proc/self/comm", encoding="utf-8") as file:
            name = file.read().strip()
        assert port_holder(asked, port) == f"PID {os.getpid()} ({name})"
    assert port_holder(asked, port) is None


@pytest.mark.promise("F26")
def test_a_port_of_another_address_is_free() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.2", 0))
        sock.listen()
        assert port_holder("127.0.0.3", sock.getsockname()[1]) is None


@pytest.mark.promise("F26")
def test_a_port_held_on_all_version_6_addresses_is_held() -> None:
    try:
        sock = socket.socket(socket.AF_INET6)
        sock.bind(("::", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with sock:
        sock.listen()
        holder = port_holder("127.0.0.1", sock.getsockname()[1])
        assert holder is not None
        assert str(os.getpid()) in holder


@pytest.mark.promise("F26")
def test_a_holder_out_of_sight_is_still_a_holder(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "7" / "fd").mkdir(parents=True)
    row = "0: 0100007F:1E61 00000000:0000 0A 0:0 00:0 00 0 0 4711 1"
    (tmp_path / "net/tcp").write_text(f"  sl  local_address\n   {row}\n")
    assert port_holder("127.0.0.1", 7777, str(tmp_path)) == "another user's process"
    assert port_holder("127.0.0.1", 7776, str(tmp_path)) is None


@pytest.mark.promise("F26")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_port_can_be_bound_unless_somebody_listens(
    family: socket.AddressFamily, everywhere: bool
) -> None:
    """On whatever address: a server of torch listens on all of them."""
    loopback, port = "127.0.0.1" if family == socket.AF_INET else "::1", free_port()
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("" if everywhere else loopback, port))
        except OSError:
            pytest.skip("this machine has no IPv6")
        sock.listen(1)
        assert not can_bind(port)
    assert can_bind(port)


def test_who_holds_a_port_of_an_ipv6_address_is_named() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert (port_holder("::1", port) or "").startswith(f"PID {os.getpid()} (")
        assert port_holder("::2", port) is None
        assert port_holder("127.0.0.1", port) is None


def test_the_route_of_an_ipv6_address_is_known() -> None:
    assert route_source("::1") == "::1"
