"""What `train` would do for a request, found without starting anything, fetching code or asking
another host: the others are assumed to be like this machine, which is said."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from muster.commands.plan_tools import Found, find
from muster.commands.plan_values import SHOWN_HOSTS, DryRun, Preview, Row
from muster.commands.plan_view import command_line
from muster.contract.engines.sagemaker import MARK
from muster.plan import plan
from muster.plan.degrees import degrees_text
from muster.plan.launchplan import LaunchPlan, port_variable
from muster.types.deadlines import Deadlines, variable
from muster.types.files import read_object
from muster.types.job import Job, Program, Settings, Staged
from muster.types.machine import HostFacts, Machine
from muster.types.masking import MASK, Masker
from muster.types.names import listed


def preview(
    environ: Mapping[str, str],
    most: int | None = None,
    asked: bool = False,
    dry: DryRun | None = None,
) -> Preview:
    """All that `muster plan` shows, for the first `most` hosts and this one.

    `asked`: the base folder was given as an option. `dry`: the run it is for.
    Raises ConfigError as `train` would.
    """
    from muster.contract.environ import exports
    from muster.contract.request.files import BASE_VARIABLE
    from muster.contract.request.read import read_job
    from muster.stage.machine.probe import probe_machine
    from muster.train.environment import of_children, with_contract, with_requirements

    job = read_job({**environ, BASE_VARIABLE: dry.base} if dry else environ)
    machine = dry.machine(probe_machine(environ)) if dry else probe_machine(environ)
    program, reason = assumed_program(job)
    interface, interface_source = assumed_interface(job, machine)
    children = of_children(environ, "")
    installed = with_requirements(children, _target(job, program, children))
    environ_of_ranks, _ = with_contract(installed, job, machine, program, "")
    staged = Staged(program, sys.executable, environ_of_ranks, code_hash="")
    found = find(job, staged, environ)
    facts = assumed_facts(job, machine, interface, found.mpi_version)
    if dry and dry.names_resolve:
        facts = tuple(fact._replace(resolves_leader=True) for fact in facts)
    plans = {
        place: plan(
            job._replace(cluster=job.cluster._replace(current=place)), facts, staged, found.tools
        )
        for place in sorted({*range(len(facts))[:most], job.cluster.current})
    }
    masker = _masker(job, environ)
    rows: tuple[Row, ...] = (
        Row(
            "base folder",
            job.paths.base,
            "option --base-dir" if asked else _set_by(job, BASE_VARIABLE),
        ),
        *_engine_rows(job),
        *_request_rows(job, masker),
        *_world_rows(job, facts[job.cluster.current], plans[job.cluster.current]),
        Row("interface", interface, interface_source),
        *_tool_rows(found),
        *_port_rows(job, plans[0]),
        *_changed_rows(job),
    )
    assumed = (*assumptions(job, machine, reason), *found.assumptions)
    if dry:
        rows = dry.improved(rows)
        assumed += dry.assumptions
    mine = plans[job.cluster.current].rank_environment(-1, {}, {})
    exported = exports(job, machine, program)
    return Preview(job, masker, rows, assumed, plans, exported, mine)


def _target(job: Job, program: Program, environ: Mapping[str, str]) -> str:
    """Where staging would install requirements to, "" for the interpreter's own folder."""
    from muster.stage.python.install import target_of

    folder, _ = local_code(job)
    there = program._replace(code_dir=folder or program.code_dir)
    return target_of(there, job.settings, environ, job.paths.base)


def assumed_program(job: Job) -> tuple[Program, str]:
    """The program as staging would find it, and what had to be assumed where its code is not here.

    Raises ConfigError when the code is here and the program is not in it.
    """
    from muster.stage.code.program import decide

    where = job.origins.get("program", "program")
    folder, runs_in = local_code(job)
    # staging may set the execute bit of what it copies, so nothing is said against that here
    if folder and (folder == runs_in or job.program.endswith((".py", ".sh"))):
        found = decide(folder, job.program, job.arguments, where, ours=False)
        return found._replace(code_dir=runs_in), ""
    kind = "script" if job.program.endswith(".py") else "command"
    program = Program(kind, job.program, runs_in, job.arguments)
    return program, f"{job.program} runs as a {kind}: its code is not here to look at"


