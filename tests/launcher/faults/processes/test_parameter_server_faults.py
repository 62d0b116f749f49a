"""A parameter server that dies fails the job on all hosts and is named (issue part 5)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster, describe
from tests.launcher.support.events import events_in
from tests.launcher.support.sabotage import train_after
from tests.launcher.support.stand_ins import framework_cluster, is_alive, said
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]
FRAMEWORKS = ["tensorflow", "mxnet", "pytorch"]
WAITS = "say('ready')\nwait()\n"


def running(cluster: Make, name: str, script: str = WAITS, **options: object) -> Cluster:
    """A job of two hosts whose scripts and servers all run."""
    job = framework_cluster(cluster, script, name, **options)
    job.start_until("ready")
    for host in job.names:
        wait_until(lambda host=host: bool(servers(job, host)), 20, lambda: job.story("no server"))  # type: ignore[misc]
    return job


def servers(job: Cluster, host: str) -> list[int]:
    """Process ids of the servers of a host, without MXNet's scheduler."""
    told = said(job.text(host), "serving")
    return [one["pid"] for one in told if one["role"] in ("ps", "server")]


@pytest.mark.promise("F31")
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_killed_server_fails_the_job_on_all_hosts_with_its_name(
    cluster: Make, name: str, host: str
) -> None:
    job = running(cluster, name)
    (server,) = servers(job, host)
    os.kill(server, signal.SIGKILL)
    results = job.wait(20)
    number = job.names.index(host)
    what = f"the server server-{number} was killed by SIGKILL while ranks ran (on {host})"
    assert {(r.code, r.first_line) for r in results.values()} == {(137, f"UserScriptError: {what}")}
    assert not [pid for other in job.names for pid in servers(job, other) if is_alive(pid)]


def test_a_scheduler_that_dies_fails_the_job_by_its_name(cluster: Make) -> None:
    job = running(cluster, "mxnet")
    (scheduler,) = [o["pid"] for o in said(job.text("algo-1"), "serving") if o["role"] != "server"]
    os.kill(scheduler, signal.SIGKILL)
    for result in job.wait(20).values():
        assert "the server scheduler was killed by SIGKILL" in result.first_line
        assert result.code == 137


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_server_that_cannot_even_import_its_framework_says_so(cluster: Make, name: str) -> None:
    job = framework_cluster(cluster, WAITS, name)
    frameworks = job.folder / "frameworks"
    module = {"pytorch": "muster_parameter_server/__main__"}.get(name, name)
    broken = "import os\nif os.environ.get('DMLC_ROLE') != 'worker': raise OSError('no libcuda')\n"
    (frameworks / f"{module}.py").write_text(broken)
    results = job.run(limit_s=20)
    (line,) = {r.first_line for r in results.values()}
    assert line.startswith("UserScriptError: the server s")
    assert "exited with 1 while ranks ran (on algo-" in line
    assert "OSError: no libcuda" in results["algo-1"].failure
    assert {r.code for r in results.values()} == {1}


def test_a_server_whose_own_host_has_no_rank_left_is_missed_by_the_others(cluster: Make) -> None:
    script = "say('ready')\nif os.environ['SM_CURRENT_HOST'] == 'algo-1':\n    wait()\n"
    job = running(cluster, "mxnet", script)
    job.wait_for("algo-2", "ready")
    wait_until(lambda: "ended" in recorded(job, "algo-2"), 20, lambda: job.story("rank 1 runs on"))
    (server,) = servers(job, "algo-2")
    os.kill(server, signal.SIGKILL)
    results = job.wait(20)
    what = "the server server-1 was killed by SIGKILL while ranks ran (on algo-2)"
    assert {r.first_line for r in results.values()} == {f"UserScriptError: {what}"}


def recorded(job: Cluster, host: str) -> set[object]:
    """The kinds of the host's events so far, and the names of its phases."""
    events = events_in(job.base(host) / "output" / "data" / "muster")
    return {word for event in events for word in (event["kind"], event.get("name"))}


def test_a_server_that_ends_well_is_no_failure(cluster: Make) -> None:
    script = "say('ready')\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"
    job = running(cluster, "mxnet", script)
    job.expect(code_writes=("go",))
    (server,) = servers(job, "algo-2")
    os.kill(server, signal.SIGUSR1)  # which it takes for the end of its work
    wait_until(lambda: "server ends" in job.text("algo-2"), 20, lambda: job.story("it serves on"))
    for host in job.names:
        (job.base(host) / "code" / "go").touch()
    assert {r.code for r in job.wait(20).values()} == {0}


