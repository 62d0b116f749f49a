"""The same fault has the same code and the same first line at every engine, or on the cluster that
VERIFY_CLUSTER names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.launcher.elsewhere.fault_cluster import ENGINE, OnCluster, why_not
from tests.launcher.elsewhere.fault_engines import InPods, Job, OnBatch, OnHosts, OnSlurm
from tests.launcher.elsewhere.faults import FAULTS, READY, Fault
from tests.launcher.elsewhere.sshd import Desk, ssh_hosts
from tests.launcher.support.slurm import Slurm, cluster
from tests.support.hosts import Networks, networks, skip_without_networks

Start = Callable[..., Job]
KINDS: dict[str, tuple[Callable[..., Job], str]] = {
    "slurm": (OnSlurm, "slurm"),
    "hosts": (OnHosts, "desk"),
    "kubernetes": (InPods, "nodes"),
    "batch": (OnBatch, "nodes"),
}
if ENGINE:
    KINDS = {ENGINE: (OnCluster, "tmp_path")}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with ssh_hosts(tmp_path_factory.mktemp("ssh") / "d", OnHosts.names) as made:
        yield made


@pytest.fixture(scope="module")
def nodes() -> Iterator[Networks]:
    skip_without_networks()
    with networks(["node-0", "node-1"], whole=True) as made:
        yield made


@pytest.fixture
def start(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a job with a fault in a run folder of that name."""
    with ExitStack() as stack:

        def one(fault: Fault, run: str) -> Job:
            kind, needed = KINDS[engine]
            job: Job = kind(request.getfixturevalue(needed), tmp_path, fault, run)
            stack.callback(job.close)
            return job

        yield one


CELLS = [(engine, fault) for engine in KINDS for fault in FAULTS if not why_not(engine, fault)]


@pytest.mark.promise("E01")
@pytest.mark.promise("E02")
@pytest.mark.promise("E07")
@pytest.mark.promise("E08")
@pytest.mark.promise("E09")
@pytest.mark.promise("E10")
@pytest.mark.promise("E11")
@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        pytest.param(
            *(engine, fault),
            id=f"{engine}-{fault.name}",
            marks=[pytest.mark.long] if engine in fault.long else [],
        )
        for engine, fault in CELLS
    ],
)
def test_a_fault_has_one_truth_everywhere(start: Start, fault: Fault) -> None:
    job = start(fault, "run")
    first = None
    if fault.act:
        job.wait(READY, 2)
        if fault.act == "stop":
            job.stop()
        elif fault.act == "second":
            first, job = job, start(fault, "second")
        else:
            job.kill(int(fault.act.split()[1]))
    assert job.ended() == {fault.code}, job.log()
    line = fault.line.format(*map(re.escape, job.names))
    found = job.first_lines()
    assert found and all(re.fullmatch(line, one) for one in found), f"{found}\n{job.log()}"
    assert job.log().count("rank has saved") == fault.said, job.log()
    if first is not None:  # which did not notice
        assert not first.first_lines(), first.log()
        first.stop()
        assert first.ended() == {143}, first.log()


def test_the_table_is_whole() -> None:
    assert len(FAULTS) == 12
    assert all(why for fault in FAULTS for why in fault.cannot.values())
