"""mpirun on the leader; it starts our rank shims on every host, and they the script.

mpirun reaches the other hosts through our spawn agent and their supervisors, never by ssh. Ranks
are placed by slot, so host after host holds as many as it was given. What scripts get in their
environment comes from their own host; mpirun carries none of it.
Source: contract.md 3.2 and 3.3, protocol.md 10, architecture.md decisions 2, 5 and 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.plan import fabric, notes, script, variables, world
from muster.plan.launchplan import Addition, Command, LaunchPlan, RankNames
from muster.plan.mpi_command import agreed_line, launch_daemon, launch_line
from muster.plan.mpi_options import MpiOptions, read_options
from muster.plan.mpi_version import check_versions
from muster.plan.slots import mpi_processes
from muster.plan.tools import Tools
from muster.plan.world import World
from muster.spec.distribution import Mpi
from muster.spec.job import Job, Staged
from muster.spec.machine import HostFacts

# What mpirun makes for its processes; everything else a rank has is its own host's.
RANK_ENV = ("OMPI_*", "PMIX_*", "PMI_*", "PMI2_*", "PRTE_*", "OPAL_*")
RANK_NAMES = RankNames("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")
# Of a launcher around us: mpirun would take itself for a part of it (architecture.md decision 13).
_FOREIGN = (
    *("SLURM_", "PMI_", "PMI2_", "PMIX_", "PRTE_", "ORTE_", "HYDRA_", "MPIRUN_"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_plm"),
)
SERVER_PORT = "7592"


class _Setting(NamedTuple):
    """What this host's processes get in their environment, and what is left out of it."""

    additions: tuple[Addition, ...]
    without: tuple[str, ...]
    remarks: tuple[str, ...]


def plan_mpi(
    job: Job, option: Mpi, all_facts: Sequence[HostFacts], staged: Staged, tools: Tools
) -> LaunchPlan:
    """Raises ConfigError: no Open MPI, different ones, options that are not allowed, or a number
    of ranks that the hosts cannot hold."""
    facts = world.by_position(job.cluster, all_facts)
    options = read_options(option.custom_options, option.option)
    version = check_versions(job, facts)
    counts = mpi_processes(job, facts, option)
    meeting = world.build(job, facts, counts)
    setting = _choose_setting(job, option, options, meeting, staged.environ)
    environ = variables.compose(staged.environ, setting.additions, setting.without)
    cluster, cwd = job.cluster, staged.program.code_dir
    leads = cluster.is_leader
    # Scripts get the environment with the additions, Open MPI's own processes that as well.
    launcher = launch_line(job, meeting, version, options, staged, tools) if leads else ()
    member = cluster.in_distribution and not leads
    return LaunchPlan(
        option=option.option,
        world_size=meeting.size,
        ranks=meeting.ranks,
        leader=cluster.leader.position,
        master_addr=meeting.address,
        ports=_ports(job, meeting),
        launcher=Command(launcher, environ, cwd) if leads else None,
        launcher_works_on=False,
        script=Command(script.script_argv(staged), environ, cwd),
        script_is_python=script.is_python(staged.program),
        rank_env=RANK_ENV if cluster.in_distribution else (),
        agreed=(
            *script.agreed_argv(staged, job.paths.base),
            *agreed_line(job, meeting, version, options),
        ),
        notes=(
            notes.understood(f"{option.option}: mpirun of Open MPI {version}", meeting),
            *map(str, setting.additions),
            *setting.remarks,
        ),
        additions=setting.additions,
        rank_names=RANK_NAMES,
        per_rank=variables.each_rank(meeting, cluster.current),
        daemon=launch_daemon(meeting, job, version, options, tools, environ, cwd)
        if member
        else None,
        daemon_hosts={facts[place].address: place for place in cluster.distribution[1:]}
        if leads
        else {},
    )


def _ports(job: Job, meeting: World) -> dict[str, int]:
    control = {"control": job.settings.control_port} if len(meeting.facts) > 1 else {}
    return {**control, "store": meeting.port}


def _choose_setting(
    job: Job, option: Mpi, options: MpiOptions, meeting: World, environ: Mapping[str, str]
) -> _Setting:
    """The environment of this host's script."""
    cluster = job.cluster
    links = fabric.plan_fabric(job, meeting.facts, environ)
    foreign = tuple(name for name in environ if name.startswith(_FOREIGN))
    leader = variables.master(meeting)
    made = variables.threads(cluster.current, meeting, environ) if cluster.in_distribution else ()
    rank_names = (*variables.RANK_VARIABLES, *variables.MASTER_VARIABLES)
    asked = tuple(
        Addition(name, value, "asked for by -x of the custom MPI options")
        for name, value in options.variables
    )
    kept = {addition.name for addition in asked}
    own = tuple(one for one in (*made, *links.additions) if one.name not in kept)
    return _Setting(
        additions=(
            *variables.unbuffered(environ),
            *leader,
            *own,
            *_data_parallel(option, meeting, job),
            *asked,
        ),
        without=(*rank_names, *foreign),
        remarks=(
            *variables.overridden(environ, rank_names, leader, option.option),
            *(f"{name} is kept from mpirun: it belongs to another launcher" for name in foreign),
            *options.remarks,
            *links.notes,
            *notes.outsiders(job),
            *notes.shared_devices(job, meeting),
        ),
    )


def _data_parallel(option: Mpi, meeting: World, job: Job) -> tuple[Addition, ...]:
    """What scripts of smdistributed.dataparallel may read (contract.md 3.3)."""
    if option.option not in ("smdistributed.dataparallel", "pytorchddp"):
        return ()
    reason = f"{option.option} sets it"
    made = [("SAGEMAKER_INSTANCE_TYPE", job.cluster.me.instance_type)]
    if len(meeting.counts) == 1:
        made.append(("SMDATAPARALLEL_USE_SINGLENODE", "1"))
    else:
        made += [
            ("SMDATAPARALLEL_USE_HOMOGENEOUS", "1"),
            ("SMDATAPARALLEL_SERVER_ADDR", meeting.address),
            ("SMDATAPARALLEL_SERVER_PORT", SERVER_PORT),
        ]
    return tuple(Addition(name, value, reason) for name, value in made if value)
