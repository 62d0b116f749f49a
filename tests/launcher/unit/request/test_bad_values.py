"""Bad hyperparameters, channels and variables (promises from B25): named in one text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.types.deadlines import RANGES, variable
from tests.launcher.support.bad_requests import (
    BAD_NAME,
    CANARY,
    MPI,
    NOT_BELOW,
    PER_HOST,
    SECONDS,
    TORCH,
    Bad,
    case,
    check,
    each,
    hp,
    nested,
)
from tests.support.mltree import ONE_HOST, PROGRAM

CASES: tuple[Bad, ...] = (
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
        "B34",
        "hyperparameters.json: arguments of ",
        hyperparameters=hp(**{f"k{i}": "v" * 100_000 for i in range(64)}),
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
    case("B35", BAD_NAME + "a lone surrogate", hyperparameters=hp(**{"a\ud800": "1"})),
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
        "network_interface_name: expected a string, got 'eth\\x00'",
        resources={**ONE_HOST, "network_interface_name": "eth\0"},
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
    case(
        "B37",
        "hyperparameters.json: larger than 16 MiB",
        hyperparameters=json.dumps(PROGRAM).encode().ljust((16 << 20) + 1),
    ),
    case("B37", "hyperparameters.json: nested", hyperparameters=hp(deep=json.loads(nested(100)))),
    case("B37", "hyperparameters.json: nested", hyperparameters=b'{"a": ' + b"9" * 5000 + b"}"),
    case("B38", "inputdataconfig.json[0]: 'a/b' is not a channel name", inputs={"a/b": {}}),
    case("B38", "inputdataconfig.json[0]: 'a=b' is not a channel name", inputs={"a=b": {}}),
    case("B38", "inputdataconfig.json[0]: 'a\\x00b' is not", inputs={"a\0b": {}}),
    case("B38", "inputdataconfig.json[0]: '' is not a channel name", inputs={"": {}}),
    case("B38", "inputdataconfig.json[1]: '..' is not a", inputs={"train": {}, "..": {}}),
    case(
        "B40",
        "SAGEMAKER_BASE_DIR: base folder: 'x' is not an absolute directory",
        SAGEMAKER_BASE_DIR="x",
    ),
    case(
        "B40", "SAGEMAKER_BASE_DIR: base folder: '/no/such' is not", SAGEMAKER_BASE_DIR="/no/such"
    ),
    case("B40", "SAGEMAKER_BASE_DIR: base folder: '/dev/null'", SAGEMAKER_BASE_DIR="/dev/null"),
    case("B40", "SAGEMAKER_BASE_DIR: base folder: './'", SAGEMAKER_BASE_DIR="./"),
    case(
        "B45",
        "MUSTER_JOIN_S: expected a number of seconds from 1 to 86400, got '0'",
        MUSTER_JOIN_S="0",
    ),
    case("B45", "MUSTER_STOP_GRACE_S: expected", MUSTER_STOP_GRACE_S="nan"),
    *(
        case(
            "B45",
            f"{variable(name)}: {SECONDS} from {low:g} to {high:g}, got {text!r}",
            **{variable(name): text},
        )
        for name, (low, high) in RANGES.items()
        for text in ("-1", f"{high + 1}", "inf", "1 s", "")
    ),
    case(
        "B45",
        "MUSTER_LOST_AFTER_S: 1 s is under two heartbeats of 1 s",
        MUSTER_LOST_AFTER_S="1",
    ),
    case("B45", "MUSTER_JOIN_S: expected", MUSTER_JOIN_S="1" * 100_000),
    case(
        "B47",
        "MUSTER_JOB_SECRET: the secret has 9 bytes, at least 16 are needed",
        MUSTER_JOB_SECRET="not-long!",
    ),
    case(
        "B47", "MUSTER_JOB_SECRET: the secret has 0 bytes", MUSTER_JOB_SECRET=""
    ),  # more of the same, at the edges
    case(
        "S04",
        "hyperparameters.json: note: the value holds a NUL character at position 1",
        hyperparameters=hp(note="a\0b"),
    ),
    case(
        "S08",
        "hyperparameters.json[1]: a name cannot hold '=', a newline or another control character, "
        "got 'api_key=...'",
        hyperparameters=hp(**{f"api_key={CANARY}": "1"}),
    ),
    case(
        "S08", "MUSTER_SCRIPT_ARGUMENTS: expected a JSON", MUSTER_SCRIPT_ARGUMENTS=f"--key {CANARY}"
    ),
    case(
        "S08",
        "MUSTER_SCRIPT_ARGUMENTS: [1]: the value holds a NUL",
        MUSTER_SCRIPT_ARGUMENTS=json.dumps([f"--key={CANARY}", "a\0"]),
    ),
    case("S08", NOT_BELOW + "'/***'", hyperparameters={"sagemaker_program": f"/{CANARY}"}),
    case(
        "S08",
        "sagemaker_submit_directory: expected an address or a path, got 's3://***@b\\n'",
        hyperparameters=hp(sagemaker_submit_directory=f"s3://u:{CANARY}@b\n"),
    ),
)


@pytest.mark.parametrize("bad", each(CASES))
def test_bad_values_are_named_within_a_second_with_their_cure_and_without_secrets(
    tmp_path: Path, bad: Bad
) -> None:
    check(tmp_path, bad)
