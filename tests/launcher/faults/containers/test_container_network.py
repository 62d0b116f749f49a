"""Containers that come late, die, freeze or are cut off; names that lie (reliability.md 4.2)."""

from __future__ import annotations

import secrets
import signal

import pytest

from tests.launcher.support.cluster import Result, lines
from tests.launcher.support.containers import RUNS, Containers, Make
from tests.support.waiting import wait_until

PORT = 7776  # of the leader, when no variable gives another
SCRIPT = "print('trained', flush=True)\n"


def check_trained(job: Containers) -> None:
    for result in job.wait(30).values():
        assert result.code == 0, result.err
        assert result.out == "trained\n"


def check_lost(results: dict[str, Result], *who: str, lost: str) -> None:
    """These hosts ended because they lost that one."""
    for name in who:
        assert results[name].code == 102, results[name].err
        assert results[name].first_line.startswith(f"PeerError: lost {lost}")


# joining


@pytest.mark.promise("F20")
def test_a_follower_that_is_started_later_is_waited_for(containers: Make) -> None:
    job = containers(SCRIPT)
    job.start("algo-1")
    wait_until(lambda: listens(job, "algo-1"), 20, "the leader never listened")
    assert job.resolves("algo-1", "algo-2") == ""
    job.start("algo-2")
    check_trained(job)


@pytest.mark.promise("F20", "F22")
def test_a_leader_that_is_started_later_is_found_then(containers: Make) -> None:
    job = containers(SCRIPT)
    job.start("algo-2")
    job.wait_for("algo-2", "looking for the leader", "err")
    assert job.resolves("algo-2", "algo-1") == ""
    job.start("algo-1")
    check_trained(job)


@pytest.mark.promise("F22")
def test_a_leader_that_gets_its_name_late_is_found_then(containers: Make) -> None:
    """It runs and listens all the time; only its name is missing."""
    job = containers(SCRIPT)
    net = f"198.18.{secrets.randbelow(256)}"  # for tests of networks: nothing else is there
    job.make_network("--internal", f"--subnet={net}.0/24")
    job.create("algo-1", f"--ip={net}.9", alias="")
    job.start()
    job.wait_for("algo-2", "looking for the leader", "err")
    wait_until(lambda: listens(job, "algo-1"), 20, "the leader never listened")
    assert job.resolves("algo-2", "algo-1") == ""
    assert not lines(job.text("algo-2", "err"), "admitted")
    job.disconnect("algo-1")
    job.connect("algo-1", f"--ip={net}.9", "--alias=algo-1")
    check_trained(job)


STRANGER = f"""\
import socket
with socket.create_server(("", {PORT})) as server:
    while True:
        connection, (address, _) = server.accept()
        print("asked", address, flush=True)
        connection.sendall(b"220 another service, good day\\r\\n")
        connection.close()
"""


@pytest.mark.promise("F23")
def test_a_name_that_leads_to_another_service_is_named_at_the_join_limit(
    containers: Make,
) -> None:
    job = containers(SCRIPT, environ={"MUSTER_JOIN_S": "2"})
    job.start_beside("stranger", STRANGER, alias="algo-1")
    where = job.address("stranger")
    job.start("algo-2")
    result = job.wait(15)["algo-2"]
    assert "asked" in job.said_beside("stranger")
    assert (result.code, result.out) == (102, "")
    assert result.first_line.startswith(
        "ClusterError: the leader algo-1 could not be joined within 2 s ("
    )
    assert f"{where}:{PORT}" in result.first_line


@pytest.mark.promise("F23")
def test_a_leader_is_found_behind_a_name_that_it_shares_with_another_service(
    containers: Make,
) -> None:
    job = containers(SCRIPT)
    job.start_beside("stranger", STRANGER, alias="algo-1")
    job.start("algo-2")
    wait_until(lambda: "asked" in job.said_beside("stranger"), 20, "nobody was asked")
    job.start("algo-1")
    check_trained(job)


# losing each other


