"""mpi, pytorchddp and smdistributed: mpirun's line and what ranks see."""

from __future__ import annotations

from tests.launcher.conformance.facets import CULPRIT
from tests.launcher.conformance.scenario import ABSENT, BARE, PYTORCH, Group, Scenario
from tests.launcher.conformance.scenarios.meant import FITS, differs, tied
from tests.launcher.conformance.scenarios.parts import SCRIPT, SHELL, script, sdk
from tests.launcher.conformance.tools import MPI_TOOLS, SSH, say

_ON = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": ""}
_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
_SMDDP = {
    "sagemaker_distributed_dataparallel_enabled": True,
    "sagemaker_distributed_dataparallel_custom_mpi_options": "",
    "sagemaker_instance_type": "ml.c5.xlarge",
}
_TWO = ("algo-1", "algo-2")
_GPUS = say("".join(f"GPU {n}: H200 (UUID: GPU-{n})\n" for n in range(2)))


def _mpi(name: str, hyperparameters: dict[str, str], **more: object) -> Scenario:
    """A job whose mpirun records its line; both launchers take that one."""
    plain = Scenario(
        name,
        hyperparameters,
        script(),
        environ={"MUSTER_MPIRUN": "<base>/../tools/mpirun"},
        tools=MPI_TOOLS,
        site={"paramiko.py": SSH},
    )
    return plain._replace(**more)  # type: ignore[arg-type]


_SCENARIOS = (
    _mpi("mpi: one host, no device", sdk(**_ON, lr=0.1, note="a b")),
    _mpi("mpi: one host, two ranks", sdk(**_ON, **{_PER_HOST: 2})),
    _mpi("mpi: one host, two GPUs", sdk(**_ON), tools={**MPI_TOOLS, "nvidia-smi": _GPUS}),
    _mpi("mpi: fewer processes than slots",
         sdk(**_ON, **{_PER_HOST: 4}, sagemaker_mpi_num_processes=2)),
    _mpi("mpi: custom options",
         sdk(sagemaker_mpi_enabled=True, sagemaker_mpi_custom_mpi_options=(
             "--NCCL_DEBUG WARN -x A=1 -mca btl_tcp_eager_limit 4096 -mca pml ucx -verbose"))),
    _mpi("mpi: shell script", sdk("train.sh", **_ON), files={"train.sh": SHELL}),
    _mpi("mpi: two hosts", sdk(**_ON, **{_PER_HOST: 2}), hosts=_TWO, patience_s=12.0),
    _mpi("mpi: the second group only",
         sdk(**_ON, sagemaker_distribution_instance_groups=["gpu"]), hosts=_TWO,
         groups=(Group("cpu", ("algo-1",)), Group("gpu", ("algo-2",), "ml.g5.xlarge"))),
    _mpi("mpi: model parallel",
         sdk(**_ON, mp_parameters={"partitions": 1, "ddp": True}),
         files={"train.py": SCRIPT, "smdistributed/modelparallel/__init__.py": ""}),
    _mpi("mpi: a rank fails", sdk(**_ON), files=script(f"raise ValueError('{CULPRIT}')\n")),
    _mpi("smddp: one host, two ranks", sdk(**_SMDDP, **{_PER_HOST: 2}), oracles=(PYTORCH,)),
    _mpi("smddp: two hosts", sdk(**_SMDDP, **{_PER_HOST: 2}), hosts=_TWO, patience_s=12.0,
         oracles=(PYTORCH,)),
    _mpi("pytorchddp: one host",
         sdk(sagemaker_pytorch_ddp_enabled=True, sagemaker_instance_type="ml.c5.xlarge"),
         oracles=(PYTORCH,)),
    _mpi("smddp: the bare toolkit ignores it", sdk(**_SMDDP), oracles=(BARE,)),
)  # fmt: skip
_FOLLOWER = differs(
    "no fixed waits: a follower ends with its job, and as its job",
    ("in_time", "no", "yes"),
    ("survivors", "*", "0"),
    ("algo-2/exit", "None", "0"),
    ("algo-2/success", ABSENT, "empty"),
    ("algo-2/log.invocation", "", "*"),
    ("algo-2/log.report", "", "*SUCCESS"),
    ("algo-2/script.runs", "0", "2"),
    ("algo-2/calls.mpirun", ABSENT, "0"),
    ("algo-2/calls.orted", ABSENT, "1"),
    ("algo-1/calls.ssh", "1", ABSENT),
)  # fmt: skip
_MEANT = {
    "mpi: shell script": differs(
        "scripts are started as `sh script`",
        ("script.argv", '["./train.sh"]', '["train.sh"]'),
    ),
    "mpi: the second group only": differs(
        "hosts outside the distribution meet on the same interface",
        ("algo-1/env.NCCL_SOCKET_IFNAME", ABSENT, "lo"),
        oracle=BARE,
    ),
    "mpi: model parallel": differs(
        "true; the incumbent asks before it has set the variable",
        ("env.SM_TRAINING_ENV.is_modelparallel_enabled", "null", "true"),
    ),
    "mpi: a rank fails": FITS + differs(
        "the rank's last lines stand in the failure file",
        ("failure.culprit", "no", "yes"),
        oracle=BARE,
    ),
    "smddp: the bare toolkit ignores it": differs(
        "an option that was asked for is never dropped silently",
        ("calls.mpirun", ABSENT, "1"),
        ("env.OMPI_*", ABSENT, "*"),
        ("env.MASTER_*", ABSENT, "*"),
        ("env.*RANK", ABSENT, "0"),
        ("env.*WORLD_SIZE", ABSENT, "1"),
        ("env.SMDATAPARALLEL_USE_SINGLENODE", ABSENT, "1"),
        ("env.SMDATAPARALLEL_SIZE", ABSENT, "1"),
        ("env.SAGEMAKER_INSTANCE_TYPE", ABSENT, "ml.c5.xlarge"),
    ),
    "mpi: two hosts": _FOLLOWER,
    "smddp: two hosts": _FOLLOWER,
}  # fmt: skip

SCENARIOS = tied(_SCENARIOS, _MEANT)
