"""Jobs, facts and staged programs as values, for tests that need no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.plan.launchplan import Command, Daemon, Launcher, LaunchPlan
from muster.types.cluster import Cluster, Host
from muster.types.deadlines import Deadlines
from muster.types.distribution import Distribution, Single
from muster.types.job import Documents, Job, Paths, Program, Settings, Staged
from muster.types.machine import HostFacts


def make_cluster(
    hosts: int = 1, current: int = 0, groups: Mapping[str, Sequence[int]] | None = None
) -> Cluster:
    """Hosts algo-1 ... algo-N. `groups`: name -> positions; the first group is the distribution's.

    Without groups all hosts take part.
    """
    of_position = {place: name for name, places in (groups or {}).items() for place in places}
    members = next(iter(groups.values())) if groups else range(hosts)
    return Cluster(
        hosts=tuple(
            Host(f"algo-{i + 1}", i, of_position.get(i, "homogeneousCluster"), "ml.c5.xlarge")
            for i in range(hosts)
        ),
        current=current,
        distribution=tuple(members),
    )


def make_job(
    hosts: int = 1,
    distribution: Distribution | None = None,
    current: int = 0,
    *,
    cluster: Cluster | None = None,
    base: str = "/opt/ml",
    arguments: tuple[str, ...] = (),
    settings: Settings | None = None,
    environ: Mapping[str, str] | None = None,
    origins: Mapping[str, str] | None = None,
) -> Job:
    """A job of `train.py` on hosts that all take part, unless a cluster is given."""
    return Job(
        id="a-job",
        paths=Paths.below(base),
        cluster=cluster or make_cluster(hosts, current),
        program="train.py",
        source="",
        arguments=arguments,
        distribution=distribution or Single(),
        documents=Documents({}, {}, {}, {}),
        log_level=20,
        platform=None,
        settings=settings or Settings(),
        deadlines=Deadlines(),
        environ=environ or {},
        origins=origins or {},
    )


def make_facts(hosts: int = 1, **changes: object) -> tuple[HostFacts, ...]:
    """Facts of hosts without devices, 10.0.0.1 and on; `changes` hold for every host."""
    plain = HostFacts(
        host_index=0,
        address="",
        interface="eth0",
        cpus=4,
        gpus=0,
        neurons=0,
        efa=False,
        resolves_leader=True,
        code_hash="c0de",
        toolkit="0.1.0",
        python="3.11",
    )._replace(**changes)  # type: ignore[arg-type]
    return tuple(plain._replace(host_index=i, address=f"10.0.0.{i + 1}") for i in range(hosts))


def make_staged(
    job: Job,
    *,
    kind: str = "script",
    name: str = "train.py",
    python: str = "/usr/bin/python3",
    environ: Mapping[str, str] | None = None,
) -> Staged:
    """A program in the job's code folder with the job's arguments."""
    shell = ("/bin/sh",) if name.endswith(".sh") else ()
    return Staged(
        program=Program(kind, name, job.paths.code, job.arguments, interpreter=shell),
        python=python,
        environ=dict(environ or {}),
        code_hash="c0de",
    )


def launcher_of(plan: LaunchPlan) -> Command:
    """The command of this host's launcher, or of its launch daemon: there must be one."""
    assert isinstance(plan.starter, Launcher | Daemon)
    return plan.starter.command


def daemon_of(plan: LaunchPlan) -> Daemon:
    """This host's launch daemon, which there must be."""
    assert isinstance(plan.starter, Daemon)
    return plan.starter


def daemon_hosts_of(plan: LaunchPlan) -> Mapping[str, int]:
    """The hosts that this host's launcher asks for their launch daemons."""
    return plan.starter.daemon_hosts if isinstance(plan.starter, Launcher) else {}
