"""Hosts that look for the leader in the wrong place, or are not of this job (F22 to F24, F35)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import muster
from muster.version import __version__
from tests.launcher.support.cluster import Cluster
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]
SCRIPT = "print('trained', flush=True)\n"
# Over the hosts file of a mount namespace of its own, without a name server to fall back on.
IN_OWN_NAMES = 'mount --bind "$0/hosts" /etc/hosts && mount --bind "$0/resolv" /etc/resolv.conf'
NOT_FOUND = 2  # says getent
TIME_WAIT = "06"

needs_mounts = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None or shutil.which("nsenter") is None,
    reason="a hosts file of its own needs root, unshare and nsenter",
)


class Names:
    """What names a host resolves: its own hosts file, which the test may change at any time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        (folder / "resolv").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self.put({})

    def put(self, names: dict[str, str]) -> None:
        lines = [f"{address} {name}\n" for name, address in names.items()]
        (self._folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))

    def start(self, job: Cluster, host: str) -> None:
        """Starts the host with these names and no addresses from the engine."""
        command = self._inside(sys.executable, "-m", "muster", "train")
        job.start(host, environ={"MUSTER_HOST_ADDRESSES": "{}"}, command=command)

    def find(self, name: str) -> str:
        """The address that every host which starts now will find for a name, "" for none."""
        return found_by(self._inside("getent", "ahostsv4", name))

    def seen_by(self, job: Cluster, host: str, name: str) -> str:
        """The address that the running host finds for a name, "" for none."""
        target = str(job.processes[host].pid)
        return found_by(["nsenter", "-t", target, "-m", "getent", "ahostsv4", name])

    def _inside(self, *command: str) -> list[str]:
        shell = ["sh", "-c", IN_OWN_NAMES + ' && exec "$@"', str(self._folder), *command]
        return ["unshare", "--mount", *shell]


def found_by(getent: list[str]) -> str:
    """The first address that it finds, "" where it finds none."""
    done = subprocess.run(getent, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode in (0, NOT_FOUND), done.stderr
    return (done.stdout.split() or [""])[0]


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path / "names")


def check_joined(job: Cluster) -> None:
    results = job.wait(20)
    assert {result.code for result in results.values()} == {0}, results["algo-2"].err
    where = f"admitted by algo-1 address={job.addresses['algo-1']}"
    assert where in results["algo-2"].err
    assert all("trained" in result.out for result in results.values())


@needs_mounts
@pytest.mark.promise("F22")
def test_a_leader_whose_name_resolves_late_is_joined_then(cluster: Make, names: Names) -> None:
    job = cluster(SCRIPT)
    job.start("algo-1")
    names.start(job, "algo-2")
    job.wait_for("algo-2", "looking for the leader", "err")
    assert names.seen_by(job, "algo-2", "algo-1") == ""
    names.put({"algo-1": job.addresses["algo-1"]})
    check_joined(job)


@needs_mounts
@pytest.mark.promise("F22")
def test_a_name_that_never_resolves_is_said_at_the_join_limit(cluster: Make, names: Names) -> None:
    job = cluster(SCRIPT, environ={"MUSTER_JOIN_S": "1"})
    assert names.find("algo-1") == ""  # by now: the host lives for a second only
    names.start(job, "algo-2")
    result = job.wait(10)["algo-2"]
    assert (result.code, result.first_line) == (
        102,
        "ClusterError: the leader algo-1 could not be joined within 1 s "
        "(its name does not resolve)",
    )


@needs_mounts
@pytest.mark.promise("F23")
def test_a_name_with_a_stale_address_is_named_at_the_join_limit(
    cluster: Make, names: Names
) -> None:
    job = cluster(SCRIPT, environ={"MUSTER_JOIN_S": "1.5"})
    job.expect(apart=frozenset({"algo-2"}))
    stale = job.addresses["algo-1"].rpartition(".")[0] + ".99"
    names.put({"algo-1": stale})
    assert names.find("algo-1") == stale  # by now: the hosts live for 1.5 s only
    job.start("algo-1")
    names.start(job, "algo-2")
    results = job.wait(15)
    assert {result.code for result in results.values()} == {102}
    assert f"refused at {stale}:{job.ports[0]}" in results["algo-2"].first_line
    assert "algo-2 did not join within 1.5 s" in results["algo-1"].first_line


