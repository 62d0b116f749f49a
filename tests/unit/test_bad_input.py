"""Rows of reliability.md section 6: what is wrong with a request, said at once and in one text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from muster.contract.read import read_job
from muster.spec.errors import ConfigError, Problem
from tests.support.mltree import ONE_HOST, PROGRAM, TWO_GROUPS, TWO_HOSTS, write_tree

LEVEL = "sagemaker_container_log_level: "
NOT_BELOW = "sagemaker_program: program must be relative to the code folder, got "
NAMES = "hosts: need a non-empty list of names, got "
BAD_NAME = "hyperparameters.json[1]: a name cannot hold "
MPI = "sagemaker_mpi_enabled"
TORCH = "sagemaker_torch_distributed_enabled"
PER_HOST = "sagemaker_mpi_num_of_processes_per_host"


def hp(**values: object) -> dict[str, object]:
    return {**PROGRAM, **values}


def hosts(*names: object, **values: object) -> dict[str, object]:
    return {**ONE_HOST, "hosts": list(names), **values}


def groups(*entries: object) -> dict[str, object]:
    return {**TWO_HOSTS, "instance_groups": list(entries)}


def group(name: str, *members: str) -> dict[str, object]:
    return {"instance_group_name": name, "instance_type": "t", "hosts": list(members)}


def case(row: str, text: str, **tree: Any) -> Any:
    """One bad tree and the first problem it must give."""
    return pytest.param(tree, text, marks=pytest.mark.promise(row), id=f"{row}-{text[:40]}")


CASES = [
    case("B01", "resourceconfig.json: not found in BASE/input/config", resources=None),
    case(
        "B02",
        "resourceconfig.json: invalid JSON at line 2 column 8 (expected ',')",
        resources=b'{"hosts": ["a"],\n"x": 1 "y"}',
    ),
    case("B03", "resourceconfig.json: expected an object, got a list", resources=[1]),
    case("B03", "resourceconfig.json: expected an object, got a number", resources=7),
    case("B03", "resourceconfig.json: expected an object, got null", resources=b"null"),
    case("B04", "resourceconfig.json: file is empty", resources=b""),
    case("B04", "resourceconfig.json: file is empty", resources=b" \n"),
    case("B05", "resourceconfig.json: not valid UTF-8 at byte 12", resources=b'{"hosts": "a\xff"}'),
    case(
        "B05",
        "resourceconfig.json: not valid UTF-8 at byte 0",
        resources=json.dumps(ONE_HOST).encode("utf-16"),
    ),
    case("B06", NAMES + "[]", resources=hosts()),
    case("B06", NAMES + "None", resources={"current_host": "a"}),
    case("B06", NAMES + "'algo-1'", resources={"hosts": "algo-1"}),
    case("B06", NAMES + "['algo-1', 2]", resources=hosts("algo-1", 2)),
    case("B07", "hosts: 'algo-1' appears twice", resources=hosts("algo-1", "algo-1")),
    case(
        "B08",
        "current_host: 'algo-9' is not one of algo-1, algo-2",
        resources={**TWO_HOSTS, "current_host": "algo-9"},
    ),
    case("B08", "current_host: missing", resources={"hosts": ["algo-1"]}),
    case("B09", "hosts[1]: 'algo 2;x' is not a host name", resources=hosts("algo-1", "algo 2;x")),
    case("B09", "hosts[0]: '-algo' is not a host name", resources=hosts("-algo", "algo-1")),
    case("B09", "hosts[1]: ", resources=hosts("algo-1", "a" * 64)),
    case("B09", "hosts[1]: 'a..b' is not a host name", resources=hosts("algo-1", "a..b")),
    case(
        "B10", "instance_groups[0]: unknown host 'algo-7'", resources=groups(group("g", "algo-7"))
    ),
    case(
        "B10",
        "instance_groups[0]: need a non-empty list of hosts, got []",
        resources=groups(group("g")),
    ),
    case(
        "B10",
        "instance_groups[1]: host 'algo-1' is in group 'a' already",
        resources=groups(group("a", "algo-1"), group("b", "algo-1", "algo-2")),
    ),
    case(
        "B10",
        "instance_groups[0]: host 'algo-1' is in group 'a' already",
        resources=groups(group("a", "algo-1", "algo-1")),
    ),
    case(
        "B10",
        "instance_groups[1]: a second group named 'a'",
        resources=groups(group("a", "algo-1"), group("a", "algo-2")),
    ),
    case("B10", "instance_groups[0]: expected an object, got 'g'", resources=groups("g")),
    case("B10", "instance_groups: expected a list", resources={**ONE_HOST, "instance_groups": "g"}),
    case(
        "B11",
        "distribution groups: no group named 'gpu2'; known: cpu, gpu",
        resources=TWO_GROUPS,
        hyperparameters=hp(
            sagemaker_mpi_enabled="true", sagemaker_distribution_instance_groups='["gpu2"]'
        ),
    ),
    case(
        "B11",
        "distribution groups: 2 instance groups and none of them is named; known: cpu, gpu",
        resources=TWO_GROUPS,
        hyperparameters=hp(sagemaker_torch_distributed_enabled="true"),
    ),
    case("B13", "hyperparameters.json: not found in BASE/input/config", hyperparameters=None),
    case("B14", "hyperparameters.json: expected an object, got a list", hyperparameters=[]),
    case(
        "B16", "no training program: set sagemaker_program or SAGEMAKER_PROGRAM", hyperparameters={}
    ),
    case(
        "B18",
        NOT_BELOW + "'../x.py'",
        hyperparameters={"sagemaker_program": "../x.py"},
    ),
    case("B18", NOT_BELOW, hyperparameters={"sagemaker_program": "/x.py"}),
    case("B18", NOT_BELOW, hyperparameters={"sagemaker_program": "a/../../x"}),
    case("B18", NOT_BELOW, hyperparameters={"sagemaker_program": "--help"}),
    case("B18", NOT_BELOW, hyperparameters={"sagemaker_program": "./-x.py"}),
    case("B18", NOT_BELOW, hyperparameters={"sagemaker_program": "17"}),
    case("B18", "SAGEMAKER_PROGRAM: program must be", SAGEMAKER_PROGRAM="x\ny.py"),
    case(
        "B21",
        LEVEL + "expected DEBUG, INFO, WARNING, ERROR, CRITICAL or a number from 0 to 50, "
        "got 'loud'",
        hyperparameters=hp(sagemaker_container_log_level="loud"),
    ),
    case("B21", LEVEL + "expected", hyperparameters=hp(sagemaker_container_log_level="5000")),
    case("B22", f"{MPI}: expected true or false, got 'yes'", hyperparameters=hp(**{MPI: '"yes"'})),
    case("B22", f"{MPI}: expected true or false, got 2", hyperparameters=hp(**{MPI: "2"})),
    case(
        "B25",
        "conflicting distributions: mpi and torch_distributed are both enabled",
        hyperparameters=hp(**{MPI: "true", TORCH: "true"}),
    ),
    case(
        "B25",
        "conflicting distributions: mpi, torch_distributed and parameter_server are all",
        hyperparameters=hp(
            **{MPI: "true", TORCH: "true", "sagemaker_parameter_server_enabled": "true"}
        ),
    ),
    case(
        "B26",
        "sagemaker_pytorch_xla_multi_worker_enabled: pytorchxla is not supported",
        hyperparameters=hp(sagemaker_pytorch_xla_multi_worker_enabled="true"),
    ),
    *(
        case(
            "B27",
            f"{PER_HOST}: expected a positive integer up to 1,024, got ",
            hyperparameters=hp(**{MPI: "true", PER_HOST: wire}),
        )
        for wire in (
            "0",
            "-1",
            "1.5",
            "8 ",
            '"8 "',
            "1e9",
            "1000000000",
            "null",
            "true",
            "1025",
            "eight",
            "",
        )
    ),
    case(
        "B35", "hyperparameters.json[1]: a name cannot hold '='", hyperparameters=hp(**{"a=b": "1"})
    ),
    case("B35", BAD_NAME, hyperparameters=hp(**{"a\nb": "1"})),
    case("B35", BAD_NAME, hyperparameters=hp(**{"a\0b": "1"})),
    case("B35", "hyperparameters.json[1]: the name is empty", hyperparameters=hp(**{"": "1"})),
    case(
        "B35",
        "hyperparameters.json[1]: a name of 10240 characters",
        hyperparameters=hp(**{"k" * 10240: "1"}),
    ),
    case(
        "B36",
        "hyperparameters.json: note: the value holds a lone surrogate at position 2",
        hyperparameters=hp(note="ab\ud800"),
    ),
    case(
        "B36",
        "hyperparameters.json: note: the value holds a lone surrogate at position 0",
        hyperparameters=hp(note='"\\udfff"'),
    ),
    case(
        "S04",
        "hyperparameters.json: note: the value holds a NUL character at position 1",
        hyperparameters=hp(note="a\0b"),
    ),
    case(
        "B37",
        "hyperparameters.json: deep: nested more than 100 levels deep",
        hyperparameters=hp(deep="[" * 101 + "]" * 101),
    ),
    case(
        "B37",
        "hyperparameters.json: deep: nested more than 100 levels deep",
        hyperparameters=hp(deep="[" * 100_000 + "]" * 100_000),
    ),
    case(
        "B37", "hyperparameters.json: nested", hyperparameters=b'{"a":' * 5000 + b"1" + b"}" * 5000
    ),
    case("B37", "hyperparameters.json: larger than 16 MiB", hyperparameters=b" " * (17 << 20)),
    case(
        "B37", "hyperparameters.json: big: 140000 characters", hyperparameters=hp(big="x" * 140_000)
    ),
    case("B38", "inputdataconfig.json[0]: 'a/b' is not a channel name", inputs={"a/b": {}}),
    case("B38", "inputdataconfig.json[0]: 'a=b' is not a channel name", inputs={"a=b": {}}),
    case("B38", "inputdataconfig.json[0]: 'a\\x00b' is not", inputs={"a\0b": {}}),
    case(
        "B36",
        "sagemaker_region: expected plain text, got 'a\\x00b'",
        hyperparameters=hp(sagemaker_region='"a\\u0000b"'),
    ),
    case(
        "B36",
        "sagemaker_submit_directory: expected an address or a path, got '/c\\ud800'",
        hyperparameters=hp(sagemaker_submit_directory="/c\ud800"),
    ),
    case(
        "B36",
        "network_interface_name: expected a text, got 'eth\\x00'",
        resources={**ONE_HOST, "network_interface_name": "eth\0"},
    ),
    case(
        "B40",
        "SAGEMAKER_BASE_DIR: base folder: 'x' is not an absolute directory",
        SAGEMAKER_BASE_DIR="x",
    ),
    case(
        "B40", "SAGEMAKER_BASE_DIR: base folder: '/no/such' is not", SAGEMAKER_BASE_DIR="/no/such"
    ),
    case(
        "B45",
        "MUSTER_JOIN_S: expected a number of seconds from 1 to 86400, got '0'",
        MUSTER_JOIN_S="0",
    ),
    case("B45", "MUSTER_STOP_GRACE_S: expected", MUSTER_STOP_GRACE_S="nan"),
    case(
        "B47",
        "MUSTER_JOB_SECRET: the secret has 9 bytes, at least 16 are needed",
        MUSTER_JOB_SECRET="not-long!",
    ),
    case("B47", "MUSTER_JOB_SECRET: the secret has 0 bytes", MUSTER_JOB_SECRET=""),
]


def problems_of(tmp_path: Path, **tree: Any) -> tuple[Problem, ...]:
    environ = write_tree(tmp_path, **tree)
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        read_job(environ)
    assert time.monotonic() - began < 1
    assert caught.value.exit_code == 100
    return caught.value.problems


@pytest.mark.parametrize(("tree", "text"), CASES)
def test_bad_input_is_named_within_a_second(
    tmp_path: Path, tree: dict[str, Any], text: str
) -> None:
    problems = problems_of(tmp_path, **tree)
    assert str(problems[0]).replace(str(tmp_path), "BASE").startswith(text)
    assert len(problems) == 1, "one mistake, one problem"
    assert problems[0].fix
    assert len(str(problems[0])) < 300 + len(str(tmp_path))


def test_all_problems_are_reported_together_the_most_important_first(tmp_path: Path) -> None:
    problems = problems_of(
        tmp_path,
        resources=hosts("algo-1", "algo-1"),
        hyperparameters={MPI: "yes", PER_HOST: "0", "a=b": "1"},
        inputs=[],
        MUSTER_JOIN_S="soon",
        MUSTER_JOB_SECRET="short",
    )
    assert [problem.where for problem in problems] == [
        "hosts",
        "hyperparameters.json[2]",
        "inputdataconfig.json",
        "no training program",
        MPI,
        PER_HOST,
        "MUSTER_JOB_SECRET",
        "MUSTER_JOIN_S",
    ]
    error = ConfigError(problems)
    assert error.headline == "ConfigError: hosts: 'algo-1' appears twice (and 7 more, below)"
    assert error.detail.count("Fix: ") == 7
    assert "short" not in error.detail


@pytest.mark.promise("B01")
def test_a_missing_config_folder_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_job({"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert [problem.where for problem in caught.value.problems] == ["resourceconfig.json"]
    assert "local mode" in caught.value.fix


@pytest.mark.promise("B08")
def test_a_list_of_many_hosts_is_cut_short(tmp_path: Path) -> None:
    many = hosts(*(f"algo-{i}" for i in range(600)), current_host="algo-x")
    text = str(problems_of(tmp_path, resources=many)[0])
    assert text.endswith("algo-7 and 592 more")


def test_files_at_the_size_limit_full_of_mistakes_take_no_second(tmp_path: Path) -> None:
    names = ["x y"] * 400_000
    entries = [{"instance_group_name": f"g{i}", "hosts": ["h"]} for i in range(60_000)]
    resources = {"hosts": names, "instance_groups": entries}
    hyperparameters = {f"a={i}": "1" for i in range(200_000)}
    assert len(problems_of(tmp_path, resources=resources, hyperparameters=hyperparameters)) < 70
