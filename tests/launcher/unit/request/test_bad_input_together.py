"""Several mistakes at once, and what a host with a bad request can still do."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.contract.request.read import read_cluster, read_job
from muster.contract.wording import MAX_FAILURE_BYTES
from muster.types.errors import ConfigError
from tests.launcher.support.bad_requests import MPI, PER_HOST, error_of, hosts, told
from tests.support.mltree import TWO_HOSTS, write_tree


def wheres(error: ConfigError) -> list[str]:
    return [problem.where for problem in error.problems]


def test_all_problems_are_reported_together_the_most_important_first(tmp_path: Path) -> None:
    error = error_of(
        tmp_path,
        resources=hosts("algo-1", "algo-1"),
        hyperparameters={MPI: "yes", PER_HOST: "0", "a=b": "1"},
        inputs=[],
        MUSTER_JOIN_S="soon",
        MUSTER_JOB_SECRET="short",
    )
    assert wheres(error) == [
        "hosts",
        "hyperparameters.json[2]",
        "inputdataconfig.json",
        "no training program",
        MPI,
        PER_HOST,
        "MUSTER_JOB_SECRET",
        "MUSTER_JOIN_S",
    ]
    assert error.headline == "ConfigError: hosts: 'algo-1' appears twice (and 7 more, below)"
    assert error.detail.count("Fix: ") == 7
    assert "short" not in error.detail


def test_every_file_that_cannot_be_read_is_named_at_once(tmp_path: Path) -> None:
    error = error_of(tmp_path, resources=b"{", hyperparameters=b"[", inputs=b"\xff")
    files = ["resourceconfig.json", "hyperparameters.json", "inputdataconfig.json"]
    assert wheres(error) == files
    text = told(error)
    assert text.startswith("ConfigError: resourceconfig.json: invalid JSON at line 1 column 2")
    assert text.splitlines()[0].endswith("(and 2 more, below)")
    assert all(file in text for file in files)


def test_more_problems_than_a_failure_file_holds_leave_the_first_line_whole(tmp_path: Path) -> None:
    names = {f"bad name=\n{i} {'x' * 100}": "1" for i in range(100)}
    error = error_of(tmp_path, hyperparameters=names, MUSTER_JOIN_S="soon")
    text = told(error)
    assert len(text.encode()) <= MAX_FAILURE_BYTES
    assert text.splitlines()[0] == error.headline
    assert text.splitlines()[1].startswith("Fix: ")


@pytest.mark.promise("B01")
def test_a_missing_config_folder_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_job({"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert wheres(caught.value) == ["resourceconfig.json"]
    assert "local mode" in caught.value.fix


@pytest.mark.promise("B01")
@pytest.mark.parametrize("name", ["resourceconfig", "hyperparameters", "inputdataconfig"])
def test_a_file_that_is_not_there_or_is_a_folder_is_named(tmp_path: Path, name: str) -> None:
    environ = write_tree(tmp_path)
    path = tmp_path / "input" / "config" / f"{name}.json"
    path.unlink()
    for what in ("not found in", "cannot be read in"):
        with pytest.raises(ConfigError) as caught:
            read_job(environ)
        assert str(caught.value).startswith(f"{name}.json: {what} {path.parent}")
        path.mkdir(exist_ok=True)


@pytest.mark.promise("B08")
def test_a_list_of_many_hosts_is_cut_short(tmp_path: Path) -> None:
    many = hosts(*(f"algo-{i}" for i in range(600)), current_host="algo-x")
    text = str(error_of(tmp_path, resources=many).problems[0])
    assert text.endswith("algo-7 and 592 more")


def test_files_at_the_size_limit_full_of_mistakes_take_no_second(tmp_path: Path) -> None:
    names = ["x y"] * 400_000
    entries = [{"instance_group_name": f"g{i}", "hosts": ["h"]} for i in range(60_000)]
    resources = {"hosts": names, "instance_groups": entries}
    hyperparameters = {f"a={i}": "1" for i in range(200_000)}
    error = error_of(tmp_path, resources=resources, hyperparameters=hyperparameters)
    assert len(error.problems) < 70


@pytest.mark.promise("B45", "F24")
@pytest.mark.parametrize(
    "variables",
    [
        {"MUSTER_JOIN_S": "soon"},
        {"MUSTER_LOST_AFTER_S": "0.3", "MUSTER_HEARTBEAT_S": "60"},
        {"MUSTER_HEARTBEAT_S": "often", "MUSTER_LOST_AFTER_S": "1"},
        {"MUSTER_LOG_PREFIX": "maybe", "MUSTER_RECORD": "all"},
    ],
)
def test_a_setting_that_no_join_needs_keeps_no_host_from_telling_the_others(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    environ = write_tree(tmp_path, resources=TWO_HOSTS, **variables)
    with pytest.raises(ConfigError):
        read_job(environ)
    cluster, _, deadlines = read_cluster(environ)
    assert len(cluster.hosts) == 2
    assert deadlines.lost_after_s >= 2 * deadlines.heartbeat_s


@pytest.mark.promise("B47")
@pytest.mark.parametrize(
    "variables",
    [
        {"MUSTER_JOB_SECRET": "short"},
        {"MUSTER_CONTROL_PORT": "x"},
        {"MUSTER_HOST_ADDRESSES": "algo-1"},
    ],
)
def test_without_what_a_join_needs_a_host_is_alone(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    with pytest.raises(ConfigError):
        read_cluster(write_tree(tmp_path, resources=TWO_HOSTS, **variables))