@needs_mounts
@pytest.mark.promise("F23")
def test_a_name_that_leads_to_another_job_is_tried_until_it_leads_to_this_one(
    cluster: Make, names: Names
) -> None:
    job = cluster(SCRIPT)
    other = cluster(SCRIPT, environ={"TRAINING_JOB_NAME": "another-job"})
    other.environ["MUSTER_CONTROL_PORT"] = str(job.ports[0])
    other.start("algo-1")
    names.put({"algo-1": other.addresses["algo-1"]})
    job.start("algo-1")
    names.start(job, "algo-2")
    wait_until(lambda: was_dropped(other.addresses["algo-1"], job.ports[0]), 10)
    assert "joined" not in other.text("algo-1", "err")
    names.put({"algo-1": job.addresses["algo-1"]})
    check_joined(job)
    assert "joined" not in other.text("algo-1", "err")
    other.signal("algo-1")
    assert other.wait(10)["algo-1"].code == 143


@pytest.mark.promise("F35")
def test_a_host_of_an_earlier_job_is_dropped_and_the_right_one_joins(cluster: Make) -> None:
    job = cluster(SCRIPT)
    earlier = cluster(SCRIPT)
    earlier.environ = {
        **job.environ,
        "TRAINING_JOB_NAME": "an-earlier-job",
        "MUSTER_JOIN_S": "3",
        "TEST_RUN_MARK": earlier.mark,
    }
    job.start("algo-1")
    wait_until(lambda: listens(job.addresses["algo-1"], job.ports[0]), 10)
    earlier.start("algo-2")
    refused = earlier.wait(10)["algo-2"]
    where = f"{job.addresses['algo-1']}:{job.ports[0]}"
    assert refused.code == 102
    assert refused.first_line == (
        "ClusterError: the leader algo-1 could not be joined within 3 s "
        f"(the connection ended at {where})"
    )
    assert was_dropped(job.addresses["algo-1"], job.ports[0])
    assert "joined" not in job.text("algo-1", "err")
    job.start("algo-2")
    check_joined(job)


@pytest.mark.promise("F24")
def test_hosts_with_other_versions_of_the_toolkit_disagree(cluster: Make, tmp_path: Path) -> None:
    job = cluster(SCRIPT)
    old = tmp_path / "old"
    shutil.copytree(Path(muster.__file__).parent, old / "muster")
    (old / "muster" / "version.py").write_text('__version__ = "0.0.9"\n')
    asked = [sys.executable, "-m", "muster", "--version"]
    environ = {**os.environ, "PYTHONPATH": str(old)}
    said = subprocess.run(asked, env=environ, capture_output=True, text=True, check=True).stdout
    assert said == "muster 0.0.9\n"
    job.start("algo-1")
    job.start("algo-2", environ={"PYTHONPATH": str(old)})
    results = job.wait(15)
    assert {result.code for result in results.values()} == {100}
    for result in results.values():
        assert result.first_line == (
            f"ConfigError: hosts disagree: algo-2 has toolkit 0.0.9, algo-1 has {__version__}"
        )
        assert "trained" not in result.out


def was_dropped(address: str, port: int) -> bool:
    """Whether the listener there ended a connection: it is the end that waits (TIME_WAIT)."""
    return (address, port, TIME_WAIT) in sockets()


def listens(address: str, port: int) -> bool:
    return (address, port, "0A") in sockets()


def sockets() -> set[tuple[str, int, str]]:
    """(local address, port, state) of every TCP socket of this machine."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state = line.split()[:4]
        number, _, port = local.partition(":")
        address = ".".join(str(byte) for byte in reversed(bytes.fromhex(number)))
        found.add((address, int(port, 16), state))
    return found
