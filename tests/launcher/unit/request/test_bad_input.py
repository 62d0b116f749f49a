"""Bad files, hosts and programs (promises B01 to B22): named at once, each in one text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launcher.support.bad_requests import (
    LEVEL,
    MPI,
    NAMES,
    NOT_BELOW,
    TORCH,
    Bad,
    case,
    check,
    each,
    group,
    groups,
    hosts,
    hp,
)
from tests.support.mltree import ONE_HOST, TWO_GROUPS, TWO_HOSTS

CASES: tuple[Bad, ...] = (
    case("B01", "resourceconfig.json: not found in BASE/input/config", resources=None),
    case(
        "B02",
        "resourceconfig.json: invalid JSON at line 2 column 8 (expected ',')",
        resources=b'{"hosts": ["a"],\n"x": 1 "y"}',
    ),
    case(
        "B02", "hyperparameters.json: invalid JSON at line 1 column 2", hyperparameters=b"{'a': 1}"
    ),
    case("B02", "inputdataconfig.json: invalid JSON at line 1 column 1", inputs=b"train"),
    case("B03", "resourceconfig.json: expected an object, got a list", resources=[1]),
    case("B03", "resourceconfig.json: expected an object, got a number", resources=7),
    case("B03", "resourceconfig.json: expected an object, got null", resources=b"null"),
    case("B03", "inputdataconfig.json: expected an object, got a string", inputs="train"),
    case("B04", "resourceconfig.json: file is empty", resources=b""),
    case("B04", "resourceconfig.json: file is empty", resources=b" \n"),
    case("B04", "inputdataconfig.json: file is empty", inputs=b""),
    case("B05", "resourceconfig.json: not valid UTF-8 at byte 12", resources=b'{"hosts": "a\xff"}'),
    case(
        "B05",
        "resourceconfig.json: not valid UTF-8 at byte 0",
        resources=json.dumps(ONE_HOST).encode("utf-16"),
    ),
    case("B05", "hyperparameters.json: not valid UTF-8 at byte 6", hyperparameters=b'{"a": \xfe}'),
    case("B06", NAMES + "[]", resources=hosts()),
    case("B06", NAMES + "None", resources={"current_host": "a"}),
    case("B06", NAMES + "'algo-1'", resources={"hosts": "algo-1"}),
    case("B06", NAMES + "['algo-1', 2]", resources=hosts("algo-1", 2)),
    case("B06", NAMES + "{}", resources={**ONE_HOST, "hosts": {}}),
    case("B07", "hosts: 'algo-1' appears twice", resources=hosts("algo-1", "algo-1")),
    case(
        "B08",
        "current_host: 'algo-9' is not one of algo-1, algo-2",
        resources={**TWO_HOSTS, "current_host": "algo-9"},
    ),
    case("B08", "current_host: missing", resources={"hosts": ["algo-1"]}),
    case("B08", "current_host: 1 is not one of algo-1", resources={**ONE_HOST, "current_host": 1}),
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
        "B10",
        "instance_groups[0]: need a non-empty list of hosts, got None",
        resources=groups({"instance_group_name": "g"}),
    ),
    case(
        "B10",
        "instance_groups[0]: instance_group_name: expected a name, got 7",
        resources=groups({"instance_group_name": 7, "hosts": ["algo-1"]}),
    ),
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
        "B16",
        "no training program: set sagemaker_program or SAGEMAKER_PROGRAM; "
        "'sagemaker_progam' is neither",
        hyperparameters={"sagemaker_progam": "train.py"},
    ),
    case(
        "B16",
        "no training program: set sagemaker_program or SAGEMAKER_PROGRAM; "
        "'SAGEMAKER_PROGARM' is neither",
        hyperparameters={},
        SAGEMAKER_PROGARM="train.py",
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
    case("B18", NOT_BELOW + "'train.py/'", hyperparameters={"sagemaker_program": "train.py/"}),
    case("B18", "SM_ENTRY_SCRIPT: program", hyperparameters={}, SM_ENTRY_SCRIPT="../train.py"),
    case(
        "B21",
        LEVEL + "expected DEBUG, INFO, WARNING, ERROR, CRITICAL or a number from 0 to 50, "
        "got 'loud'",
        hyperparameters=hp(sagemaker_container_log_level="loud"),
    ),
    case("B21", LEVEL + "expected", hyperparameters=hp(sagemaker_container_log_level="5000")),
    case("B21", LEVEL, hyperparameters=hp(sagemaker_container_log_level="9" * 5000)),
    case("B22", f"{MPI}: expected true or false, got 'yes'", hyperparameters=hp(**{MPI: '"yes"'})),
    case("B22", f"{MPI}: expected true or false, got 2", hyperparameters=hp(**{MPI: "2"})),
    case("B22", f"{TORCH}: expected true or false", hyperparameters=hp(**{TORCH: "[true]"})),
    case("B22", "MUSTER_LOG_PREFIX: expected 1 or 0, got 'maybe'", MUSTER_LOG_PREFIX="maybe"),
)


@pytest.mark.parametrize("bad", each(CASES))
def test_bad_input_is_named_within_a_second_with_its_cure_and_without_secrets(
    tmp_path: Path, bad: Bad
) -> None:
    check(tmp_path, bad)
