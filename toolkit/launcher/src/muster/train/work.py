"""The work of the other layers on one host: stage the code, plan, check ports, write the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from muster.contract import markers, report
from muster.contract.environ import exports
from muster.contract.findings import Findings
from muster.contract.request.inputs import absent_channels, prepare_outputs
from muster.plan import plan as make_plan
from muster.plan.launchplan import Launcher, LaunchPlan, port_variable
from muster.run.base.background import BackgroundCall
from muster.run.base.causes import SMALL_SHM_BYTES, Surroundings, more_shared_memory
from muster.run.base.memory import Memory
from muster.run.channel.identity import Identity
from muster.run.channel.messages import shortened
from muster.run.child.private_folder import remove_abandoned
from muster.train.limits import check_open_files
from muster.train.network_identity import NetworkIdentity, say_if_key_is_open, warn_of_init
from muster.train.output import record_folder, say_what_is_missing
from muster.train.person import for_children
from muster.types.distribution import MODEL_PARALLEL, Distribution, Mpi, ParameterServer, Single
from muster.types.errors import ClusterError, ConfigError, LaunchError
from muster.types.job import Job, Program, Staged
from muster.types.machine import HostFacts, Machine
from muster.version import __version__

if TYPE_CHECKING:
    from muster.run.job.context import Ending
    from muster.run.job.supervisor import Output
    from muster.types.steps import StepRunner
    from muster.types.tools import Tools


COMMAND_BYTES = 8192  # of a command line that the log shows
TIDY_S = 1.0
SHOWN_HASH = 12  # characters


def _agreed_option(option: Distribution) -> str:
    """The option as hosts compare and show it: the custom options may hold secrets."""
    if isinstance(option, Mpi) and option.custom_options:
        from muster.run.channel.wire import digest_of

        option = option._replace(custom_options=digest_of(option.custom_options)[:12])
    return repr(option)


class JobWork:
    """The work of a valid request. Satisfies `run.job.context.Work`.

    `folder`: a private one, which is removed when the job ends, however it ends.
    """

    def __init__(self, job: Job, output: Output, network: NetworkIdentity, folder: str) -> None:
        self._job = job
        self._network = network
        self._output = output
        self._log = output.console
        self._masker = output.masker
        self._staged: Staged | None = None
        self._staging = False
        self._folder = folder

    def begin(self) -> None:
        """Before the join: room for the failure file, and what there is to warn of. Whether the job
        can write where it leaves its work is checked by `stage`, which reports it to all hosts."""
        self._prepared = BackgroundCall("prepare", self._prepare)
        for warning in self._job.warnings:
            self._log("read", warning, level="WARNING")
        warn_of_init(self._log)
        say_if_key_is_open(self._job, self._log)

    def _prepare(self) -> None:
        """Makes the folders of the job's work and reserves the failure file. Raises ConfigError."""
        remove_abandoned(os.path.dirname(self._folder))
        job = self._job
        findings = Findings()
        hint = job.platform.checkpoint_dir if job.platform is not None else None
        prepare_outputs(job.paths, hint, findings)
        for warning in findings.warnings:
            self._log("start", warning, level="WARNING")
        if not report.reserve(job.paths):
            self._log(
                "start",
                f"no room can be reserved for the failure file in {job.paths.output}",
                level="WARNING",
            )
        if findings.problems:
            raise findings.error()

    def identity(self) -> Identity:
        """Who this host is, and what all hosts must agree on."""
        job = self._job
        agreed: dict[str, str] = {}
        if len(job.cluster.hosts) > 1:
            from muster.run.channel.wire import digest_of

            agreed = {
                "hosts": str(len(job.cluster.hosts)),
                "program": job.program,
                "distribution": _agreed_option(job.distribution),
                "hyperparameters": digest_of(job.documents.hyperparameters)[:12],
                "toolkit": __version__,
            }
        cluster = job.cluster
        secret = job.settings.secret.encode()
        return Identity(job.id, cluster.me.name, cluster.current, agreed, secret)

    def around(self) -> Surroundings:
        """What surrounds the ranks of this host, less what the plan says."""
        from muster.stage.machine.probe import shm_bytes

        settings = self._job.settings
        return Surroundings(settings.isolation, settings.source, shm_bytes=shm_bytes())

    def memory(self) -> Memory:
        from muster.stage.machine.cgroup import Cgroups

        cgroups = Cgroups()
        return Memory(cgroups.oom_kills, cgroups.memory_limit_bytes)

    def stage(self, run: StepRunner, leader_address: str) -> HostFacts:
        """See `Work`. In this order: code, requirements, facts."""
        from muster.stage.code.source import code_hash, fetch
        from muster.stage.machine.probe import probe_machine
        from muster.stage.patience import Patience
        from muster.stage.python.install import install, target_of, with_target

        job = self._job
        with Patience(job.paths.base, self._log):
            self._prepared.result()
        self._staging = True
        environ = for_children(job.environ)
        target = job.settings.install_target
        if job.function:  # it fetches, installs and runs whatever it likes
            program = Program("function", job.function, job.paths.code, ())
        else:
            program = fetch(job, self._log)
            isolated = bool(job.platform is not None and job.platform.network_isolation)
            target = target_of(program, job.settings, environ, job.paths.base)
            settings = job.settings._replace(install_target=target)
            program = install(
                program, environ, settings, run, self._log, network_isolation=isolated
            )
        environ = with_target(environ, target)
        self._warn_of_absent_channels()
        machine = probe_machine(environ)
        several = len(job.cluster.hosts) > 1
        code = ""
        if several and not job.function:
            with Patience(program.code_dir, self._log):
                code = code_hash(program)
        merged = self._rank_environment(environ, machine, program)
        if job.distribution.option == MODEL_PARALLEL and job.cluster.in_distribution:
            from muster.stage.python.packages import require_packages

            require_packages(MODEL_PARALLEL, sys.executable, merged)
        self._staged = Staged(program, sys.executable, merged, code)
        return self._facts(machine, leader_address)

    def plan(self, facts: Sequence[HostFacts]) -> LaunchPlan:
        """See `Work`."""
        assert self._staged is not None
        self._compare_code(facts)
        plan = make_plan(self._job, facts, self._staged, self._tools(self._staged, facts))
        here = self._job.cluster.current
        check_open_files(sum(slot.host == here for slot in plan.ranks) + len(plan.services))
        # the others plan the same: one host that says why is enough
        level = "INFO" if self._job.cluster.is_leader else "DEBUG"
        for note in plan.notes:
            self._log("plan", note, level=level)
        for warning in plan.warnings if self._job.cluster.is_leader else ():
            self._log("plan", warning, level="WARNING")
        self._warn_of_shared_memory(sum(slot.host == here for slot in plan.ranks))
        self._log(
            "plan",
            f"option {plan.option}",
            hosts=len(self._job.cluster.hosts),
            ranks=len(plan.ranks),
            leader=self._job.cluster.leader.name,
        )
        names = " ".join(sorted(name for name in plan.script.env if name.startswith("SM_")))
        self._log("plan", f"{markers.TRAINING_ENV} SM_TRAINING_ENV")
        self._log("plan", f"{markers.ENVIRONMENT_VARIABLES} {names}")
        self._log("plan", markers.INVOKING_USER_SCRIPT)
        command = plan.starter.command if isinstance(plan.starter, Launcher) else plan.script
        shown = shortened(self._masker.mask(" ".join(command.argv)), COMMAND_BYTES)
        self._log("plan", f"{markers.INVOKING_COMMAND} {shown}")
        return plan

    def _tools(self, staged: Staged, facts: Sequence[HostFacts]) -> Tools | None:
        """The programs that start ranks; nothing looks for them where none does."""
        option = self._job.distribution
        if isinstance(option, Single):
            return None
        from muster.stage.machine.programs import find_tools

        mpirun, version = self._job.settings.mpirun, facts[self._job.cluster.current].mpi
        tools = find_tools(staged.environ, staged.python, mpirun, version)
        if isinstance(option, ParameterServer):
            from muster.stage.machine.frameworks import find_frameworks

            tools = tools._replace(frameworks=find_frameworks(staged))
        return tools

    def check(self, plan: LaunchPlan) -> None:
        """See `Work`: every fixed port of the plan can be bound here."""
        if not plan.ports:
            return  # nothing will listen
        from muster.stage.machine.network import can_bind, port_holder

        for name, port in plan.ports.items():
            if name == "control" or can_bind(port):
                continue  # the first is bound since the join
            holder = port_holder("0.0.0.0", port)
            if holder is not None:
                raise ClusterError(
                    f"port {port} ({name}) is in use by {holder} on {self._job.cluster.me.name}",
                    f"end that process, or set {port_variable(name)} on every host",
                )

    def write(self, ending: Ending) -> bool:
        """See `Work`."""
        try:
            self._prepared.result()
        except ConfigError:
            pass  # is reported as the outcome
        job = self._job
        written = report.write(job.paths, ending.outcome, self._masker)
        self._tidy()
        folder = record_folder(job)
        if folder and job.cluster.is_leader:
            from muster.train.summary import summary, write_summary

            problem = write_summary(folder, summary(job, ending, __version__), self._masker)
            if problem:
                self._log("record", f"no summary was written: {problem}", level="WARNING")
        return written

    def say(self, ending: Ending, written: bool) -> None:
        """See `Work`."""
        from muster.train.last_words import say_last

        say_what_is_missing(self._output)
        say_last(self._output, ending, self._masker, self._job.cluster.is_leader, written)

    def _tidy(self) -> None:
        """Removes code that is there in part; a mount that hangs is left to itself."""
        if not self._staging or self._staged is not None:
            return
        import threading

        from muster.stage.code.workspace import discard

        code = self._job.paths.code
        thread = threading.Thread(target=lambda: discard(code), name="tidy", daemon=True)
        try:
            thread.start()
            thread.join(TIDY_S)
        except RuntimeError:
            pass  # no thread can be had: the next run removes it

    def _warn_of_absent_channels(self) -> None:
        job = self._job
        group = job.cluster.me.group
        for name in absent_channels(job.documents.input_data_config, job.paths.data, group):
            where = f"{job.paths.data}/{name}"
            self._log("stage", f"channel {name!r} has no folder {where}", level="WARNING")

    def _warn_of_shared_memory(self, ranks: int) -> None:
        """Where it is an engine's default size, and something here may use it."""
        from muster.stage.machine.probe import shm_bytes

        size = shm_bytes()
        if size is None or size > SMALL_SHM_BYTES or (ranks == 1 and not _has_torch()):
            return
        self._log(
            "plan",
            f"/dev/shm has {size >> 20} MiB: DataLoader workers and NCCL may die of it; "
            f"{more_shared_memory(self._job.settings.isolation)}",
            level="WARNING",
        )

    def _rank_environment(
        self, environ: Mapping[str, str], machine: Machine, program: Program
    ) -> Mapping[str, str]:
        """The caller's environment, the SM_* variables over it, the code folder importable."""
        from muster.contract.spill import spill

        merged = {**environ, **exports(self._job, machine, program)}
        paths = [program.code_dir, merged.get("PYTHONPATH", "")]
        merged["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        where = os.path.join(self._folder, "spilled")
        try:
            result, warnings = spill(merged, where, program.arguments)
        except OSError as error:
            raise LaunchError(
                f"variables too large for the kernel cannot be kept in {where}: {error.strerror}",
                "give /tmp more room, or set TMPDIR to a folder with room",
            ) from error
        for warning in warnings:
            self._log("stage", warning, level="WARNING")
        return result

    def _facts(self, machine: Machine, leader_address: str) -> HostFacts:
        assert self._staged is not None
        cluster = self._job.cluster
        resolves = len(cluster.hosts) == 1
        if not resolves:
            from muster.stage.machine.network import resolve

            resolves = leader_address in resolve(cluster.leader.name, {})
        return HostFacts(
            host_index=cluster.current,
            address=self._network.address,
            interface=self._network.interface,
            cpus=machine.cpus,
            gpus=machine.gpus or 0,
            neurons=machine.neurons or 0,
            efa=machine.efa,
            resolves_leader=resolves,
            code_hash=self._staged.code_hash,
            toolkit=__version__,
            python=".".join(map(str, sys.version_info[:3])),
            mpi=self._mpi_version(),
        )

    def _mpi_version(self) -> str:
        """The version of Open MPI here, when the job needs it and this host takes part."""
        assert self._staged is not None
        cluster = self._job.cluster
        if not isinstance(self._job.distribution, Mpi) or not cluster.in_distribution:
            return ""
        from muster.stage.machine.programs import find_mpi, mpi_version

        environ, given = self._staged.environ, self._job.settings.mpirun
        return mpi_version(find_mpi(environ, self._staged.python, given)[0], environ)

    def _compare_code(self, facts: Sequence[HostFacts]) -> None:
        hosts = self._job.cluster.hosts
        leader = facts[self._job.cluster.leader.host_index]
        for fact in facts:
            if fact.code_hash != leader.code_hash:
                other, mine = hosts[fact.host_index].name, self._job.cluster.leader.name
                raise ConfigError.of(
                    "code",
                    f"hosts disagree: {other} has code {fact.code_hash[:SHOWN_HASH]}, "
                    f"{mine} has code {leader.code_hash[:SHOWN_HASH]}",
                    "start every host from the same source",
                )


def _has_torch() -> bool:
    from importlib.util import find_spec  # takes milliseconds: asked last

    return find_spec("torch") is not None
