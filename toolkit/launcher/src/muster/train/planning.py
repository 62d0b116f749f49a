"""The plan of this host: made from the facts of all hosts, logged, checked on the leader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.contract import markers
from muster.plan import plan as make_plan
from muster.plan.launchplan import Launcher, LaunchPlan, port_variable
from muster.run.base.causes import SMALL_SHM_BYTES, more_shared_memory
from muster.run.channel.messages import shortened
from muster.train.limits import check_open_files
from muster.types.distribution import ParameterServer, Single
from muster.types.environment import CONTRACT, Environment
from muster.types.errors import ClusterError, ConfigError
from muster.types.job import Job, Staged
from muster.types.machine import HostFacts
from muster.types.steps import Log
from muster.types.tools import Tools

COMMAND_BYTES = 8192  # of a command line that the log shows
SHOWN_HASH = 12  # characters


def plan_job(job: Job, facts: Sequence[HostFacts], staged: Staged) -> LaunchPlan:
    """Raises ConfigError where hosts disagree, or cannot hold what was asked for."""
    _compare_code(job, facts)
    if job.settings.invented_names:
        staged = _by_address(job, facts, staged)
    plan = make_plan(job, facts, staged, _tools(job, staged, facts))
    check_open_files(len(plan.ranks_of(job.cluster.current)) + len(plan.services))
    return plan


def _by_address(job: Job, facts: Sequence[HostFacts], staged: Staged) -> Staged:
    from muster.contract.environ import by_address

    names = [host.name for host in job.cluster.hosts]
    addresses = {names[one.host_index]: one.address for one in facts}
    made = by_address(staged.environ, addresses)
    reason = f"{CONTRACT}: the engine gives no names"
    return staged._replace(environ=Environment.of(staged.environ).plus(made, reason))


def say_plan(job: Job, plan: LaunchPlan, log: Log, mask: Callable[[str], str]) -> None:
    """The lines of the plan. The others plan the same: one host that says why is enough."""
    level = "INFO" if job.cluster.is_leader else "DEBUG"
    for note in plan.notes:
        log("plan", note, level=level)
    for warning in plan.warnings if job.cluster.is_leader else ():
        log("plan", warning, level="WARNING")
    _warn_of_shared_memory(job, len(plan.ranks_of(job.cluster.current)), log)
    log(
        "plan",
        f"option {plan.option}",
        hosts=len(job.cluster.hosts),
        ranks=len(plan.ranks),
        leader=job.cluster.leader.name,
    )
    names = " ".join(sorted(name for name in plan.script.env if name.startswith("SM_")))
    log("plan", f"{markers.TRAINING_ENV} SM_TRAINING_ENV")
    log("plan", f"{markers.ENVIRONMENT_VARIABLES} {names}")
    log("plan", markers.INVOKING_USER_SCRIPT)
    command = plan.starter.command if isinstance(plan.starter, Launcher) else plan.script
    shown = shortened(mask(" ".join(command.argv)), COMMAND_BYTES)
    log("plan", f"{markers.INVOKING_COMMAND} {shown}")


def check_ports(job: Job, plan: LaunchPlan) -> None:
    """Raises ClusterError for a fixed port of the plan that cannot be bound here."""
    if not plan.ports:
        return  # nothing will listen
    from muster.stage.machine.network import can_bind, port_holder

    for name, port in plan.ports.items():
        if name == "control" or can_bind(port):
            continue  # the first is bound since the join
        holder = port_holder("0.0.0.0", port)
        if holder is not None:
            raise ClusterError(
                f"port {port} ({name}) is in use by {holder} on {job.cluster.me.name}",
                f"end that process, or set {port_variable(name)} on every host",
            )


def _tools(job: Job, staged: Staged, facts: Sequence[HostFacts]) -> Tools | None:
    """The programs that start ranks; nothing looks for them where none does."""
    option = job.distribution
    if isinstance(option, Single):
        return None
    from muster.stage.machine.programs import find_tools

    mpirun, version = job.settings.mpirun, facts[job.cluster.current].mpi
    tools = find_tools(staged.environ, staged.python, mpirun, version)
    if isinstance(option, ParameterServer):
        from muster.stage.machine.frameworks import find_frameworks

        tools = tools._replace(frameworks=find_frameworks(staged))
    return tools


def _compare_code(job: Job, facts: Sequence[HostFacts]) -> None:
    hosts = job.cluster.hosts
    leader = facts[job.cluster.leader.host_index]
    for fact in facts:
        if fact.code_hash != leader.code_hash:
            other, mine = hosts[fact.host_index].name, job.cluster.leader.name
            raise ConfigError.of(
                "code",
                f"hosts disagree: {other} has code {fact.code_hash[:SHOWN_HASH]}, "
                f"{mine} has code {leader.code_hash[:SHOWN_HASH]}",
                "start every host from the same source",
            )


def _warn_of_shared_memory(job: Job, ranks: int, log: Log) -> None:
    """Where it is an engine's default size, and something here may use it."""
    from muster.stage.machine.probe import shm_bytes

    size = shm_bytes()
    if size is None or size > SMALL_SHM_BYTES or (ranks == 1 and not _has_torch()):
        return
    log(
        "plan",
        f"/dev/shm has {size >> 20} MiB: DataLoader workers and NCCL may die of it; "
        f"{more_shared_memory(job.settings.isolation)}",
        level="WARNING",
    )


def _has_torch() -> bool:
    from importlib.util import find_spec  # takes milliseconds: asked last

    return find_spec("torch") is not None
