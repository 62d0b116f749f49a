"""torchrun on every distribution host; it starts the rank shims, and they the script.

Static rendezvous: a host's place among the distribution hosts is its node rank, and torchrun sums
up the hosts' own process counts, so instance groups may hold different numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.plan import fabric, notes, script, variables
from muster.plan.launchplan import (
    Command,
    Direct,
    EndPolicy,
    LaunchedRanks,
    Launcher,
    LaunchPlan,
    Scratch,
    Starter,
    WorkEnds,
)
from muster.plan.slots import processes_per_host
from muster.plan.world import World, build_world, by_host_index, job_ports, shared
from muster.types.distribution import Torchrun
from muster.types.errors import ConfigError
from muster.types.job import Job, Staged
from muster.types.machine import HostFacts
from muster.types.tools import Tools

# NCCL_ASYNC_ERROR_HANDLING is its name before torch 2.2.
RANK_ENV = (
    *variables.RANK_VARIABLES,
    *variables.MASTER_VARIABLES,
    "TORCHELASTIC_*",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
)
COMPILE_VARIABLE = "RUN_NEURON_PARALLEL_COMPILE"
IDENTICAL = "TORCH_ELASTIC_WORKER_IDENTICAL"


def plan_torchrun(
    job: Job, option: Torchrun, all_facts: Sequence[HostFacts], staged: Staged, tools: Tools | None
) -> LaunchPlan:
    """Raises ConfigError for a number of ranks that the hosts' devices cannot hold."""
    facts = by_host_index(job.cluster, all_facts)
    counts = processes_per_host(job, facts, option.processes_per_host)
    world = build_world(job, facts, counts)
    setting = _choose_setting(job, world, staged.environ)
    environ = variables.compose(staged.environ, setting.additions, setting.without)
    compiles = staged.environ.get(COMPILE_VARIABLE) == "1" and any(fact.neurons for fact in facts)
    # the compile tool puts scripts into its trial mode by its own variables
    makes = (*RANK_ENV, "NEURON_*") if compiles else RANK_ENV
    # a folder for its ranks' logs, even if there are none, which it leaves where it is killed
    ranks = LaunchedRanks(makes=makes, scratch=Scratch(("TMPDIR",)))
    starter: Starter = Direct()
    if job.cluster.in_distribution:
        argv = _launcher_argv(job, world, staged, tools or Tools())
        starter = Launcher(Command(argv, environ, staged.program.code_dir), ranks)
    return LaunchPlan(
        *shared(job, world),
        script=Command(script.script_argv(staged), environ, staged.program.code_dir),
        script_is_python=script.is_python(staged.program),
        additions=setting.additions,
        agreed=_agreed(job, world, staged, compiles),
        notes=(notes.layout("torchrun", world), *map(str, setting.additions), *setting.notes),
        ports=job_ports(job, world),
        starter=starter,
        ends=EndPolicy(WorkEnds.WITH_LAUNCHER if compiles else WorkEnds.WITH_RANKS),
        per_rank=variables.each_data_parallel_rank(world, job.cluster.current)
        if option.data_parallel
        else {},
    )


def _launcher_argv(job: Job, world: World, staged: Staged, tools: Tools) -> tuple[str, ...]:
    """This host's line: `torchrun ... python -I -S rank_shim_main.py`.

    Raises ConfigError when graph compilation was asked for and its tool is not there.
    """
    host_index = job.cluster.current
    prefix: tuple[str, ...] = ()
    if staged.environ.get(COMPILE_VARIABLE) == "1" and world.facts[host_index].neurons:
        if not tools.neuron_parallel_compile:
            raise ConfigError.of(
                COMPILE_VARIABLE,
                "neuron_parallel_compile is neither on PATH nor beside the interpreter",
                f"use an image with torch-neuronx, or unset {COMPILE_VARIABLE}",
            )
        prefix = (tools.neuron_parallel_compile,)
    return (
        *prefix,
        *(tools.torchrun or (staged.python, "-m", "torch.distributed.run")),
        *_rendezvous(
            job,
            world,
            str(job.cluster.distribution.index(host_index)),
            str(world.counts[host_index]),
        ),
        *script.shim_argv(staged),
    )


def _rendezvous(job: Job, world: World, node_rank: str, processes: str) -> tuple[str, ...]:
    """torchrun's options, in the spelling that every torch knows.

    One host names its port too: torchrun's own choice is fixed, and the second job on a machine
    would fail on it.
    """
    hosts = len(job.cluster.distribution)
    alone = hosts == 1
    return (
        *("--nnodes", str(hosts), "--nproc_per_node", processes),
        *("--master_addr", "127.0.0.1" if alone else world.address),
        *("--master_port", str(world.port)),
        *(() if alone else ("--node_rank", node_rank)),
        "--no_python",
    )


def _choose_setting(job: Job, world: World, environ: Mapping[str, str]) -> variables.Setting:
    """The environment of this host's script; hosts outside the world get the leader's address."""
    cluster = job.cluster
    links = fabric.plan_fabric(job, world.facts, environ)
    elastic = tuple(name for name in environ if name.startswith("PET_"))
    uneven = len(set(world.counts.values())) > 1
    identical = (IDENTICAL,) if uneven and IDENTICAL in environ else ()
    made = (
        variables.threads(cluster.current, world, environ, "torchrun alone would set 1")
        if cluster.in_distribution
        else ()
    )
    leader = () if cluster.in_distribution else variables.master(world)
    rank_names = (*variables.RANK_VARIABLES, *variables.MASTER_VARIABLES)
    return variables.Setting(
        additions=(*variables.spoken(environ), *leader, *made, *links.additions),
        without=(*rank_names, *elastic, *identical),
        notes=(
            *variables.overridden(environ, rank_names, leader, "torch_distributed"),
            *(f"{name} is kept from torchrun, whose defaults it changes" for name in elastic),
            *(f"{name} is kept from torchrun: process counts differ" for name in identical),
            *links.notes,
            *notes.outsiders(job),
            *notes.shared_devices(job, world),
        ),
    )


def _agreed(job: Job, world: World, staged: Staged, compiles: bool) -> tuple[str, ...]:
    """The script's line and torchrun's, with placeholders for what is a host's own."""
    return (
        *script.agreed_argv(staged, job.paths.base),
        *(("neuron_parallel_compile",) if compiles else ()),
        "{torchrun}",
        *_rendezvous(job, world, "{node_rank}", "{processes}"),
    )
