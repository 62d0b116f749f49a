"""`muster plan`: real files in, a plan out, and nothing started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.commands.parser import main
from tests.launcher.unit.contract.test_engine_readers import BATCH, INDEXED, SLURM

SECRET = "hf_abcdefghijklmnop"


class Desk:
    """A folder with SageMaker's files, and `muster plan` on it."""

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base = base
        self.capsys = capsys
        self.hyperparameters: dict[str, str] = {"sagemaker_program": "train.py"}
        self.resource: dict[str, object] = {"current_host": "algo-1", "hosts": ["algo-1"]}
        (base / "input" / "config").mkdir(parents=True)
        (base / "code").mkdir()
        (base / "code" / "train.py").write_text("raise SystemExit('this must never run')\n")

    def hosts(self, count: int, current: int = 0) -> None:
        names = [f"algo-{number + 1}" for number in range(count)]
        self.resource = {"current_host": names[current], "hosts": names}

    def plan(self, *options: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        config = self.base / "input" / "config"
        (config / "hyperparameters.json").write_text(json.dumps(self.hyperparameters))
        (config / "resourceconfig.json").write_text(json.dumps(self.resource))
        (config / "inputdataconfig.json").write_text("{}")
        return self.command("--base-dir", str(self.base), *options)

    def command(self, *argv: str) -> tuple[int, str, str]:
        """Of `muster plan` with just these arguments."""
        code = main(["plan", *argv])
        return code, *self.capsys.readouterr()

    def json(self) -> Any:
        code, out, err = self.plan("--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def desk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Desk:
    for name in list(os.environ):
        if name.startswith(("SAGEMAKER_", "MUSTER_", "SM_", "PET_")):
            monkeypatch.delenv(name)
    return Desk(tmp_path, capsys)


def torchrun(desk: Desk, processes: int) -> None:
    desk.hyperparameters |= {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": str(processes),
    }


def test_the_page_says_what_was_understood_and_what_would_run(desk: Desk) -> None:
    desk.hosts(2)
    torchrun(desk, 2)
    desk.hyperparameters["lr"] = "0.1"
    code, out, err = desk.plan()
    assert (code, err) == (0, "")
    first, second = out.split("What would run")
    for text in ("What was understood", "2 (algo-1, algo-2)", "2 x 2 = 4", "7777", "--lr 0.1"):
        assert text in first
    assert "hyperparameter sagemaker_torch_distributed_enabled" in first
    for text in ("algo-1, the leader: ranks 0 to 1 of 4", "algo-2: ranks 2 to 3 of 4"):
        assert text in second
    assert "--nnodes 2 --nproc_per_node 2" in second
    assert f"each rank: {sys.executable} train.py --lr 0.1" in second


def test_a_folder_that_does_not_exist_is_an_error_of_the_option(desk: Desk) -> None:
    code, out, err = desk.command("--base-dir", "opt/ml")
    assert (code, out) == (2, "")
    assert "--base-dir: 'opt/ml' is no folder" in err
    assert "muster plan SCRIPT" in err
    assert "SAGEMAKER_BASE_DIR" not in err


def test_a_script_is_planned_with_the_options_of_a_run_and_nothing_is_left(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.base / "code")
    options = ("--isolation", "process", "--hosts", "2", "--distribution", "torch_distributed")
    code, out, err = desk.command("train.py", *options, "--env", f"HF_TOKEN={SECRET}", "--", "-v")
    assert (code, err) == (0, "")
    for text in ("isolation process", "2 x 1 = 2", "(1 file, 1 KiB)", "-v"):
        assert text in out
    assert f"in {desk.base}/code/muster-runs/TIME-train/algo-1/opt/ml/code" in out
    assert SECRET not in out
    assert "/muster-plan-" not in out
    assert os.listdir() == ["train.py"]


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["--hosts", "2"], "--hosts needs a SCRIPT"),
        (["--memory", "1g"], "--memory needs a SCRIPT"),
        (["--base-dir", ".", "--model", "--hosts", "2"], "--hosts needs a SCRIPT"),
        (["--model"], "--model needs a SCRIPT or --base-dir DIR"),
        (["--base-dir", ".", "--model", "--environment"], "two different plans"),
        (["nothing.py"], "no file 'nothing.py'"),
        (["code/train.py", "--base-dir", "."], "two different requests"),
        (["."], "did you mean --base-dir .?"),
        (["code/train.py", "--distribution", "torch_distribted"], "torch_distributed"),
        (["code/train.py", "--hots", "2"], "did you mean '--hosts'?"),
    ],
)
def test_what_a_run_would_refuse_a_plan_refuses(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, argv: list[str], answer: str
) -> None:
    monkeypatch.chdir(desk.base)
    code, out, err = desk.command(*argv)
    assert (code, out) == (2, "")
    assert answer in err


