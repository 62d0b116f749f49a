"""What each host is given: variables, addresses, visible paths, and the orders for its hosts."""

from __future__ import annotations

import json
import os
import sys

import pytest

from muster.contract.findings import Findings
from muster.contract.request.settings import parse_addresses, parse_settings
from muster.local import environment
from muster.local.backends.base import Backend
from muster.local.backends.choice import named
from muster.local.backends.netns.network import host_address
from muster.local.differences import differences
from muster.local.launch import stop_limit_s
from muster.local.orders import HostOrder, Orders, orders_from_line, to_line
from muster.local.paths import is_below, outermost, unsuitable
from muster.local.preparation import distribution_keys, make_orders
from muster.local.record.runfolder import RunFolder
from muster.local.request import MAX_HOSTS, Group
from muster.train.environment import without_own_variables
from tests.launcher.support.local.local_runs import make_request

FOLDER = RunFolder("/runs/x", "job-x", -1)
NETNS, PROCESS = named("netns"), named("process")


def host_environ(kind: type[Backend], caller: dict[str, str], **changes: object) -> dict[str, str]:
    backend = made(kind, **changes)
    shared = environment.run_variables(backend, backend.addresses())
    return environment.host_environ(caller, "algo-2", shared, backend)


def made(kind: type[Backend], **changes: object) -> Backend:
    return kind(make_request(**changes), FOLDER)


@pytest.mark.parametrize("backend", [NETNS, PROCESS])
def test_train_understands_every_variable_of_the_run(backend: type[Backend]) -> None:
    environ = host_environ(backend, {})
    findings = Findings()
    settings = parse_settings(environ, findings)
    found = parse_addresses(environ, ("algo-1", "algo-2"), findings)
    assert not findings.problems
    assert not findings.warnings
    assert settings.run_dir == "/runs/x"
    assert settings.shown.prefix
    assert (settings.shown.live, settings.shown.quiet) == (True, True)
    assert len(settings.secret) == 64
    assert settings.install_target == "/runs/x/algo-2/site"
    assert settings.control_port != settings.store_port
    assert len(set(found.values())) == 2
    assert environ["TRAINING_JOB_NAME"] == "job-x"


def test_what_another_job_left_in_the_environment_does_not_reach_the_hosts() -> None:
    caller = {
        "RANK": "3",
        "MASTER_ADDR": "elsewhere",
        "SM_HOSTS": "[]",
        "OMPI_COMM_WORLD_RANK": "1",
        "SAGEMAKER_PROGRAM": "other.py",
        "MUSTER_JOB_SECRET": "stale" * 8,
        "TF_CONFIG": "{}",
        "KEEP": "1",
        "MUSTER_STOP_GRACE_S": "2",
    }
    environ = host_environ(PROCESS, caller)
    assert environ["KEEP"] == "1"
    assert environ["MUSTER_STOP_GRACE_S"] == "2"
    assert environ["MUSTER_JOB_SECRET"] != caller["MUSTER_JOB_SECRET"]
    left = {"RANK", "MASTER_ADDR", "SM_HOSTS", "OMPI_COMM_WORLD_RANK", "SAGEMAKER_PROGRAM"}
    assert not (left | {"TF_CONFIG"}) & environ.keys()


def test_a_run_that_a_rank_starts_does_not_write_into_the_record_of_its_job() -> None:
    theirs = {"COLLECTIVES_SUMMARY_DIR": "/runs/outer/algo-1/collectives"}
    assert theirs.keys().isdisjoint(host_environ(PROCESS, {**theirs, "RUN_FACTS": "/x/facts.json"}))
    assert theirs.keys().isdisjoint(without_own_variables({**theirs, "RUN_FACTS": "/x/f"}))
    users = {"COLLECTIVES_SUMMARY_DIR": "/home/me/summaries"}
    for caller in (users, {**users, "RUN_FACTS": "/x/facts.json"}, theirs):
        environ = host_environ(PROCESS, caller)
        assert environ["COLLECTIVES_SUMMARY_DIR"] == caller["COLLECTIVES_SUMMARY_DIR"]


def test_two_runs_share_no_secret_and_no_address() -> None:
    made = [host_environ(PROCESS, {}) for _ in range(8)]
    assert len({environ["MUSTER_JOB_SECRET"] for environ in made}) == 8
    assert len({environ["MUSTER_HOST_ADDRESSES"] for environ in made}) > 5  # drawn from 65,024


def test_the_base_folder_is_the_trees_without_namespaces_and_opt_ml_in_them() -> None:
    assert host_environ(PROCESS, {})["SAGEMAKER_BASE_DIR"] == "/runs/x/algo-2/opt/ml"
    assert "SAGEMAKER_BASE_DIR" not in host_environ(NETNS, {"SAGEMAKER_BASE_DIR": "/else"})


def test_own_packages_and_the_callers_interpreter_come_first() -> None:
    environ = host_environ(PROCESS, {"PYTHONPATH": "/lib/mine", "PATH": "/bin"})
    assert environ["PYTHONPATH"] == "/runs/x/algo-2/site:/lib/mine"
    assert environ["PATH"] == f"{os.path.dirname(sys.executable)}:/bin"
    assert host_environ(PROCESS, {})["PYTHONPATH"] == "/runs/x/algo-2/site"


def test_isolated_hosts_have_a_home_of_their_own() -> None:
    environ = host_environ(NETNS, {"HOME": "/home/u", "XDG_CACHE_HOME": "/home/u/.cache"})
    assert environ["HOME"] == "/tmp/home"
    assert environ["TMPDIR"] == "/tmp"
    assert "XDG_CACHE_HOME" not in environ
    assert host_environ(PROCESS, {"HOME": "/home/u"})["HOME"] == "/home/u"