def local_code(job: Job) -> tuple[str, str]:
    """The folder that holds the code now, "" when only `train` will fetch it, and where it runs."""
    code, source = job.paths.code, job.source.removeprefix("file://")
    if not source or (os.path.isdir(code) and os.listdir(code)):
        return code, code
    channel = f"{job.paths.data}/code"
    if os.path.isdir(source) and not os.path.exists(f"{source}/sourcedir.tar.gz"):
        return source, source if os.path.realpath(source) == os.path.realpath(channel) else code
    return "", code


def assumed_facts(
    job: Job, machine: Machine, interface: str, mpi_version: str = ""
) -> tuple[HostFacts, ...]:
    """Every host as this one is; addresses only where the engine gives them."""
    cluster = job.cluster
    return tuple(
        HostFacts(
            host_index=host.host_index,
            address=cluster.addresses.get(host.name, host.name),
            interface=interface,
            cpus=machine.cpus,
            gpus=machine.gpus or 0,
            neurons=machine.neurons or 0,
            efa=machine.efa,
            resolves_leader=cluster.leader.name not in cluster.addresses,
            mpi=mpi_version,
        )
        for host in cluster.hosts
    )


def assumed_interface(job: Job, machine: Machine) -> tuple[str, str]:
    """The interface and its source, without asking any name server: that may take seconds."""
    from muster.stage.machine.network import choose_interface

    cluster = job.cluster
    here = any(one.name == cluster.interface for one in machine.interfaces)
    if not here and cluster.me.name not in cluster.addresses:
        return cluster.interface, "resourceconfig.json; not on this machine"
    choice = choose_interface(cluster, machine)
    source = f"this machine; {cluster.interface} {choice.reason}" if choice.reason else ""
    return choice.interface.name, source or "resourceconfig.json"


def assumptions(job: Job, machine: Machine, program: str) -> tuple[str, ...]:
    lines = [program] if program else []
    if len(job.cluster.hosts) > 1:
        found = (
            f"{machine.cpus} CPUs, {_count(machine.gpus, 'GPUs')}, "
            f"{_count(machine.neurons, 'Neuron cores')}, {'EFA' if machine.efa else 'no EFA'}"
        )
        lines.append(f"the other hosts are like this machine ({found}); folders are its own")
        if not job.cluster.addresses:
            lines.append("every host resolves the leader's name")
    return tuple(lines)


def _count(number: int | None, what: str) -> str:
    return f"{what} unknown" if number is None else f"{number or 'no'} {what}"


def _engine_rows(job: Job) -> tuple[Row, ...]:
    """What `muster run` had understood when it wrote the request, and from where."""
    found = read_object(f"{job.paths.config}/{MARK}")
    if not found:
        return ()
    understood: Mapping[str, tuple[str, str]] = found.get("understood", {})
    rows = [Row(f"  {what}", *said) for what, said in understood.items()]
    return (Row("engine", str(found.get("engine")), str(found.get("why"))), *rows)


def _request_rows(job: Job, masker: Masker) -> tuple[Row, ...]:
    origins = job.origins
    origin = origins.get("source", "default: the code folder")
    arguments = command_line(job.arguments, masker)
    return (
        Row("job", job.id or "-", origins.get("id", "nothing names it")),
        Row("program", job.program, origins.get("program", "")),
        Row("code", job.source or job.paths.code, origin + (", not fetched" if job.source else "")),
        Row("arguments", arguments or "-", "hyperparameters.json"),
        Row("option", job.distribution.option, origins.get("distribution", "")),
    )