@pytest.mark.promise("F27")
@pytest.mark.parametrize("which", ["algo-1", "algo-3"])
def test_a_container_that_is_killed_is_named_by_all_others(containers: Make, which: str) -> None:
    job = containers(RUNS, hosts=3)
    job.start_ranks()
    job.signal(which, signal.SIGKILL)
    results = job.wait(40)
    assert job.state(which)["ExitCode"] == 137
    others = [name for name in job.names if name != which]
    check_lost(results, *others, lost=which)
    assert results[which].failure == ""


@pytest.mark.promise("F28")
def test_a_short_pause_is_survived_with_one_warning(containers: Make) -> None:
    job = containers(RUNS, environ={"MUSTER_LOST_AFTER_S": "8"})
    job.start_ranks()
    with job.paused("algo-2"):
        assert job.state("algo-2")["Paused"]
        job.wait_for("algo-1", "nothing heard from algo-2", "err")
    job.wait_for("algo-1", "algo-2 is heard again", "err")
    job.let_go()
    results = job.wait(20)
    for result in results.values():
        assert result.code == 0, result.err
        assert "PeerError" not in result.err
    assert len(lines(results["algo-1"].err, "nothing heard from algo-2")) == 1


@pytest.mark.promise("F28")
def test_a_long_pause_is_a_loss_and_whoever_was_paused_knows_it_then(containers: Make) -> None:
    job = containers(RUNS, hosts=3)
    job.expect(apart=frozenset({"algo-2"}))
    job.start_ranks()
    with job.paused("algo-2"):
        for name in ("algo-1", "algo-3"):
            job.wait_for_end(name)
            assert job.result(name).first_line.startswith(
                "PeerError: lost algo-2 (no heartbeat for "
            )
        assert not job.has_ended("algo-2")
    results = job.wait(20)
    check_lost(results, "algo-1", "algo-3", lost="algo-2")
    check_lost(results, "algo-2", lost="algo-")


@pytest.mark.promise("F29")
def test_a_container_that_is_cut_off_and_all_others_name_what_they_lost(containers: Make) -> None:
    job = containers(RUNS, hosts=3)
    job.expect(apart=frozenset({"algo-2"}))
    job.start_ranks()
    job.disconnect("algo-2")
    assert "eth0" not in job.inside("algo-2", "cat", "/proc/net/dev")
    results = job.wait(40)
    check_lost(results, "algo-1", "algo-3", lost="algo-2")
    check_lost(results, "algo-2", lost="algo-1")


def listens(job: Containers, name: str) -> bool:
    """Whether something in the container listens on the control port."""
    if job.state(name)["Status"] != "running":
        return False
    sockets = [line.split() for line in job.inside(name, "cat", "/proc/net/tcp").splitlines()]
    return any(s[1].endswith(f":{PORT:04X}") and s[3] == "0A" for s in sockets)


# what others may knock at

SCAN = """\
import errno, selectors, socket, sys
def open_ports(host):
    address, found = socket.gethostbyname(host), []
    for first in range(1, 65536, 512):  # so many at a time
        with selectors.DefaultSelector() as waiting:
            for port in range(first, min(first + 512, 65536)):
                sock = socket.socket()
                sock.setblocking(False)
                if sock.connect_ex((address, port)) in (0, errno.EINPROGRESS):
                    waiting.register(sock, selectors.EVENT_WRITE, port)
            while waiting.get_map():
                ready = waiting.select(5)
                assert ready, "no answer from " + host
                for key, _ in ready:
                    if not key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                        found.append(key.data)
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()
    return found
for host in ("algo-1", "algo-2"):
    print("open", host, *open_ports(host), flush=True)
print("scanned", flush=True)
"""


@pytest.mark.promise("S13")
def test_a_stranger_finds_no_port_but_the_leader_s_control_port(containers: Make) -> None:
    """Every TCP port of both hosts, from a third container, while the script runs."""
    job = containers(RUNS)
    job.start_ranks()
    job.start_beside("other", SCAN, alias="other")
    wait_until(lambda: "scanned" in job.said_beside("other"), 60, lambda: job.said_beside("other"))
    assert job.said_beside("other").splitlines()[:2] == [f"open algo-1 {PORT}", "open algo-2"]
    job.let_go()
    assert {result.code for result in job.wait(30).values()} == {0}