def test_variables_of_the_command_line_win() -> None:
    environ = host_environ(PROCESS, {"A": "1"}, environ={"A": "2", "RANK": "0"})
    assert (environ["A"], environ["RANK"]) == ("2", "0")


def test_the_scripts_arguments_travel_whole() -> None:
    environ = host_environ(PROCESS, {}, arguments=("--x", "a b", "$(c)"))
    assert json.loads(environ["MUSTER_SCRIPT_ARGUMENTS"]) == ["--x", "a b", "$(c)"]


def test_every_host_has_an_address_of_its_own() -> None:
    for kind in (NETNS, PROCESS):
        found = made(kind, hosts=MAX_HOSTS).addresses()
        assert len(set(found.values())) == MAX_HOSTS
    assert all(address.startswith("127.") for address in found.values())
    assert not {"127.0.0.1", "127.0.1.1"} & set(found.values())
    assert host_address(0) == "10.77.0.1"
    assert host_address(255) == "10.77.1.0"


def test_orders_survive_the_way_to_the_holder() -> None:
    host = HostOrder("algo-1", "10.77.0.1", ("/bin/x", "a b"), {"A": "\n"}, "/", "/b", 5, 6)
    orders = Orders("netns", (host,), ("/kept",), ("/rw",), {"train": "/data"})
    assert orders_from_line(to_line(orders)) == orders
    assert to_line(orders).count(b"\n") == 1


@pytest.mark.parametrize(("backend", "cwd"), [(NETNS, "/"), (PROCESS, "/runs/x/algo-1")])
def test_train_starts_where_no_file_of_the_user_can_shadow_a_module(
    backend: type[Backend], cwd: str
) -> None:
    orders = make_orders(made(backend, channels={"train": "/data"}), {})
    assert orders.hosts[0].cwd == cwd
    assert orders.backend == backend.name
    assert orders.writable == (("/runs/x",) if backend is NETNS else ())


def test_the_interpreter_is_among_the_visible_paths_and_tmp_itself_never() -> None:
    kept = environment.kept_paths({"PYTHONPATH": "/tmp:relative", "PATH": "/tmp/nowhere"})
    assert sys.prefix in kept
    assert not {"/tmp", "/tmp/nowhere", "relative"} & set(kept)


def test_only_outermost_paths_are_bound() -> None:
    assert outermost(["/tmp/a/b", "/tmp/a", "/tmp/ab", "/tmp/a"]) == ["/tmp/a", "/tmp/ab"]
    assert is_below("/tmp/a", ["/tmp"])
    assert not is_below("/tmpfiles", ["/tmp"])


def test_a_run_folder_below_opt_ml_rules_namespaces_out() -> None:
    assert "/opt/ml" in unsuitable("/opt/ml/code/muster-runs/x")
    assert unsuitable("/opt/mlx/runs") == ""


def test_all_groups_take_part_unless_the_distribution_names_some() -> None:
    groups = (Group("a", 1, "local"), Group("b", 1, "local"))
    keys = distribution_keys(make_request(groups=groups, distribution="torch_distributed"))
    assert json.loads(keys["sagemaker_distribution_instance_groups"]) == ["a", "b"]
    named = {"torch_distributed": {"enabled": True}, "instance_groups": ["b"]}
    keys = distribution_keys(make_request(groups=groups, distribution=named))
    assert json.loads(keys["sagemaker_distribution_instance_groups"]) == ["b"]
    assert distribution_keys(make_request(groups=groups)) == {}


def test_hosts_get_the_time_to_stop_that_train_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_STOP_GRACE_S", raising=False)
    assert stop_limit_s(make_request()) == 10
    assert stop_limit_s(make_request(instance_type="ml.c5.xlarge")) == 111
    assert stop_limit_s(make_request(environ={"MUSTER_STOP_GRACE_S": "1"})) == 4


@pytest.mark.parametrize("word", ["/tmp", "resolve", "/opt/ml", "links"])
def test_differences_of_plain_processes_are_named(word: str) -> None:
    shared, isolated = (made(kind, channels={"train": "/data"}) for kind in (PROCESS, NETNS))
    assert any(word in sentence for sentence in differences(shared))
    assert not any("/tmp" in sentence for sentence in differences(isolated))


def test_of_checkpoints_of_plain_processes_is_said_where_they_are() -> None:
    """The literal /opt/ml/checkpoints is this machine's there: what a script keeps is not kept."""
    said = differences(made(PROCESS, checkpoint="/ck"))
    assert any("beside the one that SM_MODEL_DIR names" in sentence for sentence in said)
    for backend in (made(NETNS, checkpoint="/ck"), made(PROCESS)):
        assert not any("checkpoint" in sentence for sentence in differences(backend))


def test_ranks_share_the_processors_unless_the_user_says_otherwise() -> None:
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert host_environ(PROCESS, {})["OMP_NUM_THREADS"] == str(share)
    assert host_environ(PROCESS, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_waiting_mpi_ranks_yield_where_there_are_more_of_them_than_processors() -> None:
    name = "OMPI_MCA_mpi_yield_when_idle"
    many = len(os.sched_getaffinity(0)) + 1
    assert host_environ(NETNS, {}, hosts=1, processes_per_host=many)[name] == "1"
    assert name not in host_environ(NETNS, {}, hosts=1, processes_per_host=1)
    asked = {"environ": {name: "0"}}
    assert host_environ(NETNS, {}, hosts=1, processes_per_host=many, **asked)[name] == "0"
