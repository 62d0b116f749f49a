"""The plans of parameter servers and of TensorFlow's mirrored workers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from muster.plan import plan
from muster.plan.launchplan import LaunchPlan, WorkEnds, port_variable
from muster.plan.script import TENSORFLOW_SERVER
from muster.stage.machine.frameworks import find_frameworks, imports
from muster.types.distribution import ParameterServer
from muster.types.errors import ConfigError
from muster.types.job import Settings
from muster.types.tools import Frameworks, Tools
from tests.launcher.support.jobs import make_cluster, make_facts, make_job, make_staged

TF, MX, PT = ("tensorflow",), ("mxnet",), ("torch", "muster_parameter_server")
MWMS = ParameterServer("multi_worker_mirrored_strategy")
HETERO = {"train": (1, 2), "data": (0,)}


def plan_on(
    current: int,
    hosts: int,
    found: Sequence[str] = TF,
    option: ParameterServer | None = None,
    *,
    imported: Sequence[str] = (),
    settings: Settings | None = None,
    environ: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    addresses: Sequence[str] = (),
    **facts: object,
) -> LaunchPlan:
    """The plan of one host where these modules are installed."""
    job = make_job(
        hosts,
        option or ParameterServer(),
        cluster=make_cluster(hosts, current, groups),
        settings=settings,
        environ=environ,
    )
    tools = Tools(frameworks=Frameworks(tuple(found), tuple(imported)))
    seen = make_facts(hosts, **facts)
    if addresses:
        seen = tuple(one._replace(address=text) for one, text in zip(seen, addresses, strict=True))
    return plan(job, seen, make_staged(job, environ=environ), tools)


def refused(*args: object, **options: object) -> str:
    """`where: what` of the only problem of a plan that is refused; it names a cure."""
    with pytest.raises(ConfigError) as caught:
        plan_on(*args, **options)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert problem.fix
    assert caught.value.exit_code == 100
    return str(problem)


def tf_config(environ: Mapping[str, str]) -> object:
    return json.loads(environ["TF_CONFIG"])


def servers_of(made: LaunchPlan) -> list[str]:
    return [service.name for service in made.services]


# TensorFlow, as sagemaker-training has it, with one intended difference: `chief` for `master`.

PS = ["algo-1:2223", "algo-2:2223", "algo-3:2223"]
CLUSTER = {"chief": ["algo-1:2222"], "worker": ["algo-2:2222", "algo-3:2222"], "ps": PS}


@pytest.mark.parametrize(
    ("current", "task"),
    [
        (0, {"type": "chief", "index": 0}),
        (1, {"type": "worker", "index": 0}),
        (2, {"type": "worker", "index": 1}),
    ],
)
def test_each_host_of_tensorflow_has_its_task_and_its_server(
    current: int, task: dict[str, object]
) -> None:
    made = plan_on(current, 3)
    assert tf_config(made.script.env) == {
        "cluster": CLUSTER,
        "task": task,
        "environment": "cloud",
    }
    (server,) = made.services
    assert server.name == f"server-{current}"
    assert server.command.argv == ("/usr/bin/python3", TENSORFLOW_SERVER)
    assert tf_config(server.command.env) == {
        "cluster": CLUSTER,
        "task": {"type": "ps", "index": current},
        "environment": "cloud",
    }
    assert server.command.env["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "CUDA_VISIBLE_DEVICES" not in made.script.env
    assert made.script.argv == ("/usr/bin/python3", "train.py")
    assert made.ends.work_ends is WorkEnds.WITH_RANK_0
    assert made.world_size == 3
    assert dict(made.ports) == {"control": 7776, "store": 7777, "worker": 2222, "ps": 2223}


def test_the_file_that_serves_tensorflow_is_there() -> None:
    assert os.path.isfile(TENSORFLOW_SERVER)


def test_scripts_made_for_tensorflow_1_get_the_old_name_of_the_chief() -> None:
    made = plan_on(0, 2, settings=Settings(tf_chief="master"))
    config = json.loads(made.script.env["TF_CONFIG"])
    assert config["task"] == {"type": "master", "index": 0}
    assert config["cluster"]["master"] == ["algo-1:2222"]
    assert "chief" not in config["cluster"]


def test_addresses_stand_for_names_that_do_not_resolve() -> None:
    config = json.loads(plan_on(0, 2, resolves_leader=False).script.env["TF_CONFIG"])
    assert config["cluster"] == {
        "chief": ["10.0.0.1:2222"],
        "worker": ["10.0.0.2:2222"],
        "ps": ["10.0.0.1:2223", "10.0.0.2:2223"],
    }


@pytest.mark.parametrize(
    "addresses", [("127.9.0.1", "127.9.0.2", "127.9.0.3"), ("10.0.0.1", "10.0.0.1", "10.0.0.2")]
)
def test_hosts_of_one_machine_have_ports_of_their_own(addresses: Sequence[str]) -> None:
    made = plan_on(1, 3, addresses=addresses, resolves_leader=False)
    cluster = json.loads(made.script.env["TF_CONFIG"])["cluster"]
    places = [*cluster["chief"], *cluster["worker"], *cluster["ps"]]
    ports = [int(place.rpartition(":")[2]) for place in places]
    assert ports == [2222, 2223, 2224, 2225, 2226, 2227]
    assert [place.rpartition(":")[0] for place in places] == [*addresses, *addresses]
    assert sorted(set(made.ports.values()) - {7776, 7777}) == sorted(ports)
    assert port_variable("ps-2") == "MUSTER_PS_PORT"
    assert port_variable("worker") == "MUSTER_WORKER_PORT"


def test_another_number_of_servers_is_spread_in_turns_from_the_first_host() -> None:
    made = [plan_on(host, 2, settings=Settings(ps_servers=3)) for host in (0, 1)]
    assert [servers_of(one) for one in made] == [["server-0", "server-2"], ["server-1"]]
    cluster = json.loads(made[0].script.env["TF_CONFIG"])["cluster"]
    assert cluster["ps"] == ["algo-1:2223", "algo-2:2223", "algo-1:2224"]
    fewer = [plan_on(host, 3, settings=Settings(ps_servers=1)) for host in (0, 1, 2)]
    assert [servers_of(one) for one in fewer] == [["server-0"], [], []]


def test_ports_are_settable_and_may_not_meet() -> None:
    made = plan_on(0, 2, settings=Settings(ps_port=4000, worker_port=5000))
    assert (made.ports["ps"], made.ports["worker"]) == (4000, 5000)
    told = refused(0, 2, settings=Settings(ps_port=7777))
    assert (
        told == "MUSTER_PS_PORT: 2 ports are needed from 7777 on, but port 7777 is the store "
        "port too"
    )
    told = refused(0, 2, settings=Settings(ps_port=65_535, ps_servers=4))
    assert "65536 is not a port" in told


@pytest.mark.promise("B48")
def test_tensorflow_needs_a_chief_and_a_worker() -> None:
    told = refused(0, 1)
    assert "TensorFlow's parameter servers need at least 2 hosts" in told
    assert "1 takes part" in told
    assert "at least 2 hosts" in refused(0, 2, groups={"train": (0,), "data": (1,)})


def test_all_hosts_agree_on_what_runs() -> None:
    for found in (TF, MX, PT):
        digests = {plan_on(host, 3, found).digest for host in range(3)}
        assert len(digests) == 1
        other = plan_on(0, 3, found, settings=Settings(ps_servers=2)).digest
        assert other not in digests
    assert len({plan_on(0, 3, found).digest for found in (TF, MX, PT)}) == 3


@pytest.mark.promise("B46")
def test_a_tf_config_of_the_surroundings_is_overridden_with_a_note() -> None:
    made = plan_on(0, 2, environ={"TF_CONFIG": "{}"})
    assert "TF_CONFIG={} of the environment is overridden: parameter_server sets it" in made.notes


def test_hosts_outside_the_distribution_run_the_script_once_and_it_is_said() -> None:
    made = [plan_on(host, 3, groups=HETERO, environ={"TF_CONFIG": "x"}) for host in range(3)]
    assert "TF_CONFIG" not in made[0].script.env
    assert servers_of(made[0]) == []
    assert json.loads(made[1].script.env["TF_CONFIG"])["task"]["type"] == "chief"
    assert made[1].world_size == 2
    assert {one.digest for one in made} == {made[0].digest}
    note = "outside the distribution, running the script once each: algo-1"
    assert all(note in one.notes for one in made)


# MultiWorkerMirroredStrategy


@pytest.mark.parametrize("current", [0, 1])
def test_mirrored_workers_are_all_hosts_and_there_are_no_servers(current: int) -> None:
    made = plan_on(current, 2, option=MWMS)
    assert tf_config(made.script.env) == {
        "cluster": {"worker": ["algo-1:8890", "algo-2:8890"]},
        "task": {"type": "worker", "index": current},
        "environment": "cloud",
    }
    assert made.services == ()
    assert made.ends.work_ends is WorkEnds.WITH_RANKS
    assert dict(made.ports) == {"control": 7776, "store": 7777, "worker": 8890}


@pytest.mark.parametrize(
    ("option", "line"),
    [
        (MWMS, "Running distributed training job with multi_worker_mirrored_strategy setup"),
        (None, "Running distributed training job with parameter servers"),
    ],
)
def test_the_lines_of_the_vendors_image_that_public_tests_look_for_are_logged(
    option: ParameterServer | None, line: str
) -> None:
    assert line in plan_on(0, 2, option=option).notes
    assert line not in plan_on(0, 2, found=PT).notes


def test_one_mirrored_worker_is_possible() -> None:
    made = plan_on(0, 1, option=MWMS)
    assert json.loads(made.script.env["TF_CONFIG"])["cluster"] == {"worker": ["127.0.0.1:8890"]}
    assert dict(made.ports) == {"worker": 8890}


@pytest.mark.promise("B26")
def test_mirrored_workers_of_another_framework_are_refused_with_the_alternative() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_on(0, 2, PT, MWMS)
    assert "tensorflow is not installed here" in caught.value.message
    assert "torch_distributed" in caught.value.fix
    told = refused(0, 2, TF, MWMS, settings=Settings(ps_framework="mxnet"))
    assert "MUSTER_PS_FRAMEWORK is mxnet" in told
    assert plan_on(0, 2, (), MWMS, settings=Settings(ps_framework="tensorflow")).world_size == 2


# MXNet, as sagemaker-training has it. Intended differences: DMLC_INTERFACE, instance groups count.


def dmlc(environ: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if k.startswith(("DMLC_", "PS_"))}


SHARED = {
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "8000",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "2",
    "DMLC_INTERFACE": "eth0",
    "PS_VERBOSE": "0",
}


def test_mxnet_has_a_scheduler_on_the_first_host_and_a_server_on_each() -> None:
    made = [plan_on(host, 2, MX) for host in (0, 1)]
    assert [servers_of(one) for one in made] == [["scheduler", "server-0"], ["server-1"]]
    for one in made:
        assert dmlc(one.script.env) == {**SHARED, "DMLC_ROLE": "worker"}
        assert dict(one.ports) == {"control": 7776, "store": 7777, "ps": 8000}
        assert one.ends.work_ends is WorkEnds.WITH_RANKS
        for service in one.services:
            assert service.command.argv == ("/usr/bin/python3", "-c", "import mxnet")
            role = service.name.partition("-")[0]
            assert dmlc(service.command.env) == {**SHARED, "DMLC_ROLE": role}


def test_mxnet_works_on_one_host_over_loopback() -> None:
    made = plan_on(0, 1, MX)
    assert servers_of(made) == ["scheduler", "server-0"]
    seen = dmlc(made.script.env)
    assert (seen["DMLC_PS_ROOT_URI"], seen["DMLC_INTERFACE"]) == ("127.0.0.1", "lo")
    assert dict(made.ports) == {"ps": 8000}


def test_what_the_user_says_of_mxnet_is_kept() -> None:
    environ = {"DMLC_INTERFACE": "ib0", "PS_VERBOSE": "2", "DMLC_NUM_WORKER": "9"}
    option = ParameterServer(scheduler_port=9000, verbosity=1)
    made = plan_on(0, 2, MX, option, environ=environ, settings=Settings(ps_port=9100))
    seen = dmlc(made.script.env)
    assert (seen["DMLC_INTERFACE"], seen["PS_VERBOSE"]) == ("ib0", "2")
    assert (seen["DMLC_PS_ROOT_PORT"], seen["DMLC_NUM_WORKER"]) == ("9000", "2")
    assert dmlc(made.services[0].command.env)["DMLC_INTERFACE"] == "ib0"
    assert "DMLC_INTERFACE=ib0 of the environment is kept" in made.notes
    assert any(note.startswith("DMLC_NUM_WORKER=9 of the environment") for note in made.notes)


# PyTorch: nobody else has it


def test_pytorch_has_a_server_on_each_host_and_ranks_as_torchrun_would_number_them() -> None:
    option = ParameterServer(processes_per_host=2)
    for host in (0, 1):
        made = plan_on(host, 2, PT, option)
        (server,) = made.services
        assert server.command.argv == ("/usr/bin/python3", "-m", "muster_parameter_server")
        shared = {
            "PARAMETER_SERVER_ADDRESSES": "algo-1:8001,algo-2:8001",
            "PARAMETER_SERVER_WORKERS": "4",
        }
        assert shared.items() <= made.script.env.items()
        assert {**shared, "PARAMETER_SERVER_INDEX": str(host)}.items() <= (
            server.command.env.items()
        )
        assert "PARAMETER_SERVER_INDEX" not in made.script.env
        first = 2 * host
        assert made.per_rank[first + 1] == {
            "RANK": str(first + 1),
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
        }
        assert made.script.env["MASTER_ADDR"] == "algo-1"
        assert made.script.env["MASTER_PORT"] == "7777"
        assert dict(made.ports) == {"control": 7776, "store": 7777, "ps": 8001}


def test_the_key_of_the_servers_is_in_no_plan_until_they_start() -> None:
    made = plan_on(0, 2, PT, environ={"PARAMETER_SERVER_KEY": "old-and-foreign"})
    assert made.secret_variable == "PARAMETER_SERVER_KEY"
    assert "PARAMETER_SERVER_KEY" not in made.script.env
    at_start = {"PARAMETER_SERVER_KEY": "made-now"}
    server = made.services[0].command.with_variables(at_start)
    for env in (made.rank_environment(0, {}, at_start), server.env):
        assert env["PARAMETER_SERVER_KEY"] == "made-now"
    helper = plan_on(0, 3, PT, groups=HETERO)
    assert helper.secret_variable == ""


def test_a_device_gets_a_rank_of_pytorch_else_the_host_one() -> None:
    assert plan_on(0, 2, PT, gpus=4).world_size == 8
    assert plan_on(0, 2, PT).world_size == 2
    assert "exceeds 4 devices" in refused(0, 1, PT, ParameterServer(processes_per_host=8), gpus=4)


@pytest.mark.parametrize("found", [TF, MX])
def test_several_processes_per_host_are_refused_where_one_takes_all_devices(
    found: Sequence[str],
) -> None:
    told = refused(0, 2, found, ParameterServer(processes_per_host=2))
    assert "runs one process per host, got 2" in told
    assert plan_on(0, 2, found, ParameterServer(processes_per_host=1)).world_size == 2


# whose servers


@pytest.mark.parametrize(
    ("found", "imported", "option", "first"),
    [
        (TF, (), "", "tensorflow"),
        (MX, (), "", "mxnet"),
        (PT, (), "", "pytorch"),
        ((*TF, "torch"), TF, "", "tensorflow"),
        ((*TF, "torch"), (), "", "tensorflow"),  # torch alone has no servers
        ((*TF, *PT), ("torch",), "", "pytorch"),
        ((*TF, *PT), TF, "", "tensorflow"),
        ((*TF, *MX), TF, "mxnet", "mxnet"),
        ((*TF, "torch"), (*TF, "torch"), "", "tensorflow"),
    ],
)
def test_the_framework_is_the_one_that_it_can_be(
    found: Sequence[str], imported: Sequence[str], option: str, first: str
) -> None:
    made = plan_on(0, 2, found, imported=imported, settings=Settings(ps_framework=option))
    assert first in made.agreed


@pytest.mark.promise("B26")
@pytest.mark.parametrize(
    ("found", "imported", "what", "cure"),
    [
        ((), (), "none of tensorflow, mxnet and torch is installed", "requirements.txt"),
        (("torch",), (), "muster_parameter_server is not installed", "muster-parallel"),
        ((*TF, "torch"), ("torch",), "muster_parameter_server is not", "muster-parallel"),
        ((*TF, *PT), (), "TensorFlow and PyTorch are installed", "MUSTER_PS_FRAMEWORK"),
        ((*TF, *MX), (*TF, *MX), "TensorFlow and MXNet are imported", "MUSTER_PS_FRAMEWORK"),
    ],
)
def test_a_framework_that_is_missing_or_in_doubt_is_an_error_with_its_cure(
    found: Sequence[str], imported: Sequence[str], what: str, cure: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_on(0, 2, found, imported=imported)
    assert what in caught.value.message
    assert cure in caught.value.fix


def test_a_framework_that_was_chosen_must_be_there() -> None:
    told = refused(0, 2, TF, settings=Settings(ps_framework="mxnet"))
    assert "mxnet is not installed here, and its servers need it" in told


@pytest.mark.parametrize("variable", ["SAGEMAKER_TRAINING_MODULE", "SM_FRAMEWORK_MODULE"])
def test_what_an_image_says_it_is_for_wins_over_what_is_installed(variable: str) -> None:
    environ = {variable: "sagemaker_mxnet_container.training:main"}
    assert plan_on(0, 2, (*TF, *MX), imported=TF, environ=environ).agreed[3] == "mxnet"


# what is looked for on the disk


def test_a_framework_is_found_without_being_imported(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "mxnet").mkdir()  # a folder of data is no package
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import tensorflow as tf\n")
    job = make_job(2)
    staged = make_staged(job, environ={"PYTHONPATH": f"/nowhere::{tmp_path}"})
    staged = staged._replace(program=staged.program._replace(code_dir=str(tmp_path / "code")))
    found = find_frameworks(staged)
    assert "tensorflow" in found.installed
    assert "mxnet" not in found.installed
    assert found.imported == ("tensorflow",)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import tensorflow as tf", TF),
        ("import os, tensorflow.keras as keras, sys", TF),
        ("    from mxnet import gluon  # late", MX),
        ("from tensorflow.keras import layers", TF),
        ("from muster_parameter_server import ParameterServer", ("muster_parameter_server",)),
        ("import torch; import mxnet", ("torch",)),
        ("# import tensorflow", ()),
        ("print('import tensorflow')", ()),
        ("import tensorflow_datasets, torchvision", ()),
        ("import", ()),
    ],
)
def test_imports_are_read_off_the_lines_of_the_script(line: str, found: Sequence[str]) -> None:
    assert imports(f"#!/usr/bin/env python\n{line}\n") == tuple(found)


def test_a_script_that_cannot_be_read_imports_nothing(tmp_path: Path) -> None:
    staged = make_staged(make_job(1), kind="module", name="pkg.train")
    assert find_frameworks(staged).imported == ()
