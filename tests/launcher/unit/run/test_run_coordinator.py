"""The leader's decisions, with a clock of the test's own (protocol.md, Phases to End)."""

from __future__ import annotations

import time

import pytest

from muster.run.channel import messages as m
from muster.run.job.coordinator import Coordinator
from muster.types.outcome import Failed, RankFailure, Stopped, Succeeded
from tests.launcher.support.peers.coordinated_job import (
    HOST_ERROR,
    LIMITS,
    Job,
    ended,
    facts,
    failure,
    running,
)


def test_a_job_that_goes_well() -> None:
    job = Job()
    job.join()
    for host in (0, 2):
        job.hear(host, m.StagedHost(facts(host)))
    assert not job.told(m.FactsPart)
    job.hear(1, m.StagedHost(facts(1)))
    assert job.told(m.FactsPart) == [m.FactsPart(0, 1, tuple(map(facts, range(3))))]
    for host in (0, 1):
        job.hear(host, m.Ready("same"))
    assert not job.told(m.Go)
    job.hear(2, m.Ready("same"))
    assert job.told(m.Go) == [m.Go()]
    for host in job.hosts:
        job.hear(host, m.Registered(1))
    job.wait(100_000)  # no deadline while ranks run
    for host in job.hosts:
        assert job.outcome is None
        job.hear(host, ended(host))
    assert job.outcome == Succeeded()
    assert job.told(m.Verdict) == [m.Verdict(Succeeded())]
    job.coordinator.files_written()
    job.collect()
    assert job.orders[-1] == (None, m.Leave())


@pytest.mark.promise("F21")
def test_hosts_that_do_not_join_are_named_at_the_join_limit() -> None:
    job = Job()
    job.join(0, 1)
    job.wait(899.9)
    assert not job.told(m.Stop)
    job.wait(0.2)
    assert len(job.told(m.Stop)) == 1
    for host in (0, 1):
        job.hear(host, m.HostEnded((), (), {}))
    assert job.headline == "ClusterError: algo-3 did not join within 900 s (2 of 3 present)"


def test_hosts_that_are_not_ready_are_named_at_the_stage_limit() -> None:
    job = Job()
    job.join()
    job.hear(0, m.Ready("same"))
    job.wait(3601)
    for host in job.hosts:
        job.hear(host, m.HostEnded((), (), {}))
    assert job.headline == "ClusterError: algo-2, algo-3 not ready within 3600 s"


def test_hosts_whose_ranks_do_not_start_are_named_at_the_start_limit() -> None:
    job = Job()
    job.make_ready()
    for host in (0, 2):
        job.hear(host, m.Registered(1))
    job.wait(119)
    assert not job.told(m.Stop)
    job.wait(2)
    for host in job.hosts:
        job.hear(host, ended(host))
    assert job.headline == "LaunchError: algo-2: not all ranks started within 120 s"
    assert job.outcome is not None
    assert job.outcome.exit_code == 106


@pytest.mark.promise("F20")
def test_the_progress_lines_name_who_is_missing_every_thirty_seconds() -> None:
    job = Job()
    job.join(0)
    for _ in range(61):
        job.wait(1)
    assert job.coordinator.notes == ["waiting for algo-2, algo-3 to join"] * 2
    job.coordinator.notes.clear()
    job.join(1, 2)
    job.hear(1, m.Ready("same"))
    for _ in range(31):
        job.wait(1)
    assert job.coordinator.notes == ["waiting for algo-1, algo-3 to be ready"]


@pytest.mark.promise("F24")
def test_hosts_that_plan_other_processes_are_told_apart() -> None:
    job = Job()
    job.join()
    for host, digest in enumerate(("a", "a", "b")):
        job.hear(host, m.Ready(digest))
    assert not job.told(m.Go)
    for host in job.hosts:
        job.hear(host, m.HostEnded((), (), {}))
    assert job.headline == "ConfigError: hosts disagree: algo-3 plans other processes than algo-1"


@pytest.mark.promise("F32")
def test_the_earliest_evidence_is_named_whoever_reports_first() -> None:
    job = running()
    job.hear(2, m.Report((failure(2, at_s=30.05),)))
    job.hear(1, m.Report((failure(1, at_s=30.0),)))
    for host in job.hosts:
        job.hear(host, ended(host))
    assert job.headline.endswith("(algo-2 rank 1, exit code 7) and 1 more")


def test_a_failure_is_told_to_all_at_once_and_once() -> None:
    job = running()
    job.hear(2, m.Report((failure(2, at_s=30),)))
    job.hear(1, m.Report((failure(1, at_s=31),)))
    assert job.orders == [(None, m.Stop(False, "a rank failed"))]


def test_a_failure_that_is_told_twice_counts_once() -> None:
    job = running()
    job.hear(2, m.Report((failure(2, at_s=30),)))
    for host in job.hosts:
        job.hear(host, ended(host, *([failure(2, at_s=30)] if host == 2 else [])))
    assert "more" not in job.headline