def test_a_server_of_tensorflow_that_ends_fails_the_job_however_well_it_ends(
    cluster: Make,
) -> None:
    """It has no work of its own that could be done: whoever needs it waits for ever."""
    job = running(cluster, "tensorflow")
    (server,) = servers(job, "algo-2")
    os.kill(server, signal.SIGUSR1)
    what = "the server server-1 exited with 0 while ranks ran (on algo-2)"
    for result in job.wait(20).values():
        assert (result.code, result.first_line) == (1, f"UserScriptError: {what}")


def start_the_server_late(shim: str) -> None:
    """After the only rank of the host has ended; `shim`: the file of the shims from then on."""
    import os
    import sys

    from muster.run.child import shims

    start = shims.ShimPool.spawn

    def late(self, role, environ, owner):  # type: ignore[no-untyped-def]
        def once_the_rank_has_ended() -> None:
            if not os.path.exists("ended"):
                self.loop.after(0.05, once_the_rank_has_ended)
                return
            print("sabotaged", file=sys.stderr, flush=True)
            shims.SHIM = shim or shims.SHIM
            start(self, role, environ, owner)

        if role.startswith("server:"):
            self.loop.after(0.05, once_the_rank_has_ended)
        else:
            start(self, role, environ, owner)

    shims.ShimPool.spawn = late  # type: ignore[method-assign]


NEEDS_EVERY_SERVER = """
    import socket
    say("ready")
    address, _, port = os.environ["PARAMETER_SERVER_ADDRESSES"].split(",")[1].rpartition(":")
    while os.environ["RANK"] == "0":
        try:
            socket.create_connection((address, int(port)), timeout=5).close()
            say("served")
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
"""


def with_late_server(cluster: Make, shim: str = "") -> Cluster:
    """A job of two hosts; algo-1's rank needs the server that algo-2 starts too late."""
    job = framework_cluster(cluster, NEEDS_EVERY_SERVER, "pytorch")
    job.start("algo-1")
    job.start("algo-2", command=train_after(start_the_server_late, shim))
    job.wait_for("algo-2", "ready")
    wait_until(lambda: "rank_ended" in recorded(job, "algo-2"), 20, lambda: job.story("it runs on"))
    (job.folder / "algo-2" / "ended").touch()
    job.wait_for("algo-2", "sabotaged", "err")
    return job


def test_a_server_that_comes_after_the_ranks_of_its_host_serves_the_others(cluster: Make) -> None:
    job = with_late_server(cluster)
    results = job.wait(20)
    assert {r.code for r in results.values()} == {0}, job.story("failed")
    assert len(said(results["algo-1"].out, "served")) == 1


@pytest.mark.promise("F16")
def test_a_server_that_cannot_come_after_the_ranks_of_its_host_fails_the_job(cluster: Make) -> None:
    job = with_late_server(cluster, shim="/nonexistent.py")
    what = "a process that muster needs ended before it could start anything"
    for result in job.wait(20).values():
        assert result.code == 106
        assert result.first_line == f"LaunchError: {what} (server:server-1 on algo-2)"


@pytest.mark.promise("F01")
def test_a_stop_leaves_servers_alone_until_ranks_have_saved(cluster: Make) -> None:
    script = """
        import signal
        def save(*_):
            time.sleep(1)
            say("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        say("ready")
        wait()
    """
    job = running(cluster, "pytorch", script)
    pids = [pid for host in job.names for pid in servers(job, host)]
    job.signal("algo-2")
    for host in job.names:
        job.wait_for(host, "saved")
    assert len(pids) == 2
    results = job.wait(20)
    assert {r.code for r in results.values()} == {143}
    assert not [describe(pid) for pid in pids if is_alive(pid)]


@pytest.mark.promise("F31")
def test_a_rank_that_fails_ends_the_servers_of_all_hosts(cluster: Make) -> None:
    script = """
        say("ready")
        if os.environ["SM_CURRENT_HOST"] == "algo-2":
            time.sleep(1)
            raise ValueError("bad batch")
        wait()
    """
    job = running(cluster, "tensorflow", script)
    results = job.wait(20)
    assert {r.first_line for r in results.values()} == {
        "UserScriptError: ValueError: bad batch (algo-2 rank 1, exit code 1)"
    }
    assert not [pid for host in job.names for pid in servers(job, host) if is_alive(pid)]


def test_a_stop_while_workers_wind_down_is_a_stop(cluster: Make) -> None:
    script = """
        import json
        if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
            say("ready")
            wait()
        say("ready")
        time.sleep(0.5)
    """
    job = running(cluster, "tensorflow", script, environ={"MUSTER_IDLE_S": "60"})
    job.wait_for("algo-2", "ranks that do nothing more end", "err")
    job.signal("algo-1")
    results = job.wait(20)
    assert {r.code for r in results.values()} == {143}