def test_a_job_with_model_parallelism_shows_its_degrees(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.base / "code")
    options = ("--isolation", "process", "--processes-per-host", "4", "--distribution", "smp")
    sent = '{"partitions": 2, "ddp": true, "sharded_data_parallel_degree": 2}'
    plan = ("train.py", *options, "--json", "--hyperparameter", f"mp_parameters={sent}")
    code, out, err = desk.command(*plan)
    assert (code, err) == (0, "")
    rows = {row["name"]: row for row in json.loads(out)["understood"]}
    assert rows["parallel"]["value"] == "pipeline 2 x tensor 1 x data 2 (sharded 2)"
    assert rows["parallel"]["source"] == "hyperparameter mp_parameters"
    assert rows["option"]["value"] == "smdistributed.modelparallel"
    torchrun(desk, 4)
    assert "parallel" not in {row["name"] for row in desk.json()["understood"]}


def test_every_understood_value_has_a_source(desk: Desk) -> None:
    desk.hosts(2)
    torchrun(desk, 2)
    for row in desk.json()["understood"]:
        assert row["value"], row
        assert row["source"], row
    assert desk.json()["understood"][0]["source"] == "option --base-dir"


def test_that_other_hosts_are_assumed_to_be_like_this_one_is_said(desk: Desk) -> None:
    assert desk.json()["assumed"] == []
    desk.hosts(2)
    assert any("other hosts are like this machine" in line for line in desk.json()["assumed"])


def test_the_object_holds_the_commands_of_every_host(desk: Desk) -> None:
    desk.hosts(3, current=1)
    torchrun(desk, 2)
    document = desk.json()
    assert document["schema"] == 1
    assert document["world_size"] == 6
    assert document["current_host"] == "algo-2"
    assert [host["name"] for host in document["hosts"]] == ["algo-1", "algo-2", "algo-3"]
    assert [host["leader"] for host in document["hosts"]] == [True, False, False]
    assert [host["ranks"] for host in document["hosts"]] == [[0, 1], [2, 3], [4, 5]]
    for place, host in enumerate(document["hosts"]):
        line = host["launcher"]
        assert line[line.index("--node_rank") + 1] == str(place)
        assert host["script"][1:] == ["train.py"]
        assert {"GLOO_SOCKET_IFNAME"} <= {item["name"] for item in host["sets"]}
        assert all(item["reason"] for item in host["sets"])
    assert document["exports"]["SM_CURRENT_HOST"] == "algo-2"


def test_a_job_without_a_distribution_says_how_to_switch_one_on(desk: Desk) -> None:
    desk.hosts(2)
    code, out, _ = desk.plan()
    assert code == 0
    assert "no distribution was requested" in out
    assert "algo-1, the leader: the script once" in out


def test_hosts_outside_the_distribution_are_marked(desk: Desk) -> None:
    desk.hosts(2)
    torchrun(desk, 1)
    desk.resource |= {
        "current_group_name": "data",
        "instance_groups": [
            {"instance_group_name": "data", "instance_type": "ml.c5.large", "hosts": ["algo-1"]},
            {"instance_group_name": "gpu", "instance_type": "ml.c5.large", "hosts": ["algo-2"]},
        ],
    }
    desk.hyperparameters["sagemaker_distribution_instance_groups"] = '["gpu"]'
    code, out, _ = desk.plan()
    assert code == 0
    assert "algo-1: the script once, outside the distribution" in out
    assert "algo-2, the leader: rank 0 of 1" in out


@pytest.mark.promise("S08")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_secrets_are_masked_wherever_they_stand(desk: Desk, options: tuple[str, ...]) -> None:
    desk.hyperparameters |= {"hub_token": SECRET, "note": f"use {SECRET}"}
    code, out, _ = desk.plan(*options)
    assert code == 0
    assert SECRET not in out
    assert "***" in out


def test_a_short_secret_is_masked_in_the_command_line(desk: Desk) -> None:
    desk.hyperparameters["db_password"] = "q7"
    assert desk.json()["hosts"][0]["script"][-2:] == ["--db_password", "***"]
    assert "q7" not in desk.plan()[1]


