"""mpirun on the leader; it starts the rank shims on every host, and they the script.

mpirun reaches the other hosts through the spawn agent and their supervisors, never by ssh. Ranks
are placed by slot, so host after host holds as many as it was given. What scripts get in their
environment comes from their own host; mpirun carries none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.plan import fabric, notes, script, variables
from muster.plan.launchplan import (
    Addition,
    Command,
    Direct,
    EndPolicy,
    LaunchedRanks,
    Launcher,
    LaunchPlan,
    RankNames,
    Starter,
)
from muster.plan.openmpi.command import (
    agreed_line,
    agreed_parameters,
    launch_daemon,
    launch_line,
    own_link,
    scratch,
    transport_parameters,
)
from muster.plan.openmpi.options import MpiOptions, read_options
from muster.plan.openmpi.version import check_versions
from muster.plan.slots import mpi_processes
from muster.plan.world import World, build_world, by_host_index, job_ports, shared
from muster.types.distribution import Mpi
from muster.types.environment import USER
from muster.types.job import Job, Staged
from muster.types.machine import HostFacts
from muster.types.mpi_rules import FOREIGN
from muster.types.tools import Tools

# What mpirun makes for its processes; everything else a rank has is its own host's.
RANK_ENV = ("OMPI_*", "PMIX_*", "PMI_*", "PMI2_*", "PRTE_*", "OPAL_*")
_SILENT = "it ended without an error message; Open MPI uses"
# Seen with 4.1.4 and 5.0.11; the words go to mpirun's stream, so ranks seem to be silent. Those of
# 14 are never true of a rank that is alone.
LOST_LAUNCHER = {195: f"{_SILENT} 195 when mpirun or its daemon went away"}  # LOST_CONNECTION
LOST = {  # MPI_ERR_UNKNOWN
    14: f"{_SILENT} 14 when the connection to another rank was closed",
    **LOST_LAUNCHER,
}
RANK_NAMES = RankNames("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")
SERVER_PORT = "7592"
DATA_PARALLEL = ("smdistributed.dataparallel", "pytorchddp")


def plan_mpi(
    job: Job, option: Mpi, all_facts: Sequence[HostFacts], staged: Staged, tools: Tools
) -> LaunchPlan:
    """Raises ConfigError: no Open MPI, different ones, options that are not allowed, or a number
    of ranks that the hosts cannot hold."""
    facts = by_host_index(job.cluster, all_facts)
    version = check_versions(job, facts)
    options = read_options(option, version, several=len(job.cluster.distribution) > 1)
    counts = mpi_processes(job, facts, option)
    world = build_world(job, facts, counts)
    setting = _choose_setting(job, option, options, world, staged.environ)
    environ = variables.compose(staged.environ, setting.additions, setting.without)
    # Open MPI's own processes get no variable of -x (LD_PRELOAD, say), which are for scripts, and
    # no OMPI_*: its parameters would change how daemons start, and mpirun carries all the others to
    # the ranks of every host, where they would stand for what Open MPI made.
    plain = variables.compose(staged.environ, setting.for_launch, setting.without)
    own = {name: value for name, value in plain.items() if not name.startswith("OMPI_")}
    cluster, cwd = job.cluster, staged.program.code_dir
    ranks = LaunchedRanks(RANK_NAMES, RANK_ENV, scratch(version, options, environ))
    starter: Starter = Direct()
    if cluster.is_leader:
        line = launch_line(job, world, version, options, staged, tools)
        others = {facts[host_index].address: host_index for host_index in cluster.distribution[1:]}
        starter = Launcher(Command(line, own, cwd), ranks, others)
    elif cluster.in_distribution:
        starter = launch_daemon(world, job, version, options, tools, own, cwd, ranks)
    return LaunchPlan(
        *shared(job, world),
        script=Command(script.bound_argv(staged), environ, cwd),
        script_is_python=script.is_python(staged.program),
        additions=setting.additions,
        agreed=(
            *script.agreed_argv(staged, job.paths.base),
            *agreed_line(job, world, version, options),
            *agreed_parameters(job, staged.environ),
        ),
        notes=(
            notes.layout(f"{option.option}: mpirun of Open MPI {version}", world),
            *map(str, setting.additions),
            *setting.notes,
        ),
        ports=job_ports(job, world),
        starter=starter,
        ends=EndPolicy(
            kill_launcher_on_failure=True,
            peer_loss_exit_codes=LOST if world.size > 1 else LOST_LAUNCHER,
        ),
        per_rank=_each_rank(option, world, cluster.current),
    )


def _choose_setting(
    job: Job, option: Mpi, options: MpiOptions, world: World, environ: Mapping[str, str]
) -> variables.Setting:
    """The environment of this host's script."""
    cluster = job.cluster
    links = fabric.plan_fabric(job, world.facts, environ)
    foreign = tuple(name for name in environ if name.startswith(FOREIGN))
    leader = variables.master(world)
    made = variables.threads(cluster.current, world, environ) if cluster.in_distribution else ()
    rank_names = (*variables.RANK_VARIABLES, *variables.MASTER_VARIABLES)
    asked = tuple(
        Addition(name, value, "asked for by -x of the custom MPI options", USER)
        for name, value in options.variables
    )
    kept = {addition.name for addition in asked}
    own = tuple(one for one in (*made, *links.additions) if one.name not in kept)
    launch = (*variables.spoken(environ), *leader, *own, *_data_parallel(option, world, job))
    link = own_link(world, cluster.current, options, environ)
    shared = transport_parameters(job, environ)
    return variables.Setting(
        additions=(*launch, *link, *asked),
        for_launch=launch,
        without=(*rank_names, *foreign),
        notes=(
            *variables.overridden(environ, rank_names, leader, option.option),
            *(f"{name} is kept from mpirun: it belongs to another launcher" for name in foreign),
            *options.warnings,
            *(f"{name} is set here: every host must set it so" for name in shared),
            *links.notes,
            *notes.outsiders(job),
            *notes.shared_devices(job, world),
        ),
    )


def _each_rank(option: Mpi, world: World, host: int) -> dict[int, dict[str, str]]:
    each = variables.each_rank(world, host)
    if option.option not in DATA_PARALLEL:
        return each
    theirs = variables.each_data_parallel_rank(world, host)
    return {rank: {**own, **theirs[rank]} for rank, own in each.items()}


def _data_parallel(option: Mpi, world: World, job: Job) -> tuple[Addition, ...]:
    """What scripts of smdistributed.dataparallel may read."""
    if option.option not in DATA_PARALLEL:
        return ()
    reason = f"{option.option} sets it"
    sent = job.documents.framework_parameters.get("sagemaker_instance_type")
    made = [("SAGEMAKER_INSTANCE_TYPE", str(sent or job.cluster.me.instance_type))]
    if len(world.counts) == 1:
        made.append(("SMDATAPARALLEL_USE_SINGLENODE", "1"))
    else:
        made += [
            ("SMDATAPARALLEL_USE_HOMOGENEOUS", "1"),
            ("SMDATAPARALLEL_SERVER_ADDR", world.address),
            ("SMDATAPARALLEL_SERVER_PORT", SERVER_PORT),
        ]
    return tuple(Addition(name, value, reason) for name, value in made if value)
