"""Names of containers that come late or lie, and what a stranger finds open."""

from __future__ import annotations

import secrets

import pytest

from tests.launcher.support.cluster import lines
from tests.launcher.support.containers import RUNS, Containers, Make
from tests.support.waiting import wait_until

PORT = 7776  # of the leader, when no variable gives another
SCRIPT = "print('trained', flush=True)\n"


def check_trained(job: Containers) -> None:
    for result in job.wait(30).values():
        assert result.code == 0, result.err
        assert result.out == "trained\n"


# joining


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
def test_a_leader_is_found_behind_a_name_that_it_shares_with_another_service(
    containers: Make,
) -> None:
    job = containers(SCRIPT)
    job.start_beside("stranger", STRANGER, alias="algo-1")
    job.start("algo-2")
    wait_until(lambda: "asked" in job.said_beside("stranger"), 20, "nobody was asked")
    job.start("algo-1")
    check_trained(job)


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
