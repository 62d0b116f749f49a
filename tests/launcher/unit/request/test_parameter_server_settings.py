"""What a request may say about parameter servers, and the ports that `muster local` picks."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from muster.contract.findings import Findings
from muster.contract.request.read import read_job
from muster.contract.request.settings import parse_settings
from muster.local.environment import free_ranges
from muster.types.distribution import ParameterServer
from muster.types.errors import ConfigError
from muster.types.job import Settings
from tests.support.mltree import PROGRAM, write_tree

KEY = "sagemaker_parameter_server_enabled"


def settings_of(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    findings = Findings()
    return parse_settings(environ, findings), [str(problem) for problem in findings.problems]


def test_every_setting_of_servers_is_taken() -> None:
    settings, problems = settings_of(
        {
            "MUSTER_PS_FRAMEWORK": "mxnet",
            "MUSTER_PS_SERVERS": "12",
            "MUSTER_PS_PORT": "9100",
            "MUSTER_WORKER_PORT": "9200",
            "MUSTER_TF_CHIEF": "master",
        }
    )
    assert not problems
    assert settings.ps_framework == "mxnet"
    assert (settings.ps_servers, settings.ps_port, settings.worker_port) == (12, 9100, 9200)
    assert settings.tf_chief == "master"


@pytest.mark.promise("B48")
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "1025", "many"])
def test_a_number_of_servers_that_no_job_can_have_is_refused_with_the_rule(text: str) -> None:
    settings, problems = settings_of({"MUSTER_PS_SERVERS": text})
    assert problems == [f"MUSTER_PS_SERVERS: a job has 1 to 1,024 parameter servers, got {text!r}"]
    assert settings.ps_servers is None


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MUSTER_PS_FRAMEWORK", "tensorflw", "did you mean 'tensorflow'?"),
        ("MUSTER_PS_FRAMEWORK", "jax", "expected tensorflow, mxnet or pytorch, got 'jax'"),
        ("MUSTER_TF_CHIEF", "boss", "expected chief or master, got 'boss'"),
        ("MUSTER_PS_PORT", "0", "expected a port from 1 to 65535, got '0'"),
        ("MUSTER_WORKER_PORT", "http", "expected a port from 1 to 65535, got 'http'"),
    ],
)
def test_a_value_that_cannot_be_used_is_a_problem(name: str, value: str, told: str) -> None:
    (problem,) = settings_of({name: value})[1]
    assert problem.startswith(f"{name}: ")
    assert told in problem


def option_of(folder: Path, **parameters: str) -> object:
    return read_job(write_tree(folder, {**PROGRAM, KEY: "true", **parameters})).distribution


@pytest.mark.parametrize(("port", "verbose"), [("9000", "2"), ('"9000"', '"2"')])
def test_mxnet_s_hyperparameters_are_read_and_stay_the_script_s(
    tmp_path: Path, port: str, verbose: str
) -> None:
    tree = write_tree(tmp_path, {**PROGRAM, KEY: "true", "_ps_port": port, "_ps_verbose": verbose})
    job = read_job(tree)
    assert job.distribution == ParameterServer("parameter_server", None, 9000, 2)
    assert "--_ps_port" in job.arguments


def test_processes_per_host_reach_the_option(tmp_path: Path) -> None:
    found = option_of(tmp_path, sagemaker_mpi_num_of_processes_per_host="2")
    assert found == ParameterServer(processes_per_host=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("_ps_port", "0"), ("_ps_port", "70000"), ("_ps_port", "true"), ("_ps_verbose", "loud")],
)
def test_a_number_of_mxnet_out_of_its_range_is_refused(
    tmp_path: Path, name: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        option_of(tmp_path, **{name: value})
    (problem,) = caught.value.problems
    assert problem.where == name
    assert problem.what.startswith("expected a ")


def test_ranges_of_ports_are_free_and_do_not_overlap() -> None:
    first, second = free_ranges(3, 4)
    assert second >= first + 3
    for port in (*range(first, first + 3), *range(second, second + 4)):
        with socket.socket() as sock:
            sock.bind(("", port))


def test_a_range_that_no_machine_has_is_none() -> None:
    assert free_ranges(70_000) == []