def _world_rows(job: Job, facts: HostFacts, mine: LaunchPlan) -> tuple[Row, ...]:
    cluster = job.cluster
    counts = [len(mine.ranks_of(place)) for place in cluster.distribution]
    alike = len(set(counts)) == 1
    each = str(counts[0]) if alike else " + ".join(map(str, counts))
    product = f"{len(counts)} x {each}" if alike else each
    names = listed((cluster.hosts[place].name for place in cluster.distribution), SHOWN_HOSTS)
    rest = len(mine.ranks) - mine.world_size
    degrees = degrees_text(job, mine.world_size)
    helpers = f", and {rest} outside the distribution" if rest else ""
    return (
        Row("hosts", f"{len(counts)} ({names}){helpers}", "resourceconfig.json"),
        Row("processes per host", each, _processes_source(job, facts)),
        Row("world", f"{product} = {mine.world_size}", "hosts x processes"),
        *([Row("parallel", degrees, "hyperparameter mp_parameters")] if degrees else []),
        Row("leader", cluster.leader.name, "first distribution host"),
    )


def _port_rows(job: Job, made: LaunchPlan) -> tuple[Row, ...]:
    return tuple(
        Row(f"{name} port", str(port), _set_by(job, port_variable(name)))
        for name, port in made.ports.items()
    )


def _processes_source(job: Job, facts: HostFacts) -> str:
    if getattr(job.distribution, "processes", None) is not None:
        return "hyperparameter sagemaker_mpi_num_processes"
    if getattr(job.distribution, "processes_per_host", None) is not None:
        return "hyperparameter sagemaker_mpi_num_of_processes_per_host"
    if job.distribution.option == "none":
        return "no distribution: the script once per host"
    if facts.gpus:
        return "GPUs of this machine"
    return "Neuron cores of this machine" if facts.neurons else "default: no device was found"


def _tool_rows(found: Found) -> tuple[Row, ...]:
    """Open MPI, where the option needs it."""
    if not found.mpi_version:
        return ()
    return (Row("mpirun", f"{found.tools.mpirun} ({found.mpi_version})", found.mpi_source),)


def _masker(job: Job, environ: Mapping[str, str]) -> Masker:
    from muster.types.mpi_options import asked_variables

    return Masker.of(environ, job.documents.hyperparameters, asked_variables(job.distribution))


_SHOWN = {
    "line prefixes": "MUSTER_LOG_PREFIX",
    "without INFO": "MUSTER_QUIET",
    "lines as they stand": "MUSTER_LIVE",
    "ranks shown": "MUSTER_SHOW_RANKS",
}


def _changed_rows(job: Job) -> tuple[Row, ...]:
    """Settings and deadlines that are not the defaults, except the ports above."""
    from muster.contract.request.settings import VARIABLES

    rows = [
        Row(
            name.replace("_", " "),
            MASK if name == "secret" else job.environ[VARIABLES[name]],  # as it was typed
            f"variable {VARIABLES[name]}",
        )
        for name, value in job.settings._asdict().items()
        if value != Settings._field_defaults[name]
        and not name.endswith("_port")
        and name not in ("mpirun", "shown")  # they have rows of their own
    ]
    rows += [
        Row(what, job.environ[name], f"variable {name}")
        for what, name in _SHOWN.items()
        if name in job.environ
    ]
    rows += [
        Row(name, f"{value:g}", f"variable {variable(name)}")
        for name, value in job.deadlines._asdict().items()
        if variable(name) in job.environ
    ]
    limits = job.deadlines
    if limits.stop_total_s != Deadlines().stop_total_s:
        text = f"SIGKILL after {limits.stop_grace_s:g} s, end by {limits.stop_total_s:g} s"
        source = _set_by(job, variable("stop_grace_s"), "local instance")
        rows.append(Row("stop", text, _set_by(job, variable("stop_total_s"), source)))
    return tuple(rows)


def _set_by(job: Job, name: str, default: str = "default") -> str:
    return f"variable {name}" if name in job.environ else default
