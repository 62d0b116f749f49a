"""torch_distributed: the command lines and what ranks see (contract.md 3.4)."""

from __future__ import annotations

from tests.conformance.facets import CULPRIT
from tests.conformance.scenario import BARE, PYTORCH, Group, Scenario
from tests.conformance.scenarios.parts import SCRIPT, SHELL, script, sdk
from tests.conformance.tools import TORCHRUN, say

_ON = {"sagemaker_torch_distributed_enabled": True, "sagemaker_instance_type": "ml.m5.xlarge"}
_TWO = ("algo-1", "algo-2")
_GPUS = say("".join(f"GPU {n}: H200 (UUID: GPU-{n})\n" for n in range(2)))
_NEURONS = say('[{"nc_count": 2}, {"nc_count": 1}]')
_RECORDED = {"torchrun": TORCHRUN}

SCENARIOS = (
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
        tools={**_RECORDED, "mpirun": "sys.exit(0)\n"},
        oracles=(BARE,),
    ),
)
