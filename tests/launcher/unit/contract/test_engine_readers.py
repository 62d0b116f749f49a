"""What a host understands from the environment that its engine gives it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contract.engines import detect
from muster.contract.engines.slurm import expanded
from muster.types.engine import Engine
from muster.types.errors import ConfigError

# what srun(1) says of a step on two of a job's three nodes; written by hand, not recorded
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.99",
}
BATCH = {
    "AWS_BATCH_JOB_ID": "c9e5-11#1",
    "AWS_BATCH_JOB_ATTEMPT": "2",
    "AWS_BATCH_JOB_NUM_NODES": "3",
    "AWS_BATCH_JOB_NODE_INDEX": "1",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.4",
}
TRAIN_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "tj-node-0-0.tj",
    "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "tj-node-0-1",
}
INDEXED = {"JOB_COMPLETION_INDEX": "2", "MUSTER_HOST_COUNT": "3", "HOSTNAME": "fit-2"}
MPI_JOB = {"K_MPI_JOB_ROLE": "worker", "HOSTNAME": "pi-worker-1"}
POD_TABLE = "127.0.0.1 localhost\n10.1.0.7\tfit-2.fit.default.svc.cluster.local\tfit-2\n"
HOSTFILE = "pi-worker-0.pi.default.svc slots=2\npi-worker-1.pi.default.svc slots=2\n"


def found(environ: Mapping[str, str], files: Mapping[str, str] = {}, wanted: str = "") -> Engine:
    return detect(environ, lambda path: files.get(path, ""), wanted).engine


def test_a_step_of_slurm() -> None:
    engine = found(SLURM)
    assert (engine.name, engine.host_index, engine.host_count) == ("slurm", 1, 2)
    assert engine.names == ("n1", "n2") and not engine.nameless
    assert (engine.job, engine.attempt) == ("slurm-7-0", 1)
    assert engine.origins["hosts"] == "variable SLURM_STEP_NODELIST"
    again = found({**SLURM, "SLURM_RESTART_COUNT": "2", "SLURM_JOB_END_TIME": "1795923964"})
    assert (again.attempt, again.deadline_s) == (3, 1795923964.0)


def test_a_batch_script_is_no_step() -> None:
    batch_script = {k: v for k, v in SLURM.items() if k not in ("SLURM_STEP_ID", "SLURM_STEPID")}
    assert found(batch_script).name == "single"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,05]", ["n1", "n2", "n3", "n05"]),
        ("a[08-11],gpu-2", ["a08", "a09", "a10", "a11", "gpu-2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_host_lists_of_slurm(text: str, names: list[str]) -> None:
    assert list(expanded(text)) == names


@given(st.text("n[]-,019", max_size=10))
def test_no_text_breaks_the_reader_of_host_lists(text: str) -> None:
    try:
        assert all("[" not in name for name in expanded(text))
    except ConfigError as error:
        assert "SLURM_STEP_NODELIST" in error.headline


def test_a_node_of_batch_counts_from_the_main_node() -> None:
    engine = found(BATCH)
    assert (engine.host_index, engine.host_count, engine.leader) == (1, 3, "10.0.0.4")
    assert engine.nameless and (engine.job, engine.attempt) == ("batch-c9e5-11", 2)
    moved = found({**BATCH, "AWS_BATCH_JOB_MAIN_NODE_INDEX": "2"})
    assert moved.host_index == 2


def test_pods_of_a_train_job() -> None:
    engine = found(TRAIN_JOB)
    assert (engine.name, engine.host_index, engine.host_count) == ("kubernetes", 1, 2)
    assert (engine.leader, engine.slots, engine.job) == ("tj-node-0-0.tj", None, "tj")
    assert found({**TRAIN_JOB, "PET_NPROC_PER_NODE": "4"}).slots == 4


def test_pods_of_an_indexed_job_find_the_first_one() -> None:
    engine = found(INDEXED, {"/etc/hosts": POD_TABLE})
    assert engine.leader == "fit-0.fit.default.svc.cluster.local"
    assert (engine.host_index, engine.host_count, engine.nameless) == (2, 3, True)


@pytest.mark.parametrize(
    ("environ", "what", "value"),
    [
        ({**SLURM, "SLURM_GPUS_ON_NODE": "8"}, "slots", 8),
        ({**SLURM, "SLURM_GPUS_ON_NODE": "0"}, "slots", None),
        ({"SKYPILOT_NUM_GPUS_PER_NODE": "4"}, "slots", 4),
        ({"SKYPILOT_TASK_ID": "sky-7"}, "job", "sky-7"),
        ({"MUSTER_JOB_NAME": "mine"}, "job", "mine"),
        ({"MUSTER_ATTEMPT": "2"}, "attempt", 2),
        # who writes a list has the last word, also beside SkyPilot's
        ({"MUSTER_HOSTS": "a,b"}, "names", ("a", "b")),
        ({"MUSTER_HOST_INDEX": "0"}, "host_index", 0),
    ],
)
def test_what_else_an_engine_may_say(environ: dict[str, str], what: str, value: object) -> None:
    listed = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"}
    engine = found(environ if "SLURM_NODEID" in environ else {**listed, **environ})
    assert getattr(engine, what) == value


def test_pods_of_an_mpi_job() -> None:
    engine = found(MPI_JOB, {"/etc/mpi/hostfile": HOSTFILE})
    assert engine.names == ("pi-worker-0.pi.default.svc", "pi-worker-1.pi.default.svc")
    assert (engine.host_index, engine.slots, engine.job) == (1, 2, "pi")
    # the operator's, which may lie elsewhere, and in pods whose role is not said
    told = {"OMPI_MCA_orte_default_hostfile": "/its/hostfile", "HOSTNAME": "pi-worker-0"}
    other = found({**told, **TRAIN_JOB, **told}, {"/its/hostfile": f"# made\n\n{HOSTFILE}"})
    assert (other.names, other.host_index) == (engine.names, 0)


@pytest.mark.parametrize(
    ("environ", "names", "addresses", "index"),
    [
        ({"MUSTER_HOSTS": "a,b", "MUSTER_HOST_INDEX": "1"}, ("a", "b"), {}, 1),
        (
            {"MUSTER_HOSTS": "a=10.0.0.1, b=fd00::2", "MUSTER_HOST_INDEX": "0"},
            ("a", "b"),
            {0: "10.0.0.1", 1: "fd00::2"},
            0,
        ),
        (
            {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"},
            ("10.0.0.1", "10.0.0.2"),
            {0: "10.0.0.1", 1: "10.0.0.2"},
            1,
        ),
        (
            {"MUSTER_HOSTS": "fd00::1,fd00::2", "MUSTER_HOST_INDEX": "1"},
            ("node-0", "node-1"),
            {0: "fd00::1", 1: "fd00::2"},
            1,
        ),
    ],
)
def test_lists_of_hosts(
    environ: Mapping[str, str], names: tuple[str, ...], addresses: Mapping[int, str], index: int
) -> None:
    engine = found(environ)
    assert (engine.name, engine.names, engine.host_index) == ("hosts", names, index)
    assert engine.addresses == addresses


def test_a_host_finds_itself_by_its_name_in_the_list() -> None:
    assert found({"MUSTER_HOSTS": "a,b"}, {"/etc/hostname": "b\n"}).host_index == 1


def test_the_first_engine_counts_and_others_are_told() -> None:
    detected = detect({**INDEXED, **SLURM, **BATCH}, lambda path: "")
    assert detected.engine.name == "slurm"
    assert detected.others == ("batch", "kubernetes", "hosts")
    assert found({**BATCH, **SLURM}, wanted="batch").name == "batch"
    assert found({**BATCH, "MUSTER_ENGINE": "single"}).name == "single"


def test_a_request_of_sagemaker_counts_unless_muster_run_wrote_it() -> None:
    config = "/opt/ml/input/config"
    request = '{"hosts": ["algo-1", "algo-2"], "current_host": "algo-2"}'
    files = {f"{config}/resourceconfig.json": request}
    assert found(SLURM, files).names == ("algo-1", "algo-2")
    files[f"{config}/muster-engine.json"] = "{}"
    assert found(SLURM, files).name == "slurm"


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "8"}, "8 tasks on 2 nodes"),
        ({**SLURM, "SLURM_NODEID": "2"}, "index 2 is not one of 2 hosts"),
        ({**SLURM, "SLURM_STEP_NODELIST": "n1"}, "1 hosts, and variable SLURM_STEP_NUM_NODES"),
        ({**SLURM, "SLURM_STEP_NODELIST": "n[1-"}, "no list of hosts"),
        ({**SLURM, "SLURM_STEP_NODELIST": "n1,n1"}, "appears twice"),
        ({**BATCH, "AWS_BATCH_JOB_NODE_INDEX": "x"}, "expected a whole number"),
        ({**BATCH, "AWS_BATCH_JOB_MAIN_NODE_INDEX": "3"}, "not both of 3 nodes"),
        ({**TRAIN_JOB, "PET_NNODES": "1:4"}, "does not change"),
        ({"JOB_COMPLETION_INDEX": "0"}, "MUSTER_HOST_COUNT: not set"),
        ({**INDEXED, "HOSTNAME": "other"}, "no name of pod 2"),
        (MPI_JOB, "not one of the 0 hosts"),
        ({"MUSTER_HOSTS": "a,b"}, "MUSTER_HOST_INDEX: not set"),
        ({"MUSTER_HOSTS": "a,a", "MUSTER_HOST_INDEX": "0"}, "appears twice"),
        ({"MUSTER_HOSTS": "a=b", "MUSTER_HOST_INDEX": "0"}, "is not NAME=ADDRESS"),
        ({"MUSTER_HOST_COUNT": "2", "MUSTER_HOST_INDEX": "1"}, "MUSTER_LEADER: not set"),
        # who says a part of it would else have a job of one host, and so would every other host
        ({"MUSTER_HOST_INDEX": "1", "MUSTER_LEADER": "a"}, "MUSTER_HOST_COUNT: not set"),
        ({"MUSTER_LEADER": "a"}, "MUSTER_HOST_COUNT: not set"),
        ({"MUSTER_HOST_COUNT": "2", "MUSTER_LEADER": "a"}, "MUSTER_HOST_INDEX: not set"),
        ({"MUSTER_ENGINE": "slrum"}, "did you mean 'slurm'"),
        ({"MUSTER_ENGINE": "batch"}, "batch did not start this host"),
    ],
)
def test_what_contradicts_itself_is_refused(environ: Mapping[str, str], what: str) -> None:
    with pytest.raises(ConfigError) as error:
        found(environ)
    assert what in error.value.headline