def test_a_host_that_does_not_answer_a_stop_is_not_waited_for_without_a_limit() -> None:
    job = running()
    job.hear(1, m.Report((failure(1, at_s=30),)))
    for host in (0, 1):
        job.hear(host, ended(host))
    job.wait(LIMITS.failfast_grace_s + LIMITS.drain_s + 4)
    assert job.outcome is None
    job.wait(2)
    assert isinstance(job.outcome, Failed)


def test_a_host_that_the_stop_reaches_late_has_its_whole_time_to_end() -> None:
    """A network that was cut: what its ranks save within the grace is not lost by that."""
    job = running()
    job.hear(0, m.Report((failure(0, at_s=30),)))
    job.hear(0, ended(0))
    job.hear(2, ended(2))
    for _ in range(26):
        job.coordinator.not_reached([1], job.now)
        job.wait(1)
    job.wait(LIMITS.failfast_grace_s + LIMITS.drain_s)
    assert job.outcome is None
    job.wait(5)
    assert isinstance(job.outcome, Failed)


@pytest.mark.parametrize("by", ["a stop from outside", "a host that has ended"])
def test_nothing_that_a_host_was_not_reached_with_delays(by: str) -> None:
    job = running()
    if by == "a stop from outside":
        job.hear(0, m.Stopping("SIGTERM"))
    else:
        job.hear(0, m.Report((failure(0, at_s=30),)))
        job.hear(1, ended(1))
    limit_s = LIMITS.stop_verdict_s if by == "a stop from outside" else 26.0
    for _ in range(int(limit_s) + 1):
        job.coordinator.not_reached([1], job.now)
        job.wait(1)
    assert job.outcome is not None


def test_an_external_stop_is_decided_in_time_though_a_host_does_not_answer() -> None:
    job = running()
    job.hear(1, m.Stopping("SIGTERM"))
    assert job.orders == [(None, m.Stop(True, "SIGTERM on algo-2"))]
    job.wait(105.9)
    assert job.outcome is None
    job.wait(0.2)
    assert job.outcome == Stopped("SIGTERM on algo-2")


def test_what_fails_after_a_stop_does_not_change_it() -> None:
    job = running()
    job.hear(1, m.Stopping("SIGTERM"))
    job.hear(2, m.Report((failure(2, at_s=30),)))
    job.hear(2, m.Report((), HOST_ERROR))
    job.hear(0, m.Stopping("SIGINT"))
    for host in job.hosts:
        job.hear(host, ended(host))
    assert job.outcome == Stopped("SIGTERM on algo-2")


@pytest.mark.promise("F27")
def test_a_lost_host_is_named_and_not_waited_for() -> None:
    job = running()
    job.coordinator.suspect(2, job.now)
    job.wait(5)
    job.lose(2)
    assert job.orders == [(None, m.Stop(False, "lost algo-3"))]
    for host in (0, 1):
        job.hear(host, ended(host, failure(host, at_s=job.now)))
    assert job.headline == "PeerError: lost algo-3 (why)"


def test_a_stop_while_a_host_is_suspect_does_not_decide() -> None:
    job = running()
    job.coordinator.suspect(2, job.now)
    job.wait(1)
    job.hear(0, m.Stopping("SIGTERM"))
    for host in (0, 1):
        job.hear(host, ended(host))
    assert job.outcome is None
    job.wait(4)
    job.lose(2)
    assert job.headline == "PeerError: lost algo-3 (why)"


def test_a_host_that_is_lost_after_a_stop_does_not_change_it() -> None:
    job = running()
    job.hear(0, m.Stopping("SIGTERM"))
    for host in (0, 1):
        job.hear(host, ended(host))
    job.wait(1)
    job.coordinator.suspect(2, job.now)
    job.wait(5)
    job.lose(2)
    assert job.outcome == Stopped("SIGTERM on algo-1")


@pytest.mark.parametrize(("silent_before_s", "code"), [(0.8, 143), (1.2, 102)])
def test_a_host_is_lost_before_a_stop_only_when_a_heartbeat_was_missing(
    silent_before_s: float, code: int
) -> None:
    """Silence between two heartbeats says nothing about a host (heartbeats come every second)."""
    job = running()
    last = job.now - silent_before_s
    job.hear(0, m.Stopping("SIGTERM"))
    for host in (0, 1):
        job.hear(host, ended(host))
    job.wait(30)
    job.lose(2, last)
    assert job.outcome is not None
    assert job.outcome.exit_code == code


def test_a_host_that_is_back_is_not_lost() -> None:
    job = running()
    job.coordinator.suspect(2, job.now)
    job.coordinator.recovered(2, job.now)
    for host in job.hosts:
        job.hear(host, ended(host))
    assert job.outcome == Succeeded()


def test_the_end_of_all_others_while_a_host_was_away_is_not_forgotten() -> None:
    job = running()
    job.hear(2, ended(2))
    job.coordinator.suspect(2, job.now)
    for host in (0, 1):
        job.hear(host, ended(host))
    assert job.outcome is None
    job.coordinator.recovered(2, job.now)
    assert job.outcome == Succeeded()


