"""Differences that hold for every scenario of a kind; the others stand beside their scenario.

Each says why and where that is decided. `applies` looks at the scenario and at what the incumbent
did, so that a difference which ought to be there and is not is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.launcher.conformance.scenario import ABSENT, BARE, PYTORCH, Intended, Scenario


class Case(NamedTuple):
    """One scenario through one incumbent, as the conditions below see it."""

    scenario: Scenario
    theirs: Mapping[str, str]
    ours: Mapping[str, str]

    def both(self, name: str, *empty: str) -> bool:
        """Whether the facet `name` of some host says something on both sides."""
        return all(
            any(_named(key, name) and value not in (ABSENT, *empty) for key, value in side.items())
            for side in (self.theirs, self.ours)
        )

    def theirs_has(self, name: str, value: str) -> bool:
        return any(_named(key, name) and text == value for key, text in self.theirs.items())

    def theirs_ran_with(self, name: str, value: str) -> bool:
        """They gave a script this, and ours something else."""
        ours = any(_named(key, name) and text == value for key, text in self.ours.items())
        return self.ran and self.theirs_has(name, value) and not ours

    @property
    def ran(self) -> bool:
        """The script ran on both sides, started by the launcher and not by a function of its."""
        return self.both("script.runs", "0") and self.both("env.SM_HOSTS")

    @property
    def runs_python(self) -> bool:
        program = str(self.scenario.hyperparameters.get("sagemaker_program", ""))
        return program.strip('"').endswith(".py")

    @property
    def one_member(self) -> bool:
        """Only one host takes part in the distribution."""
        return self.alone or "sagemaker_distribution_instance_groups" in (
            self.scenario.hyperparameters
        )

    @property
    def alone(self) -> bool:
        return len(self.scenario.hosts) == 1

    @property
    def mpirun(self) -> bool:
        return self.both("calls.mpirun", "0")

    @property
    def smddp(self) -> bool:
        return self.mpirun and self.theirs_has("mpirun.oversubscribe", "yes")

    @property
    def torchrun(self) -> bool:
        return self.both("calls.torchrun")


class Common(NamedTuple):
    intended: Intended
    applies: Callable[[Case], bool]


def intended(
    scenario: Scenario, theirs: Mapping[str, str], ours: Mapping[str, str]
) -> tuple[Intended, ...]:
    """All differences that are meant for one scenario."""
    case = Case(scenario, theirs, ours)
    return (
        *scenario.differences,
        *(common.intended for common in COMMON if common.applies(case)),
    )


def _named(key: str, name: str) -> bool:
    return key.rsplit("/", 1)[-1] == name


def _added(name: str, reason: str) -> Intended:
    return Intended(f"env.{name}", ABSENT, "*", reason)


_V3 = "the v3 SDK's scripts know it by this name"
_ALWAYS = (
    Common(
        Intended(
            "log.logger", "yes", "no",
            "one line per event: time host level component message",
        ),
        lambda case: case.theirs_has("log.logger", "yes"),
    ),
)  # fmt: skip
_RAN = (
    *(
        Common(_added(name, _V3), lambda case: case.ran)
        for name in (
            "SM_CURRENT_HOST_RANK",
            "SM_ENTRY_SCRIPT",
            "SM_HOST_COUNT",
            "SM_INPUT_DATA_DIR",
            "SM_MASTER_ADDR",
            "SM_MASTER_PORT",
            "SM_OUTPUT_FAILURE",
            "SM_SOURCE_DIR",
        )
    ),
    Common(
        _added("MUSTER_RUN_ID", "marks what belongs to the run"),
        lambda case: case.ran,
    ),
    Common(
        _added("RUN_FACTS", "names the file that muster.runtime reads"),
        lambda case: case.ran,
    ),
    Common(
        _added("RANK_AGENT", "a Python that the shell becomes says where it is when it is asked"),
        lambda case: case.ran and not case.runs_python,
    ),
    Common(
        Intended(
            "env.PYTHONUNBUFFERED", ABSENT, "1",
            "lines appear when they are printed",
        ),
        lambda case: case.ran and "PYTHONUNBUFFERED" not in case.scenario.environ,
    ),
    Common(
        Intended(
            "env.PYTHONFAULTHANDLER", ABSENT, "1",
            "a crash prints the line where it happened",
        ),
        lambda case: case.ran and "PYTHONFAULTHANDLER" not in case.scenario.environ,
    ),
    *(
        Common(
            _added(name, "what collectives do goes into the record"),
            lambda case: case.ran,
        )
        for name in ("COLLECTIVES_FLIGHT_DIR", "COLLECTIVES_SUMMARY_DIR")
    ),
    Common(
        Intended(
            "env.PYTHONPATH", "<base>/code:<bin>:*", "<base>/code:<host>/site",
            "the user's own, not the toolkit's whole sys.path",
        ),
        lambda case: case.ran and "PYTHONPATH" not in case.scenario.environ,
    ),
    *(
        Common(
            Intended(
                f"env.{name}", "", ABSENT, "set when the request has it"
            ),
            applies,
        )
        for name, applies in (
            ("SAGEMAKER_JOB_NAME", lambda case: _empty(case, "SAGEMAKER_JOB_NAME")),
            ("SAGEMAKER_REGION", lambda case: _empty(case, "SAGEMAKER_REGION")),
        )
    ),
    Common(
        Intended("files.record", "no", "yes", "the record of the job"),
        lambda case: case.ran,
    ),
    *(
        Common(
            Intended(f"calls.{tool}", "*", "1", "asked once"),
            applies,
        )
        for tool, applies in (
            ("nvidia-smi", lambda case: case.both("calls.nvidia-smi")),
            ("neuron-ls", lambda case: case.both("calls.neuron-ls")),
        )
    ),
)  # fmt: skip
_SINGLE = "one host has nothing to meet and no interface to choose"
_PYTORCH_TOOLKIT = (
    *(
        Common(
            Intended(
                name, "*sagemaker_pytorch_container*", "*",
                "our launcher needs no module in the image", PYTORCH,
            ),
            lambda case: case.ran,
        )
        for name in ("env.SM_FRAMEWORK_MODULE", "env.SM_TRAINING_ENV.framework_module")
    ),
    Common(
        Intended(
            "env.NCCL_IB_DISABLE", "1", ABSENT,
            "it would switch InfiniBand and EFA off", PYTORCH,
        ),
        lambda case: case.ran,
    ),
    Common(
        Intended(
            "env.NCCL_DEBUG", "WARN", ABSENT,
            "the user's, or NCCL's default", PYTORCH,
        ),
        lambda case: case.theirs_ran_with("env.NCCL_DEBUG", "WARN"),
    ),
    Common(
        Intended(
            "env.NCCL_SOCKET_IFNAME", "*", ABSENT, _SINGLE, PYTORCH
        ),
        lambda case: case.ran and case.alone,
    ),
    *(
        Common(
            Intended(f"env.{name}", "*", ABSENT, _SINGLE, PYTORCH),
            lambda case: case.ran and case.alone and not (case.torchrun or case.mpirun),
        )
        for name in ("MASTER_ADDR", "MASTER_PORT")
    ),
)  # fmt: skip
_SEVERAL_HOSTS = (
    *(
        Common(
            _added(name, "gloo and rpc would take the host name's address"),
            lambda case: case.ran and not case.alone,
        )
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    ),
)  # fmt: skip
_TORCHRUN = (
    Common(
        Intended(
            "torchrun.command", '["train.py"*',
            '*"-I", "-S", "<muster>/run/child/rank_shim_main.py"]',
            "the waiting shim starts the script", PYTORCH,
        ),
        lambda case: case.torchrun,
    ),
    Common(
        Intended(
            "torchrun.no-python", ABSENT, "yes",
            "the shim is a command", PYTORCH,
        ),
        lambda case: case.torchrun,
    ),
    *(
        Common(
            Intended(
                f"torchrun.{name}", ABSENT, value,
                "one host names its port too: torchrun's own is fixed", PYTORCH,
            ),
            lambda case: case.torchrun and case.alone,
        )
        for name, value in (("master-addr", "127.0.0.1"), ("master-port", "7777"))
    ),
    Common(
        Intended(
            "env.MASTER_PORT", "29500", "7777",
            "one host names its port too: torchrun's own is fixed", PYTORCH,
        ),
        lambda case: case.torchrun and case.alone,
    ),
    Common(
        Intended(
            "env.NCCL_PROTO", "simple", ABSENT,
            "NCCL and its plugin choose", PYTORCH,
        ),
        lambda case: case.torchrun and "NCCL_PROTO" not in case.scenario.environ,
    ),
    Common(
        Intended(
            "env.OMP_NUM_THREADS", ABSENT, "1",
            "each rank's share of the CPUs", PYTORCH,
        ),
        lambda case: case.torchrun and any("rank1/" in key for key in case.theirs),
    ),
)  # fmt: skip
_RANKS = "every rank is told who it is, as under torchrun"
_X = "scripts have the environment of their own host; mpirun carries none of it"
_SPELLING = "two dashes and one map: Open MPI 4 and 5 start from one line"
_NAMED_HOSTS = "hosts by the address that they joined with, and their slots"
_NETWORK = "one host needs no network"
_NO_SSH = "hosts are reached through their supervisors, without ssh"


def _mpi(name: str, theirs: str, ours: str, reason: str, oracle: str = "") -> Intended:
    return Intended(name, theirs, ours, reason, oracle)


_MPIRUN = (
    *(
        Common(_added(name, _RANKS), lambda case: case.mpirun)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    ),
    *(
        Common(
            _mpi(f"env.{name}", ABSENT, "*", "the address of rank 0", BARE),
            lambda case: case.mpirun,
        )
        for name in ("MASTER_ADDR", "MASTER_PORT")
    ),
    Common(
        _mpi("env.MASTER_ADDR", "algo-?", "127.0.0.1", _NETWORK, PYTORCH),
        lambda case: case.mpirun and case.alone,
    ),
    *(
        Common(
            _mpi(
                f"env.{name}", value, ABSENT,
                "the user's, or NCCL's default",
            ),
            lambda case, name=name, value=value: (  # type: ignore[misc]
                case.mpirun and case.theirs_ran_with(f"env.{name}", value)
            ),
        )
        for name, value in (("NCCL_DEBUG", "INFO"), ("NCCL_MIN_NRINGS", "4"))
    ),
    Common(
        _mpi("env.NCCL_SOCKET_IFNAME", "*", ABSENT, _SINGLE, BARE),
        lambda case: case.mpirun and case.alone,
    ),
    Common(
        _mpi(
            "env.OMPI_MCA_*_backing_directory", ABSENT, "/dev/shm/muster-*",
            "what ranks share lies where it is removed with the job",
        ),
        lambda case: case.mpirun,
    ),
    Common(
        _mpi("env.OMP_NUM_THREADS", ABSENT, "*", "each rank's share of the CPUs"),
        lambda case: case.mpirun and any("rank1/" in key for key in case.theirs),
    ),
    Common(
        _mpi(
            "mpirun.command", "*", '*"-I", "-S", "<muster>/run/child/rank_shim_main.py"]',
            "the waiting shim starts the script, and not under mpi4py",
        ),
        lambda case: case.mpirun,
    ),
    Common(
        _mpi("mpirun.dashes", "1 and 2", "2", _SPELLING),
        lambda case: case.mpirun,
    ),
    Common(
        _mpi("mpirun.host", "algo-*", "localhost:*", _NAMED_HOSTS),
        lambda case: case.mpirun and case.one_member,
    ),
    Common(
        _mpi("mpirun.host", "algo-*", "127.0.0.1:*", _NAMED_HOSTS),
        lambda case: case.mpirun and not case.one_member,
    ),
    Common(
        _mpi(
            "mpirun.tag-output", "yes", ABSENT,
            "output of ranks does not pass through mpirun",
        ),
        lambda case: case.mpirun,
    ),
    Common(
        _mpi(
            "mpirun.display-map", "yes", ABSENT,
            "the plan is in the log of every job",
        ),
        lambda case: case.mpirun and not case.smddp,
    ),
    Common(
        _mpi(
            "mpirun.mca.orte_abort_on_non_zero_status", "1", ABSENT,
            "the supervisor ends a job, with grace; 1 is Open MPI's default",
        ),
        lambda case: case.mpirun,
    ),
    Common(
        _mpi("mpirun.mca.plm", ABSENT, "*", _NO_SSH),
        lambda case: case.mpirun,
    ),
    Common(
        _mpi("mpirun.x.*", "*", ABSENT, _X),
        lambda case: case.mpirun,
    ),
    Common(
        _mpi("mpirun.mca.*", "*", ABSENT, _NETWORK),
        lambda case: case.mpirun and case.one_member,
    ),
    Common(
        _mpi("mpirun.mca.btl", "^openib", "^openib,*", _NETWORK),
        lambda case: case.mpirun and case.one_member,
    ),
    *(
        Common(
            _mpi(f"mpirun.mca.{name}", ABSENT, "*", _NO_SSH),
            lambda case: case.mpirun and not case.one_member,
        )
        for name in ("plm_rsh_agent", "orte_launch_agent", "plm_base_node_regex_threshold")
    ),
    Common(
        _mpi(
            "mpirun.mca.plm_rsh_num_concurrent", ABSENT, "*",
            "all daemons are asked for at once",
        ),
        lambda case: case.mpirun and not case.one_member and not case.smddp,
    ),
)  # fmt: skip
_FABRIC = "the fabric is probed, not assumed"
_SMDDP = (
    *(
        Common(
            _mpi(f"env.{name}", value, ABSENT, _FABRIC),
            lambda case: case.smddp,
        )
        for name, value in (("FI_PROVIDER", "efa"), ("RDMAV_FORK_SAFE", "1"))
    ),
    *(
        Common(
            _mpi(f"mpirun.{name}", ABSENT, value, "all options run alike"),
            lambda case: case.smddp,
        )
        for name, value in (("map-by", "slot"), ("bind-to", "none"))
    ),
    Common(
        _mpi(
            "mpirun.oversubscribe", "yes", ABSENT,
            "every rank has its slot",
        ),
        lambda case: case.smddp,
    ),
    Common(
        _mpi(
            "env.SAGEMAKER_INSTANCE_TYPE", ABSENT, "ml.*",
            "set for one host as for several",
        ),
        lambda case: case.smddp and case.alone,
    ),
    *(
        Common(
            _mpi(
                f"env.SMDATAPARALLEL_{name}", ABSENT, "*",
                "what the library's smddprun would tell each rank",
            ),
            lambda case: case.smddp,
        )
        for name in ("RANK", "LOCAL_RANK", "SIZE")
    ),
    Common(
        _mpi(
            "env.SMDATAPARALLEL_SERVER_ADDR", "algo-1", "127.0.0.1",
            "the leader's joined address where its name does not resolve",
        ),
        lambda case: case.smddp and not case.alone,
    ),
)  # fmt: skip
_ADDRESSES = (
    *(
        Common(
            Intended(
                key, "algo-?", "127.0.0.?",
                "the leader's joined address where its name does not resolve",
                PYTORCH,
            ),
            applies,
        )
        for key, applies in (
            ("env.MASTER_ADDR", lambda case: case.ran and _on_loopback(case)),
            ("torchrun.master-addr", lambda case: case.torchrun and _on_loopback(case)),
        )
    ),
)  # fmt: skip


def _empty(case: Case, name: str) -> bool:
    return case.ran and case.theirs_has(f"env.{name}", "")


def _on_loopback(case: Case) -> bool:
    return not case.alone and not case.scenario.isolated


_USER_FAILURE = (
    Common(
        Intended(
            "failure.head", "ExecuteUserScriptError", "UserScriptError",
            "first line `Class: what, where`; the old word stands in the last",
        ),
        lambda case: (
            case.ran
            and case.both("failure")
            and case.theirs_has("failure.head", "ExecuteUserScriptError")
        ),
    ),
)  # fmt: skip
COMMON = (
    *_ALWAYS,
    *_RAN,
    *_PYTORCH_TOOLKIT,
    *_SEVERAL_HOSTS,
    *_TORCHRUN,
    *_MPIRUN,
    *_SMDDP,
    *_ADDRESSES,
    *_USER_FAILURE,
)
