"""The end of a job that rank 0 leads, and servers among the culprits: decisions with no process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from muster.run.base.procfs import is_busy, moved_bytes, processor_s
from muster.run.base.sockets import connected_elsewhere
from muster.run.channel import messages as m
from muster.run.job import events as e
from muster.run.job.hostlife import State
from muster.run.job.verdict import decide
from muster.types.outcome import Failed, RankFailure, Succeeded
from tests.launcher.support.peers.coordinated_job import Job, ended, facts, failure
from tests.launcher.support.peers.host_states import host_in

SERVER = m.HostError("UserScriptError", 137, "the server server-1 was killed by SIGKILL", "", "")
VICTIM = SERVER._replace(message="the server server-0 exited with 1", exit_code=1, victim=True)
IDLE = m.RankEnd(rank=1, status=-15, duration_s=9.0, stopped=True, forced=False)


def led(*helpers: int, by_first: bool = True) -> Job:
    """A job of three hosts whose plan is led by its first rank, and all ranks run."""
    job = Job(helpers=helpers)
    job.join()
    for host in job.hosts:
        job.hear(host, m.StagedHost(facts(host)))
    for host in job.hosts:
        job.hear(host, m.Ready("same", by_first))
    for host in job.hosts:
        job.hear(host, m.Registered(1))
    job.orders.clear()
    return job


def winding(job: Job) -> list[int | None]:
    return [host for host, message in job.orders if isinstance(message, m.WindDown)]


def test_when_the_first_rank_has_ended_well_the_hosts_that_still_work_are_told() -> None:
    job = led()
    job.hear(2, ended(2))
    assert winding(job) == []
    job.hear(0, ended(0))
    assert winding(job) == [1]
    assert job.outcome is None
    job.hear(1, m.HostEnded((IDLE,), (), {}))
    assert job.outcome is not None
    assert job.outcome == Succeeded(
        headline="all ranks exited 0 but 1 idle one, ended after rank 0"
    )


def test_hosts_outside_the_distribution_are_never_wound_down() -> None:
    job = led(2)
    job.hear(0, ended(0))
    assert winding(job) == [1]


def test_nothing_is_wound_down_where_ranks_are_equals_or_the_first_one_failed() -> None:
    equals = led(by_first=False)
    equals.hear(0, ended(0))
    assert winding(equals) == []
    failed = led()
    failed.hear(0, ended(0, failure(0, 5.0), status=7))
    assert winding(failed) == []
    stopped = led()
    stopped.hear(1, m.Stopping("SIGTERM"))
    stopped.hear(0, ended(0))
    assert winding(stopped) == []


def test_a_host_tells_the_leader_whether_its_plan_is_led_by_the_first_rank() -> None:
    life = host_in(State.PLAN)
    assert life.machine.on(e.Planned("d1gest", True), life.now) == [e.Send(m.Ready("d1gest", True))]


def test_a_server_that_dies_after_the_ranks_of_its_host_is_told_and_stops_the_others() -> None:
    life = host_in(State.ENDED)
    actions = life.machine.on(e.HostFailed(SERVER), life.now)
    assert actions == [e.Send(m.Report((), SERVER))]
    assert life.machine.state is State.ENDED
    job = led(by_first=False)
    job.hear(1, ended(1))
    job.hear(1, m.Report((), SERVER))
    assert len(job.told(m.Stop)) == 1
    for host in (0, 2):
        job.hear(host, ended(host))
    assert job.headline == "UserScriptError: the server server-1 was killed by SIGKILL (on algo-2)"


def test_a_dead_server_is_named_also_when_a_rank_that_lost_it_is_quicker() -> None:
    job = led(by_first=False)
    victim = failure(0, 5.0)._replace(peer_lost=True)
    job.hear(0, m.Report((victim,)))
    job.hear(1, m.Report((), SERVER))
    for host in job.hosts:
        job.hear(host, ended(host))
    assert "the server server-1 was killed" in job.headline


def verdict(failures: list[RankFailure], *errors: m.HostError) -> str:
    outcome = decide(failures, [], errors, "", [], 1.0)
    assert isinstance(outcome, Failed)
    return outcome.headline


def test_a_server_that_lost_a_rank_yields_to_that_rank_and_to_other_servers() -> None:
    own = failure(1, 5.0)
    assert "ValueError: x" in verdict([own], VICTIM)
    assert "ValueError: x" in verdict([own._replace(signalled=True)], VICTIM)
    assert "server-1" in verdict([], VICTIM, SERVER)
    assert "server-1" in verdict([own], SERVER)
    assert "server-0" in verdict([own._replace(peer_lost=True)], VICTIM)
    assert "server-0" in verdict([], VICTIM)


def test_what_a_process_does_is_seen_without_its_help() -> None:
    assert processor_s(os.getpid()) > 0
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        limit = time.monotonic() + 20
        while not (is_busy(busy.pid) and processor_s(busy.pid) > 0.2):
            assert time.monotonic() < limit
        busy.kill()
    assert processor_s(busy.pid) == 0.0
    assert not is_busy(busy.pid)


def test_bytes_are_counted_in_all_threads_and_in_children_that_ended() -> None:
    reads = "open('/dev/zero', 'rb', buffering=0).read(1 << 20)"
    script = (
        "import subprocess, sys, threading\n"
        f"thread = threading.Thread(target=lambda: {reads})\nthread.start()\nthread.join()\n"
        f"subprocess.run([sys.executable, '-c', {reads!r}])\n"
        "print('ready', flush=True)\nsys.stdin.read()\n"
    )
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert moved_bytes(process.pid) > 2 << 20
    assert moved_bytes(process.pid) == 0


CONNECTS = """
import os, socket, subprocess, sys
from muster.run.base.sockets import connected_elsewhere
for words in ("link set lo up", "addr add 10.9.8.7/32 dev lo"):
    subprocess.run(["ip", *words.split()], check=True)
server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
port = server.getsockname()[1]
for address in ("127.0.0.1", "10.9.8.7", "::1"):
    with socket.create_connection((address, port)):
        print(address, *(connected_elsewhere(os.getpid(), job) for job in ((), ("10.9.8.7",))))
        server.accept()[0].close()
with socket.create_connection(("10.9.8.7", port)) as left:
    server.accept()[0].close()
    left.recv(1)  # the peer has closed: an upload that is over
    print("closed", connected_elsewhere(os.getpid(), ()))
"""


def test_a_connection_to_anywhere_but_the_jobs_hosts_and_loopback_is_seen() -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*unshare, "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces and ip")
    words = [*unshare, sys.executable, "-c", CONNECTS]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    seen = {line.split(" ")[0]: line.split(" ")[1:] for line in lines}
    assert seen["127.0.0.1"] == ["", ""]
    assert seen["::1"] == ["", ""]
    outside, of_the_job = seen["10.9.8.7"]
    assert outside.startswith("10.9.8.7:") and of_the_job == ""
    assert seen["closed"] == [""]
    assert connected_elsewhere(0, ()) == ""