def test_a_place_that_was_left_before_the_start_may_be_taken_again() -> None:
    job = Job()
    job.join()
    job.hear(2, m.StagedHost(facts(2)))
    job.coordinator.left_before_ready(2, job.now)
    assert job.coordinator.missing() == ["algo-3"]
    job.run()
    assert job.coordinator.running


def test_a_host_that_leaves_during_a_stop_before_the_start_is_not_waited_for() -> None:
    job = Job()
    job.join()
    job.hear(1, m.Stopping("SIGTERM"))
    for host in (0, 1):
        job.hear(host, m.HostEnded((), (), {}))
    assert job.outcome is None
    job.coordinator.left_before_ready(2, job.now)
    assert job.outcome == Stopped("SIGTERM on algo-2")


@pytest.mark.parametrize("when", ["stopping", "decided"])
def test_a_host_that_comes_late_is_told_what_the_others_know(when: str) -> None:
    job = Job()
    job.join(0, 1)
    job.hear(1, m.Report((), HOST_ERROR))
    if when == "decided":
        for host in (0, 1):
            job.hear(host, m.HostEnded((), (), {}))
    job.orders.clear()
    job.join(2)
    ((to, message),) = job.orders
    assert to == 2
    assert isinstance(message, m.Verdict if when == "decided" else m.Stop)


def test_nothing_changes_an_outcome() -> None:
    job = running()
    for host in job.hosts:
        job.hear(host, ended(host))
    before = list(job.orders)
    job.hear(1, m.Stopping("SIGTERM"))
    job.hear(1, m.Report((failure(1, at_s=1),)))
    job.hear(1, m.Report((), HOST_ERROR))
    job.hear(1, ended(1, failure(1, at_s=1)))
    job.lose(2)
    job.coordinator.disagrees(1, "x", job.now)
    job.wait(10**6)
    assert job.outcome == Succeeded()
    assert job.orders == before


def test_helpers_that_still_run_are_named_every_minute() -> None:
    job = running(helpers=(2,))
    job.wait(500)
    assert not job.coordinator.notes
    for host in (0, 1):
        job.hear(host, ended(host))
    for _ in range(125):
        job.wait(1)
    note = "all ranks have ended; algo-3 outside the distribution still runs"
    assert job.coordinator.notes == [note] * 3
    job.hear(2, ended(2, failure(2, at_s=9)))
    assert isinstance(job.outcome, Failed)


EVERYTHING = [
    m.StagedHost(facts(1)),
    m.Ready("other"),
    m.Ready(""),
    m.Registered(0),
    m.Report((failure(1, 0),)),
    m.Report((), HOST_ERROR),
    m.Report(()),
    m.Stopping(""),
    ended(1, failure(1, 1)),
    m.HostEnded((), (), {}),
]


@pytest.mark.parametrize("stage", ["new", "joined", "ready", "running", "stopping", "decided"])
@pytest.mark.parametrize("message", EVERYTHING, ids=lambda x: type(x).__name__)
def test_any_message_at_any_time_leads_to_one_verdict(stage: str, message: m.ToLeader) -> None:
    job = Job()
    if stage != "new":
        job.join()
    if stage not in ("new", "joined"):
        job.make_ready()
    if stage == "stopping":
        job.hear(0, m.Stopping("SIGTERM"))
    if stage == "decided":
        for host in job.hosts:
            job.hear(host, ended(host))
    for _ in range(2):
        job.hear(1, message)
        job.coordinator.suspect(1, job.now)
        job.coordinator.recovered(1, job.now)
    for host in job.hosts:
        job.hear(host, ended(host))
    for _ in range(50):
        job.wait(100)
    assert len(job.told(m.Verdict)) == 1


def test_a_thousand_hosts_cost_the_leader_seconds_at_most() -> None:
    names = [f"algo-{i}" for i in range(1000)]
    coordinator = Coordinator(names, 0, (), LIMITS, 0.0)
    began = time.process_time()
    for host in range(1000):
        coordinator.joined(host, 0.0)
        coordinator.tick(0.1)
    for message in (m.StagedHost(facts(1)), m.Ready("x"), m.Registered(8)):
        for host in range(1000):
            coordinator.heard(host, message, 1.0)
    for host in range(1000):
        bad = tuple(RankFailure(names[host], host * 8 + i, 1, 2.0, "E", "") for i in range(8))
        coordinator.heard(host, m.HostEnded((), bad, {}), 2.0)
    assert coordinator.outcome is not None
    assert coordinator.outcome.headline.endswith("and 7999 more")
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("pip failed", "InstallError: pip failed (on algo-2)"),
        ("no file on algo-2 for it", "InstallError: no file on algo-2 for it"),
        ("no file on algo-22", "InstallError: no file on algo-22 (on algo-2)"),
    ],
)
def test_a_trouble_is_told_with_its_host_once(message: str, expected: str) -> None:
    job = Job()
    job.join()
    job.hear(1, m.Report((), HOST_ERROR._replace(message=message)))
    for host in job.hosts:
        job.hear(host, m.HostEnded((), (), {}))
    assert job.headline == expected
