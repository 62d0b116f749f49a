"""torch_distributed: the command lines and what ranks see."""

from __future__ import annotations

from tests.launcher.conformance.facets import CULPRIT
from tests.launcher.conformance.scenario import ABSENT, BARE, PYTORCH, Group, Scenario
from tests.launcher.conformance.scenarios.meant import accepted, differs, refused, tied
from tests.launcher.conformance.scenarios.parts import SCRIPT, SHELL, script, sdk
from tests.launcher.conformance.tools import MPI_TOOLS, SSH, TORCHRUN, say

_ON = {"sagemaker_torch_distributed_enabled": True, "sagemaker_instance_type": "ml.m5.xlarge"}
_TWO = ("algo-1", "algo-2")
_GPUS = say("".join(f"GPU {n}: H200 (UUID: GPU-{n})\n" for n in range(2)))
_NEURONS = say('[{"nc_count": 2}, {"nc_count": 1}]')
_RECORDED = {"torchrun": TORCHRUN}

_SCENARIOS = (
    Scenario(
        "torchrun: one host, no device",
        sdk(**_ON, lr=0.1),
        script(),
        tools=_RECORDED,
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: one host, two GPUs",
        sdk(**_ON),
        script(),
        tools={**_RECORDED, "nvidia-smi": _GPUS},
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: one host, three Neuron cores",
        sdk(**_ON),
        script(),
        tools={**_RECORDED, "neuron-ls": _NEURONS},
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: Neuron graphs compiled ahead",
        sdk(**_ON),
        script(),
        environ={"RUN_NEURON_PARALLEL_COMPILE": "1"},
        tools={
            **_RECORDED,
            "neuron-ls": _NEURONS,
            "neuron_parallel_compile": "os.execvp(sys.argv[1], sys.argv[1:])\n",
        },
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: ranks per host as asked",
        sdk(**_ON, sagemaker_mpi_num_of_processes_per_host=2),
        script(),
        tools={**_RECORDED, "nvidia-smi": _GPUS},
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: two hosts",
        sdk(**_ON, lr=0.1, note="a b"),
        script(),
        hosts=_TWO,
        tools=_RECORDED,
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: two hosts of two GPUs",
        sdk(**_ON),
        script(),
        hosts=_TWO,
        tools={**_RECORDED, "nvidia-smi": _GPUS},
        oracles=(PYTORCH,),
    ),
    Scenario(
        "isolated: torchrun on two hosts",
        sdk(**_ON),
        script(),
        hosts=_TWO,
        resource={"network_interface_name": "eth0"},
        tools=_RECORDED,
        isolated=True,
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: the second group only",
        sdk(**_ON, sagemaker_distribution_instance_groups=["gpu"]),
        script(),
        hosts=("algo-1", "algo-2", "algo-3"),
        groups=(
            Group("cpu", ("algo-1",)),
            Group("gpu", ("algo-2", "algo-3"), "ml.g5.xlarge"),
        ),
        tools=_RECORDED,
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: a rank fails",
        sdk(**_ON),
        script(f"raise ValueError('{CULPRIT}')\n"),
        tools=_RECORDED,
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: the user's NCCL variables",
        sdk(**_ON),
        script(),
        environ={"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "bond0", "NCCL_PROTO": "LL"},
        tools=_RECORDED,
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: an instance with EFA in its name only",
        sdk(**_ON),
        script(),
        groups=(Group("homogeneousCluster", ("algo-1",), "ml.p4d.24xlarge"),),
        tools=_RECORDED,
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: shell script",
        sdk("train.sh", **_ON),
        {"train.sh": SHELL},
        tools=_RECORDED,
        oracles=(PYTORCH,),
    ),
    Scenario(
        "torchrun: the bare toolkit ignores it",
        sdk(**_ON),
        script(),
        tools=_RECORDED,
        oracles=(BARE,),
    ),
    Scenario(
        "torchrun: switched off",
        sdk(sagemaker_torch_distributed_enabled=False),
        {"train.py": SCRIPT},
        tools=_RECORDED,
    ),
    Scenario(
        "torchrun: beside mpi",
        sdk(**_ON, sagemaker_mpi_enabled=True),
        script(),
        tools={**_RECORDED, **MPI_TOOLS},
        site={"paramiko.py": SSH},
        oracles=(BARE,),
    ),
)
_MEANT = {
    "torchrun: a rank fails": (),
    "torchrun: the user's NCCL variables": differs(
        "the user's variables are never replaced",
        ("env.NCCL_PROTO", "simple", ABSENT),
    ),
    "torchrun: an instance with EFA in its name only": differs(
        "the fabric is probed; a name proves nothing",
        ("env.FI_PROVIDER", "efa", ABSENT),
        ("env.FI_EFA_USE_DEVICE_RDMA", "1", ABSENT),
        ("env.RDMAV_FORK_SAFE", "1", ABSENT),
    ),
    "torchrun: shell script": (
        *accepted("the shim starts any entry point"),
        *differs("the shim starts any entry point",
                 ("calls.torchrun", ABSENT, "1")),
    ),
    "torchrun: the bare toolkit ignores it": differs(
        "an option that was asked for is never dropped silently",
        ("calls.torchrun", ABSENT, "1"),
        ("env.MASTER_ADDR", ABSENT, "127.0.0.1"),
        ("env.MASTER_PORT", ABSENT, "7777"),
        *((f"env.{name}", ABSENT, "?") for name in (
            "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
            "TORCHELASTIC_RESTART_COUNT",
        )),
        ("env.TORCHELASTIC_RUN_ID", ABSENT, "none"),
    ),
    "torchrun: beside mpi": (
        *refused("100", "two options at once are a mistake of the request"),
        *differs("neither of them starts", ("calls.mpirun", "1", ABSENT)),
    ),
}  # fmt: skip

SCENARIOS = tied(_SCENARIOS, _MEANT)
