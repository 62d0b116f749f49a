"""Networks that break, slow down or lie, between hosts of their own.

Hosts are network namespaces; each test first proves that its fault has landed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.local.local_runs import LocalRun, runs
from tests.launcher.support.local.namespaces import SCRIPT, Host, Rule, control_port, link_state
from tests.support.mpi import VERSIONS, launched_by
from tests.support.waiting import wait_until, within

LOST_AFTER_S = 3.0
# a connection may take its time to come back, and silence is not told early on a busy machine
PATIENT = {"MUSTER_RECONNECT_S": "10", "MUSTER_LOST_AFTER_S": "10"}
DEFAULTS = {"MUSTER_HEARTBEAT_S": "1", "MUSTER_RECONNECT_S": "5", "MUSTER_LOST_AFTER_S": "30"}
# after a loss TCP sends again at about 0.2, 0.6, 1.4, 3.1, 6.3 and 12.7 s: healed between two of
# them, and lost before the later one to whoever waits for TCP
HEALS_S, TCP_IS_LATE = 3.6, {"MUSTER_RECONNECT_S": "10", "MUSTER_LOST_AFTER_S": "6"}
HEALS_LATER_S = 7.0  # than `leave_s`
# who of two hosts is deaf: both, the leader, the follower
DIRECTIONS = (slice(0, 2), slice(0, 1), slice(1, 2))
Up = Callable[..., tuple[LocalRun, list[Host]]]
under_mpirun_too = pytest.mark.parametrize("up", ["", *VERSIONS], indirect=True)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may reach into the hosts' networks")
    missing = [name for name in ("nsenter", "ip", "iptables", "tc") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    reason = why_not_isolated(str(tmp_path_factory.mktemp("trial")))
    if reason:
        pytest.skip(f"this machine allows no namespaces: {reason}")


@pytest.fixture
def up(tools: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    """Starts a run, `up(hosts=2, MUSTER_LOST_AFTER_S="9")`, and waits until its ranks are up.

    One rank on each host: started by its supervisor, or by mpirun of the version in `param`.
    """
    launch = launched_by(getattr(request, "param", ""))
    with runs() as start:
        begun: list[Host] = []

        def begin(hosts: int = 2, script: str = SCRIPT, **environ: str) -> object:
            (tmp_path / "train.py").write_text(launch.prelude + script)
            settings = {"MUSTER_LOST_AFTER_S": f"{LOST_AFTER_S:g}", **launch.environ, **environ}
            argv = ["train.py", "--hosts", str(hosts), "--isolation", "netns", "--verbose"]
            argv += launch.argv
            run = start(tmp_path, argv, environ=settings)
            run.wait_ready(hosts)
            found = [Host(run, f"algo-{number + 1}") for number in range(hosts)]
            begun.extend(found)
            return run, found

        yield begin  # type: ignore[misc]
        let_go(begun)  # what a failed test left running or frozen
        for host in begun:
            host.thaw()


def let_go(hosts: list[Host]) -> None:
    for host in hosts:
        host.release()


def check_nothing_was_lost(run: LocalRun, hosts: list[Host]) -> None:
    """The job ends as if there had been no fault."""
    let_go(hosts)
    result = run.wait(30)
    assert result.code == 0, result.err
    assert result.summary["outcome"]["result"] == "Succeeded"
    assert [rank["status"] for rank in result.summary["ranks"]] == [0] * len(hosts)
    assert " lost " not in result.err
    assert "PeerError" not in result.err


@contextmanager
def deaf(hosts: list[Host]) -> Iterator[None]:
    """What is sent to these hosts is lost on its way while the block lasts."""
    with ExitStack() as rules:
        words = ("INPUT", "!", "-i", "lo", "-p", "tcp", "-j", "DROP")
        dropping = [rules.enter_context(host.rule(*words)) for host in hosts]
        yield
        assert sum(rule.hits() for rule in dropping) >= 3  # a leader that hears nothing is silent


def outage(hosts: list[Host], seconds: float) -> None:
    """They are deaf for so long."""
    with deaf(hosts):
        healed_s = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= healed_s, seconds + 5)


def warnings_about(run: LocalRun, text: str) -> list[str]:
    return [line for line in run.err.splitlines() if " WARNING " in line and text in line]


@under_mpirun_too
@pytest.mark.promise("F28")
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_pause_shorter_than_the_limit_is_survived_with_one_warning(up: Up, frozen: int) -> None:
    run, hosts = up(MUSTER_LOST_AFTER_S="5")
    hosts[frozen].freeze()
    name = hosts[frozen].name
    wait_until(lambda: bool(warnings_about(run, f"nothing heard from {name}")), 4, lambda: run.err)
    hosts[frozen].thaw()
    wait_until(lambda: f"{name} is heard again" in run.err, 5, lambda: run.err)
    check_nothing_was_lost(run, hosts)
    assert len(warnings_about(run, f"nothing heard from {name}")) == 1


@under_mpirun_too
@pytest.mark.promise("F28")
def test_a_host_that_stays_frozen_is_lost_and_knows_it_when_it_thaws(up: Up) -> None:
    run, hosts = up(hosts=3)
    run.expect(apart=frozenset({"algo-2"}))
    hosts[1].freeze()
    began = time.monotonic()
    others = [hosts[0], hosts[2]]
    wait_until(lambda: all(host.failure and host.outcome for host in others), 15, lambda: run.err)
    assert LOST_AFTER_S - 1 < time.monotonic() - began < LOST_AFTER_S + within(6)
    for host in others:
        assert host.outcome == ("Failed", 102)
        assert host.failure.startswith("PeerError: lost algo-2 (no heartbeat for ")
    assert hosts[1].outcome is None
    hosts[1].thaw()
    result = run.wait(15)
    assert result.code == 102, result.err
    assert hosts[1].outcome == ("Failed", 102)
    assert hosts[1].failure.startswith("PeerError: lost algo-")


@under_mpirun_too
@pytest.mark.promise("F28")
def test_a_leader_that_stays_frozen_is_lost_to_its_followers(up: Up) -> None:
    run, hosts = up(hosts=3)
    run.expect(apart=frozenset({"algo-1"}))
    hosts[0].freeze()
    wait_until(lambda: all(one.failure and one.outcome for one in hosts[1:]), 15, lambda: run.err)
    for host in hosts[1:]:
        assert host.outcome == ("Failed", 102)
        assert host.failure.startswith("PeerError: lost algo-1 (no heartbeat for ")
    hosts[0].thaw()
    assert run.wait(20).code == 102
    assert hosts[0].failure.startswith("PeerError: lost algo-")


@under_mpirun_too
@pytest.mark.promise("F27")
def test_a_host_that_dies_with_all_its_processes_is_lost_to_the_others(up: Up) -> None:
    run, hosts = up(hosts=3)
    os.kill(hosts[1].pid, signal.SIGKILL)
    began = time.monotonic()
    result = run.wait(20)
    assert time.monotonic() - began < LOST_AFTER_S + within(6)
    assert result.code == 102, result.err
    for host in (hosts[0], hosts[2]):
        assert host.outcome == ("Failed", 102)
        assert host.failure.startswith("PeerError: lost algo-2 (")


@under_mpirun_too
@pytest.mark.promise("F29")
def test_on_a_partition_each_side_names_what_it_lost(up: Up) -> None:
    run, hosts = up(hosts=3)
    run.expect(apart=frozenset({"algo-2"}))
    hosts[1].inside("ip", "link", "set", "eth0", "down")
    assert "UP" not in link_state(hosts[1])
    result = run.wait(20)
    assert result.code == 102, result.err
    assert [host.outcome for host in hosts] == [("Failed", 102)] * 3
    for host in (hosts[0], hosts[2]):
        assert host.failure.startswith("PeerError: lost algo-2 (no heartbeat for ")
    assert hosts[1].failure.startswith("PeerError: lost algo-1 (no heartbeat for ")


@under_mpirun_too
@pytest.mark.promise("F29")
def test_a_partition_that_heals_in_time_loses_nobody(up: Up) -> None:
    """Packets are lost on the wire. A drop in OUTPUT would prove little: the kernel tells TCP of
    it (EPERM), and TCP then tries twice a second instead of backing off."""
    run, hosts = up(**TCP_IS_LATE)
    outage(hosts, seconds=HEALS_S)
    check_nothing_was_lost(run, hosts)


@pytest.mark.promise("F29")
@pytest.mark.promise("F30")
def test_an_outage_of_26_s_loses_nobody_by_default(up: Up) -> None:
    """Both ways, and each host deaf while it is still heard; side by side, since they only wait."""
    jobs = [up(**DEFAULTS) for _ in DIRECTIONS]
    with ThreadPoolExecutor(len(jobs)) as pool:
        cut_off = [hosts[part] for part, (_, hosts) in zip(DIRECTIONS, jobs, strict=True)]
        list(pool.map(lambda hosts: outage(hosts, seconds=26), cut_off))
    for run, hosts in jobs:
        check_nothing_was_lost(run, hosts)


FAILING = """
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    raise ValueError("bad batch")
"""


@pytest.mark.promise("F29")
@pytest.mark.promise("F31")
def test_hosts_that_are_cut_off_when_one_fails_agree_once_they_hear_each_other(up: Up) -> None:
    """The leader stays until the other has the verdict, also when that host failed itself."""
    jobs = [up(script=SCRIPT + FAILING, **PATIENT) for _ in DIRECTIONS]
    with ExitStack() as cuts:
        for part, (_, hosts) in zip(DIRECTIONS, jobs, strict=True):
            cuts.enter_context(deaf(hosts[part]))
            hosts[1].release()
        healed_s = time.monotonic() + HEALS_LATER_S
        wait_until(lambda: time.monotonic() >= healed_s, 15)
    for run, hosts in jobs:
        assert run.wait(30).code == 1, run.err
        assert [host.outcome for host in hosts] == [("Failed", 1)] * 2
        assert hosts[0].failure == hosts[1].failure
        assert hosts[0].failure.startswith("UserScriptError: ValueError: bad batch (algo-2 rank 1")


@pytest.mark.promise("F01")
def test_a_stop_does_not_wait_for_a_host_that_is_cut_off_beyond_its_time(up: Up) -> None:
    run, hosts = up(MUSTER_LOST_AFTER_S="20", MUSTER_STOP_GRACE_S="1")
    run.expect(apart=frozenset({"algo-2"}))
    with deaf(hosts[1:]):
        os.kill(hosts[0].pid, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{hosts[0].pid}"), 15, lambda: run.err)
        assert hosts[0].outcome == ("Stopped", 143)
        assert hosts[1].outcome is None  # nothing is known there yet: so it was not waited for
    os.kill(hosts[1].pid, signal.SIGTERM)
    assert run.wait(20).code == 143, run.err


@under_mpirun_too
@pytest.mark.promise("F30")
def test_a_loss_of_one_packet_in_five_both_ways_loses_nobody(up: Up) -> None:
    """Every fifth packet, so that each run drops as many."""
    run, hosts = up(**PATIENT)
    nth = ("-m", "statistic", "--mode", "nth", "--every", "5", "--packet", "0")
    every_fifth = ("-p", "tcp", *nth, "-j", "DROP")
    with (
        hosts[1].rule("INPUT", *every_fifth) as inward,
        hosts[1].rule("OUTPUT", *every_fifth) as outward,
    ):
        inward.wait_for(3)
        outward.wait_for(3)
        let_go(hosts)  # the end of the job goes through the same loss
        wait_until(lambda: all(host.outcome for host in hosts), 30, lambda: run.err)
        assert [host.outcome for host in hosts] == [("Succeeded", 0)] * 2
    check_nothing_was_lost(run, hosts)


TALKATIVE = SCRIPT.replace("import os, time\n", "import os, socket, time\n").replace(
    "    time.sleep(0.02)\n",
    "    time.sleep(0.5)\n"
    "    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:\n"
    "        for _ in range(3):\n"
    "            sock.sendto(bytes(1000), ('10.77.0.1', 9))\n",
)


@under_mpirun_too
@pytest.mark.promise("F30")
def test_a_link_that_is_slow_and_full_loses_nobody(up: Up) -> None:
    """64 kbit/s, shared with what a rank sends: its bursts queue before the heartbeats."""
    run, hosts = up(script=TALKATIVE, **PATIENT)
    shape = ("rate", "64kbit", "burst", "1600", "latency", "1s")
    hosts[1].inside("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *shape)

    def delayed() -> int:
        words = hosts[1].inside("tc", "-s", "qdisc", "show", "dev", "eth0").split()
        return int(words[words.index("overlimits") + 1])

    wait_until(lambda: delayed() >= 10, 15, lambda: str(delayed()))
    check_nothing_was_lost(run, hosts)


def test_a_connection_that_is_reset_once_comes_back_and_loses_nothing(up: Up) -> None:
    run, hosts = up(**PATIENT)
    with cut_off(run, hosts[1], hosts[0]) as rule:
        rule.wait_for(1)
        wait_until(lambda: "the connection of algo-2 ended" in run.err, 5, lambda: run.err)
    wait_until(lambda: "algo-2 is back" in run.err, 10, lambda: run.err)
    check_nothing_was_lost(run, hosts)
    assert run.err.count("algo-2 is back") == 1


@pytest.mark.promise("F34")
def test_a_leader_whose_process_ends_while_its_machine_lives_is_lost_at_once(up: Up) -> None:
    run, hosts = up(hosts=3, **PATIENT)
    leader = hosts[0]
    stays = ["nsenter", "-t", str(leader.pid), "-n", "sleep", "600"]
    with subprocess.Popen(stays) as machine:
        own = os.stat(f"/proc/{leader.pid}/ns/net").st_ino
        wait_until(lambda: os.stat(f"/proc/{machine.pid}/ns/net").st_ino == own, 5)
        try:
            os.kill(leader.pid, signal.SIGKILL)
            began = time.monotonic()
            result = run.wait(20)
        finally:
            machine.kill()
    assert time.monotonic() - began < float(PATIENT["MUSTER_LOST_AFTER_S"]) - 3
    assert result.code != 0
    check_followers(hosts, "its port is closed")


def check_followers(hosts: list[Host], why: str) -> None:
    assert hosts[0].outcome is None
    for host in hosts[1:]:
        assert host.outcome == ("Failed", 102)
        assert host.failure.startswith(f"PeerError: lost algo-1 ({why}")


def cut_off(run: LocalRun, host: Host, leader: Host) -> AbstractContextManager[Rule]:
    """Resets the host's connection to the leader, and every one that follows."""
    port = control_port(run, leader)
    return host.rule(
        "INPUT", "-p", "tcp", "--sport", port, "-j", "REJECT", "--reject-with", "tcp-reset"
    )


@pytest.mark.promise("F29")
def test_a_connection_that_does_not_come_back_in_time_is_a_lost_host(up: Up) -> None:
    run, hosts = up(hosts=3)
    run.expect(apart=frozenset({"algo-2"}))
    with cut_off(run, hosts[1], hosts[0]) as rule:
        rule.wait_for(1)
        result = run.wait(20)
    assert result.code == 102, result.err
    for host in (hosts[0], hosts[2]):
        assert host.failure == (
            "PeerError: lost algo-2 (its connection ended and did not come back)"
        )
    assert hosts[1].failure.startswith("PeerError: lost algo-1 (")
