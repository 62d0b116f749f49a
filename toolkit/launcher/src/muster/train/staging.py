"""Staging on one host: the code, its requirements, the environment of ranks, then the facts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from muster.contract import report
from muster.contract.findings import Findings
from muster.contract.request.inputs import absent_channels, prepare_outputs
from muster.run.child.private_folder import remove_abandoned
from muster.train.environment import of_children, with_contract, with_requirements
from muster.train.network_identity import NetworkIdentity
from muster.types.distribution import MODEL_PARALLEL, Mpi
from muster.types.job import Job, Program, Staged
from muster.types.machine import HostFacts, Machine
from muster.types.steps import Log, StepRunner
from muster.version import __version__


def prepare(job: Job, log: Log, folder: str) -> None:
    """Makes the folders of the job's work and reserves the failure file. Raises ConfigError."""
    remove_abandoned(os.path.dirname(folder))
    findings = Findings()
    hint = job.platform.checkpoint_dir if job.platform is not None else None
    prepare_outputs(job.paths, hint, findings)
    for warning in findings.warnings:
        log("start", warning, level="WARNING")
    if not report.reserve(job.paths):
        what = f"no room can be reserved for the failure file in {job.paths.output}"
        log("start", what, level="WARNING")
    if findings.problems:
        raise findings.error()


def stage(job: Job, run: StepRunner, log: Log, folder: str) -> tuple[Staged, Machine]:
    """What ranks run and in which environment, and what this host is. In this order: code,
    requirements, devices. `folder`: a private one. Raises MusterError."""
    from muster.stage.code.source import code_hash
    from muster.stage.machine.probe import probe_machine
    from muster.stage.patience import Patience

    environ = of_children(job.environ, folder)
    program, target = _bring_program(job, environ, run, log)
    environ = with_requirements(environ, target)
    _warn_of_absent_channels(job, log)
    machine = probe_machine(environ)
    code = ""
    if len(job.cluster.hosts) > 1 and not job.function:
        with Patience(program.code_dir, log):
            code = code_hash(program)
    environ, warnings = with_contract(environ, job, machine, program, folder)
    for warning in warnings:
        log("stage", warning, level="WARNING")
    if job.distribution.option == MODEL_PARALLEL and job.cluster.in_distribution:
        from muster.stage.python.packages import require_packages

        require_packages(MODEL_PARALLEL, sys.executable, environ)
    return Staged(program, sys.executable, environ, code), machine


def _bring_program(
    job: Job, environ: Mapping[str, str], run: StepRunner, log: Log
) -> tuple[Program, str]:
    """The program with its code and requirements here, and the folder that those went to."""
    if job.function:  # it fetches, installs and runs whatever it likes
        program = Program("function", job.function, job.paths.code, ())
        return program, job.settings.install_target
    from muster.stage.code.source import fetch
    from muster.stage.python.install import install, target_of

    program = fetch(job, log)
    isolated = bool(job.platform is not None and job.platform.network_isolation)
    target = target_of(program, job.settings, environ, job.paths.base)
    settings = job.settings._replace(install_target=target)
    install(program, environ, settings, run, log, network_isolation=isolated)
    return program, target


def facts_of(
    job: Job, staged: Staged, machine: Machine, network: NetworkIdentity, leader_address: str
) -> HostFacts:
    """What the other hosts need to know of this one."""
    cluster = job.cluster
    resolves = len(cluster.hosts) == 1
    if not resolves:
        from muster.stage.machine.network import resolve

        resolves = leader_address in resolve(cluster.leader.name, {})
    return HostFacts(
        host_index=cluster.current,
        address=network.address,
        interface=network.interface,
        cpus=machine.cpus,
        gpus=machine.gpus or 0,
        neurons=machine.neurons or 0,
        efa=machine.efa,
        resolves_leader=resolves,
        code_hash=staged.code_hash,
        toolkit=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        mpi=_mpi_version(job, staged),
    )


def _mpi_version(job: Job, staged: Staged) -> str:
    """The version of Open MPI here, when the job needs it and this host takes part."""
    if not isinstance(job.distribution, Mpi) or not job.cluster.in_distribution:
        return ""
    from muster.stage.machine.programs import find_mpi, mpi_version

    found = find_mpi(staged.environ, staged.python, job.settings.mpirun)
    return mpi_version(found[0], staged.environ)


def _warn_of_absent_channels(job: Job, log: Log) -> None:
    group = job.cluster.me.group
    for name in absent_channels(job.documents.input_data_config, job.paths.data, group):
        where = f"{job.paths.data}/{name}"
        log("stage", f"channel {name!r} has no folder {where}", level="WARNING")