def test_all_problems_are_printed_and_the_code_is_that_of_train(desk: Desk) -> None:
    desk.hyperparameters = {"sagemaker_torch_distributed_enabled": "maybe"}
    code, out, err = desk.plan()
    assert (code, out) == (100, "")
    assert "2 problems" in err
    assert "no training program" in err
    assert "got 'maybe'" in err
    assert err.count("fix: ") == 2


def test_problems_are_an_object_too(desk: Desk) -> None:
    desk.resource = {"hosts": []}
    code, out, err = desk.plan("--json")
    assert (code, err) == (100, "")
    document = json.loads(out)
    assert document["schema"] == 1
    assert document["error"] == "ConfigError"
    assert all(problem["where"] and problem["what"] for problem in document["problems"])


def open_mpi(folder: Path, version: str, daemon: str) -> str:
    """An mpirun that says its version and nothing else, with its daemon beside it."""
    folder.mkdir()
    for name in ("mpirun", daemon):
        path = folder / name
        path.write_text(f"#!/bin/sh\necho 'mpirun (Open MPI) {version}'\n")
        path.chmod(0o755)
    return str(folder / "mpirun")


def mpi(desk: Desk, **sent: str) -> None:
    desk.hyperparameters |= {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
        **sent,
    }


@pytest.fixture
def mpirun(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    path = open_mpi(tmp_path_factory.mktemp("mpi") / "bin", "4.1.4", "orted")
    monkeypatch.setenv("MUSTER_MPIRUN", path)
    return path


def test_mpirun_runs_on_the_leader_and_a_daemon_on_request_elsewhere(
    desk: Desk, mpirun: str
) -> None:
    desk.hosts(2)
    mpi(desk)
    code, out, err = desk.plan()
    assert (code, err) == (0, "")
    first, second = out.split("What would run")
    assert f"{mpirun} (4.1.4)" in first
    assert "variable MUSTER_MPIRUN" in first
    leader, member = second.split("  algo-2: ")
    assert f"    {mpirun} --host algo-1:2,algo-2:2 -np 4" in leader
    assert "and RANK=0...1 LOCAL_RANK=0...1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2" in leader
    daemon = f"{os.path.dirname(mpirun)}/orted"
    assert member.startswith("ranks 2 to 3 of 4\n")
    assert f"when algo-1's mpirun asks for it: {daemon} " in member
    assert "each rank: " in member
    assert "and RANK=2...3 LOCAL_RANK=0...1" in member


def test_the_object_tells_daemons_services_and_ranks_apart(desk: Desk, mpirun: str) -> None:
    desk.hosts(2)
    mpi(desk)
    leader, member = desk.json()["hosts"]
    assert leader["launcher"][0] == mpirun
    assert (leader["daemon"], member["launcher"]) == (None, None)
    assert member["daemon"]["starts"] == "on request"
    assert member["daemon"]["command"][0].endswith("/orted")
    assert leader["services"] == member["services"] == []
    assert member["each_rank"]["3"] == {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
    }  # fmt: skip


def test_open_mpi_is_assumed_where_there_is_none_and_that_is_said(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    mpi(desk)
    document = desk.json()
    assert any("no mpirun is here: Open MPI 5" in line for line in document["assumed"])
    assert document["hosts"][0]["launcher"][0] == "mpirun"
    (row,) = [row for row in document["understood"] if row["name"] == "mpirun"]
    assert row["source"] == "assumed"


def test_an_mpirun_that_does_not_say_its_version_is_named(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = open_mpi(tmp_path / "other", "", "orted")
    monkeypatch.setenv("MUSTER_MPIRUN", path)
    mpi(desk)
    assert any(f"{path} does not say its version" in one for one in desk.json()["assumed"])


@pytest.mark.promise("S08")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_secret_among_the_mpi_options_is_masked(
    desk: Desk, mpirun: str, options: tuple[str, ...]
) -> None:
    mpi(desk, sagemaker_mpi_custom_mpi_options=f'"-x HF_TOKEN={SECRET} -x A=1"')
    code, out, _ = desk.plan(*options)
    assert code == 0
    assert SECRET not in out
    assert "HF_TOKEN" in out


def test_a_total_number_of_processes_names_its_source(desk: Desk, mpirun: str) -> None:
    desk.hosts(2)
    desk.hyperparameters |= {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_processes": "4"}
    (row,) = [row for row in desk.json()["understood"] if row["name"] == "processes per host"]
    assert (row["value"], row["source"]) == ("2", "hyperparameter sagemaker_mpi_num_processes")


@pytest.mark.promise("B17")
def test_a_program_that_is_not_in_the_code_here_is_a_problem(desk: Desk) -> None:
    desk.hyperparameters["sagemaker_program"] = "trian.py"
    code, _, err = desk.plan()
    assert code == 100
    assert "did you mean 'train.py'?" in err


def test_code_that_is_elsewhere_is_not_fetched_and_that_is_said(desk: Desk) -> None:
    (desk.base / "code" / "train.py").unlink()
    desk.hyperparameters["sagemaker_submit_directory"] = "s3://bucket/code.tar.gz"
    document = desk.json()
    code = next(row for row in document["understood"] if row["name"] == "code")
    assert code["value"] == "s3://bucket/code.tar.gz"
    assert code["source"].endswith("not fetched")
    assert any("its code is not here" in line for line in document["assumed"])
    assert os.listdir(desk.base / "code") == []


def test_an_interface_that_is_not_here_is_shown_as_it_is_named(desk: Desk) -> None:
    desk.hosts(2)
    desk.resource["network_interface_name"] = "nowhere7"
    row = next(row for row in desk.json()["understood"] if row["name"] == "interface")
    assert (row["value"], row["source"]) == ("nowhere7", "resourceconfig.json; not on this machine")


def test_code_in_a_folder_of_this_machine_is_looked_at_where_it_lies(
    desk: Desk, tmp_path: Path
) -> None:
    (desk.base / "code" / "train.py").unlink()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("")
    (tmp_path / "project" / "setup.py").write_text("")
    desk.hyperparameters["sagemaker_submit_directory"] = str(tmp_path / "project")
    document = desk.json()
    assert document["assumed"] == []
    assert document["hosts"][0]["script"] == [sys.executable, "-m", "train"]
    assert document["hosts"][0]["cwd"] == str(desk.base / "code")


def test_settings_and_deadlines_that_are_not_the_default_are_shown_with_their_variable(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_STORE_PORT", "29500")
    monkeypatch.setenv("MUSTER_JOIN_S", "60")
    monkeypatch.setenv("MUSTER_SOURCE_DIR", "/mine")
    monkeypatch.setenv("MUSTER_JOB_SECRET", "0123456789abcdef0123")
    desk.hosts(2)
    code, out, _ = desk.plan()
    assert code == 0
    rows = {row["name"]: row for row in desk.json()["understood"]}
    assert rows["store port"]["value"] == "29500"
    assert rows["store port"]["source"] == "variable MUSTER_STORE_PORT"
    assert rows["source"]["source"] == "variable MUSTER_SOURCE_DIR"
    assert rows["join_s"]["value"] == "60"
    assert rows["secret"]["value"] == "***"
    assert "0123456789abcdef" not in out


def test_each_variable_stands_on_a_line_of_its_own_and_a_long_one_keeps_its_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bash exports functions, and as paths are."""
    monkeypatch.setenv("MY_FUNCTION", "() { a\nFORGED  b  contract\n}")
    monkeypatch.setenv("MY_FOLDER", "/first" + "/x" * 100 + "/last")
    lines = desk.plan("--environment")[1].splitlines()
    (function,) = (line for line in lines if "MY_FUNCTION" in line)
    assert "() { a\\nFORGED  b  contract\\n}" in function
    (folder,) = (line for line in lines if "MY_FOLDER" in line)
    assert "/first/x" in folder and "/x/last" in folder and len(folder) < 200


def test_what_of_the_output_is_shown_is_said_by_its_variables(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_QUIET", "1")
    monkeypatch.setenv("MUSTER_SHOW_RANKS", "0,last")
    monkeypatch.setenv("MUSTER_DEBUG", "wait:0")
    page = desk.plan()[1]
    assert "Shown(" not in page and "Debug(" not in page
    rows = {row["source"]: row["value"] for row in desk.json()["understood"]}
    assert rows["variable MUSTER_DEBUG"] == "wait:0"
    assert rows["variable MUSTER_SHOW_RANKS"] == "0,last"
    assert rows["variable MUSTER_QUIET"] == "1"


def test_a_large_cluster_is_cut_on_the_page_and_whole_in_the_object(desk: Desk) -> None:
    desk.hosts(40, current=30)
    torchrun(desk, 1)
    code, out, _ = desk.plan()
    assert code == 0
    assert "and 31 more hosts (all with --json)" in out
    assert "algo-31: rank 30 of 40" in out
    assert len(desk.json()["hosts"]) == 40


def on_engine(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], *options: str
) -> tuple[int, str, str]:
    """`muster plan train.py` on a host of an engine."""
    monkeypatch.chdir(desk.base / "code")
    (desk.base / "secret").write_text("5" * 64)
    (desk.base / "secret").chmod(0o600)
    for name, value in {**environ, "MUSTER_JOB_SECRET_FILE": f"{desk.base}/secret"}.items():
        monkeypatch.setenv(name, value)
    return desk.command("train.py", "--output", "runs/1", *options)


@pytest.mark.parametrize(
    ("name", "environ", "rows"),
    [
        (
            "slurm",
            {**SLURM, "SLURM_RESTART_COUNT": "2", "SLURM_JOB_END_TIME": "1795923964"},
            {
                "hosts": ("n1, n2", "SLURM_STEP_NODELIST"),
                "count": ("2", "SLURM_STEP_NUM_NODES"),
                "index": ("1", "SLURM_NODEID"),
                "job": ("slurm-7-0", "SLURM_JOB_ID"),
                "attempt": ("3", "SLURM_RESTART_COUNT"),
                "deadline": ("2026-11-29 03:46:04 UTC", "SLURM_JOB_END_TIME"),
            },
        ),
        (
            "kubernetes",
            {**INDEXED, "MUSTER_LEADER": "fit-0.fit"},
            {
                "count": ("3", "MUSTER_HOST_COUNT"),
                "index": ("2", "JOB_COMPLETION_INDEX"),
                "leader": ("fit-0.fit", "MUSTER_LEADER"),
            },
        ),
        (
            "batch",
            BATCH,
            {
                "leader": ("10.0.0.4", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"),
                "attempt": ("2", "AWS_BATCH_JOB_ATTEMPT"),
            },
        ),
    ],
)
def test_a_host_of_an_engine_shows_what_was_understood_and_by_which_variable(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    environ: dict[str, str],
    rows: dict[str, tuple[str, str]],
) -> None:
    code, out, err = on_engine(desk, monkeypatch, environ, "--engine", name, "--json")
    assert code == 0, err
    assert f"engine {name} (option --engine)" in err
    found = {row["name"]: (row["value"], row["source"]) for row in json.loads(out)["understood"]}
    assert found["engine"] == (name, "option --engine")
    for what, (value, variable) in rows.items():
        assert found[f"  {what}"] == (value, f"variable {variable}")
    kept = (f"{desk.base}/secret", "variable MUSTER_JOB_SECRET_FILE")
    assert found["  secret"] == kept and "5" * 64 not in out
    assert found["code"][0] == f"{desk.base}/code"
    assert found["base folder"][0].startswith(f"{desk.base}/code/runs/1/")
    assert "/muster-plan-" not in out and os.listdir() == ["train.py"]


@pytest.mark.parametrize(
    ("options", "answer", "refused"),
    [
        (["--hosts", "3"], "3 hosts were asked for, slurm gives 2", 100),
        (["--engine", "batch"], "batch did not start this host", 100),
        (["--isolation", "netns"], "--engine is of `muster run`, --isolation of `muster local`", 2),
        (["--host-list", "a,b"], "this is a host of slurm, which has its own list", 2),
        (
            ["--engine", "hosts", "--host-list", "a,b", "--host-index", "2"],
            "(variable MUSTER_HOSTS)",
            100,
        ),
        (["--secret-file", "nowhere"], "nowhere: No such file", 100),
    ],
)
def test_what_an_engine_contradicts_a_plan_refuses(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, options: list[str], answer: str, refused: int
) -> None:
    code, out, err = on_engine(desk, monkeypatch, SLURM, "--engine", "slurm", *options)
    assert (code, out) == (refused, "") and answer in err, err


def test_of_two_engines_the_first_is_taken_and_the_other_one_is_said(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {**SLURM, "JOB_COMPLETION_INDEX": "1", "MUSTER_HOST_COUNT": "2"}
    secret = ("--secret-file", f"{desk.base}/secret")
    code, _, err = on_engine(desk, monkeypatch, both, *secret)
    assert code == 0 and "engine slurm (the first that was found), host 1 of 2" in err, err
    assert "not used: kubernetes, hosts (--engine chooses)" in err, err
