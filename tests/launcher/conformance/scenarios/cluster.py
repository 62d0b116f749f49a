"""What the script is told of hosts, groups, channels and settings."""

from __future__ import annotations

from tests.launcher.conformance.scenario import ABSENT, BARE, Group, Scenario
from tests.launcher.conformance.scenarios.meant import accepted, differs, tied
from tests.launcher.conformance.scenarios.parts import script, sdk
from tests.launcher.conformance.tools import say

_ETH0 = {"network_interface_name": "eth0"}
_FILE = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"}

_SCENARIOS = (
    Scenario("cluster: local mode has no groups", sdk(), script(), groups=None),
    Scenario(
        "cluster: a named group",
        sdk(),
        script(),
        groups=(Group("workers", ("algo-1",), "ml.g5.xlarge"),),
    ),
    Scenario("cluster: a host called otherwise", sdk(), script(), hosts=("algo-1-x7k2q",)),
    Scenario(
        "cluster: two hosts, no distribution",
        sdk(),
        script(),
        hosts=("algo-1", "algo-2"),
    ),
    Scenario(
        "cluster: topology of the platform",
        sdk(),
        script(),
        resource={"topology": [{"hostName": "algo-1", "capacityUnitId": "u1"}], "new_key": 1},
    ),
    Scenario(
        "cluster: interface that is not there",
        sdk(),
        script(),
        resource={"network_interface_name": "ethwe"},
    ),
    Scenario(
        "channels: two",
        sdk(),
        script(),
        channels={"train": {**_FILE, "ContentType": "text/csv"}, "validation": _FILE},
        tree={"input/data/train/a.csv": "1\n", "input/data/validation/b.csv": "2\n"},
    ),
    Scenario(
        "channels: dash in the name",
        sdk(),
        script(),
        channels={"train-a": _FILE},
        tree={"input/data/train-a/a.csv": "1\n"},
    ),
    Scenario(
        "channels: folder not there",
        sdk(),
        script(),
        channels={"train": {"TrainingInputMode": "Pipe"}},
    ),
    Scenario(
        "settings: job name and region",
        sdk(sagemaker_job_name="named-by-hyperparameter", sagemaker_region="eu-west-1"),
        script(),
        environ={"TRAINING_JOB_NAME": "named-by-variable", "AWS_REGION": "us-east-2"},
    ),
    Scenario("settings: log level", sdk(sagemaker_container_log_level=10), script()),
    Scenario("settings: log level by name", sdk(sagemaker_container_log_level="INFO"), script()),
    Scenario(
        "settings: intermediate output to a folder",
        sdk(sagemaker_s3_output="file:///tmp/never-written"),
        script(),
    ),
    Scenario(
        "settings: the user's own environment",
        sdk(),
        script(),
        environ={
            "NCCL_DEBUG": "INFO",
            "NCCL_SOCKET_IFNAME": "bond0",
            "MASTER_ADDR": "10.0.0.9",
            "OMP_NUM_THREADS": "3",
            "PYTHONUNBUFFERED": "0",
            "EMPTY": "",
        },
    ),
    Scenario(
        "devices: four GPUs",
        sdk(),
        script(),
        tools={"nvidia-smi": say("".join(f"GPU {n}: T4 (UUID: GPU-{n})\n" for n in range(4)))},
    ),
    Scenario(
        "devices: two Neuron devices of two cores",
        sdk(),
        script(),
        tools={"neuron-ls": say('[{"nc_count": 2}, {"nc_count": 2}]')},
    ),
    Scenario(
        "devices: a GPU tool that fails",
        sdk(),
        script(),
        tools={"nvidia-smi": "sys.exit(9)\n"},
    ),
    Scenario(
        "isolated: /opt/ml, names and no variable of ours",
        sdk(),
        script(),
        resource=_ETH0,
        isolated=True,
    ),
)
_MEANT = {
    "cluster: two hosts, no distribution": differs(
        "scripts that make their own process group find the leader",
        ("env.MASTER_ADDR", ABSENT, "127.0.0.1"),
        ("env.MASTER_PORT", ABSENT, "7777"),
        ("env.NCCL_SOCKET_IFNAME", ABSENT, "lo"),
        oracle=BARE,
    ),
    "channels: dash in the name": differs(
        "a spelling that a shell can read, beside the incumbent's",
        ("env.SM_CHANNEL_TRAIN_A", ABSENT, "<base>/input/data/train-a"),
    ),
    "settings: log level by name": accepted("names are levels too"),
}  # fmt: skip

SCENARIOS = tied(_SCENARIOS, _MEANT)
