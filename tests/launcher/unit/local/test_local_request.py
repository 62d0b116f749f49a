"""The command line of `muster local` as a Request, and everything that is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from muster.arguments import Parser, UsageError
from muster.local.command import add_arguments
from muster.local.preparation import checked_keys, distribution_keys
from muster.local.request import Group, Request, parse_groups, read_request


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("train.py", "run.sh", "src/train.py"):
        (tmp_path / name).write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*argv: str) -> Request:
    parser = Parser("muster local", script_arguments=True)
    add_arguments(parser)
    return read_request(parser.parse(argv))


def test_the_scripts_folder_is_the_source_folder(project: Path) -> None:
    request = read("src/train.py")
    assert (request.source_dir, request.program) == (str(project / "src"), "train.py")


@pytest.mark.parametrize("script", ["train.py", "src/train.py"])
def test_a_script_is_named_from_the_source_folder_or_from_here(project: Path, script: str) -> None:
    request = read(script, "--source-dir", "src")
    assert (request.source_dir, request.program) == (str(project / "src"), "train.py")


def test_defaults_are_one_host_without_distribution(project: Path) -> None:
    request = read("run.sh")
    assert request.hosts == 1
    assert request.host_names == ("algo-1",)
    assert request.distribution is None
    assert request.instance_type == "local"
    assert request.isolation is None


def test_every_option_arrives(project: Path) -> None:
    request = read(
        *("train.py", "--hosts", "3", "--distribution", '{"mpi": {"enabled": true}}'),
        *("--hyperparameter", "lr=1e-3", "--hyperparameter", "eq=a=b", "--channel", "train=data"),
        *("--env", "A=", "--output", "out", "--isolation", "process", "--timeout", "2.5"),
        *("--processes-per-host", "2", "--json", "--", "--verbose"),
    )
    assert request == Request(
        program="train.py",
        source_dir=str(project),
        arguments=("--verbose",),
        hosts=3,
        processes_per_host=2,
        distribution={"mpi": {"enabled": True}},
        hyperparameters={"lr": "1e-3", "eq": "a=b"},
        channels={"train": str(project / "data")},
        groups=(),
        instance_type="local",
        environ={"A": ""},
        output=str(project / "out"),
        isolation="process",
        timeout_s=2.5,
        as_json=True,
    )


def test_instance_groups_give_the_number_of_hosts(project: Path) -> None:
    request = read("train.py", "--instance-groups", "big:2:ml.p4d.24xlarge,small:1")
    assert request.groups == (Group("big", 2, "ml.p4d.24xlarge"), Group("small", 1, "local"))
    assert request.host_names == ("algo-1", "algo-2", "algo-3")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tran.py"], "no file 'tran.py'"),
        (["train.py", "--source-dir", "nowhere"], "no folder 'nowhere'"),
        (["run.sh", "--source-dir", "src"], "no file 'run.sh' in --source-dir src"),
        (["train.py", "--hyperparameter", "lr"], "expected NAME=VALUE"),
        (["train.py", "--hyperparameter", "a=1", "--hyperparameter", "a=2"], "given twice"),
        (["train.py", "--channel", "train=dat"], "no folder 'dat'"),
        (["train.py", "--channel", "../x=data"], "cannot be a channel"),
        (["train.py", "--checkpoint", "run.sh"], "is not a folder"),
        (["train.py", "--output", "out", "--checkpoint", "out/ckpt"], "lies in the run folder"),
        (["train.py", "--ranks", "0,lst"], "expected numbers of ranks, ranges or last"),
        (["train.py", "--env", "1A=b"], "not the name of a variable"),
        (["train.py", "--distribution", "{oops"], "neither JSON nor"),
        (["train.py", "--hosts", "2", "--instance-groups", "a:1"], "disagrees"),
        (["train.py", "--instance-groups", "a:200,b:200"], "400 hosts are more than 100"),
        (["train.py", "--processes-per-host", "2"], "needs a --distribution"),
        (["src"], "'src' is a folder, not a script"),
        (["train.py", "--source-dir", "run.sh"], "--source-dir: 'run.sh' is a file"),
        (["train.py", "--channel", "train=run.sh"], "--channel train: 'run.sh' is a file"),
        (["train.py", "--hyperparameter", "sagemaker_mpi_enabledd=true"], "not a key that muster"),
        (["train.py", "--hyperparameter", "sagmaker_mpi_enabled=true"], "not a key that muster"),
        (["train.py", "--hyperparameter", "sagemaker-mpi-enabled=true"], "not a key that muster"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    project: Path, argv: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(*argv)
    assert message in caught.value.message
    assert sorted(entry.name for entry in project.iterdir()) == [
        "data",
        "run.sh",
        "src",
        "train.py",
    ]


@pytest.mark.parametrize(
    ("slip", "meant"), [("tran.py", "train.py"), ("src/trian.py", "src/train.py")]
)
def test_a_misspelt_script_is_answered_with_the_nearest_file(
    project: Path, slip: str, meant: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(slip)
    assert caught.value.fix == f"did you mean {meant}?"


def test_a_script_whose_name_no_json_can_hold_is_refused_before_a_host_starts(
    project: Path,
) -> None:
    name = os.fsdecode(b"tr\xff.py")
    (project / name).touch()
    with pytest.raises(UsageError, match="is not UTF-8"):
        read(name)


@pytest.mark.parametrize("text", ["a", "a:0", "a:-1", "a:x", ":2", "a:1,a:1", "a b:1", "a:1,,b:1"])
def test_malformed_instance_groups_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_groups(text)


def test_a_channel_is_named_by_its_real_path(project: Path) -> None:
    (project / "link").symlink_to("data")
    assert read("train.py", "--channel", "train=link").channels == {"train": str(project / "data")}


def test_a_count_of_processes_may_belong_to_an_option_that_a_hyperparameter_enables(
    project: Path,
) -> None:
    request = read(
        "train.py", "--distribution", "none", "--processes-per-host", "2",
        "--hyperparameter", "sagemaker_pytorch_ddp_enabled=true",
    )  # fmt: skip
    assert distribution_keys(request) == {"sagemaker_mpi_num_of_processes_per_host": "2"}


@pytest.mark.parametrize(
    ("pair", "what"),
    [
        ("mp_parameters=partitions=2", "mp_parameters: expected a JSON object"),
        ('mp_parameters={"partitions": "two"}', "mp_parameters.partitions: expected"),
        ("sagemaker_mpi_enabled=perhaps", "sagemaker_mpi_enabled"),
    ],
)
def test_what_every_host_would_refuse_is_refused_before_one_starts(
    project: Path, pair: str, what: str
) -> None:
    request = read("train.py", "--distribution", "smp", "--hyperparameter", pair)
    with pytest.raises(UsageError, match=re.escape(what)):
        checked_keys(request)


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["src"], "src/train.py"),
        (["train.py", "--channel", "train=src/train.py"], "the folder that holds it: src"),
        (["train.py", "--nnodes", "2"], "the number of hosts is --hosts"),
        (["train.py", "-n", "2"], "the number of ranks on each host is --processes-per-host"),
        (["train.py", "--rdzv_endpoint=x"], "leave it out"),
        (["train.py", "--quiet"], "--json"),
        (["train.py", "--hyperparameter", "sagemaker_mpi_enabledd=1"], "sagemaker_mpi_enabled?"),
    ],
)
def test_a_slip_is_answered_with_what_to_write(project: Path, argv: list[str], hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*argv)
    assert hint in caught.value.fix


@pytest.mark.parametrize(
    "names", [["sagemaker_region=x", "sagemaker_my_own=1"], ["seed=1", "sagemaker=1", "s=2"]]
)
def test_other_names_of_hyperparameters_pass(project: Path, names: list[str]) -> None:
    read("train.py", *(word for name in names for word in ("--hyperparameter", name)))


@pytest.mark.parametrize(
    "text",
    ['{"mpi": {"enabled": true}}', '{"mpi": {"enabled": True}}', "{'mpi': {'enabled': True}}"],
)
def test_the_sdks_dictionary_is_taken_as_json_and_as_python(project: Path, text: str) -> None:
    assert read("train.py", "--distribution", text).distribution == {"mpi": {"enabled": True}}


@pytest.mark.parametrize("name", ["ddp", "pytorch", "deepspeed", "accelerate", "fsdp", "DDP"])
def test_a_library_is_answered_with_what_starts_its_scripts(project: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_keys(read("train.py", "--distribution", name))
    assert f"torch_distributed starts scripts that use {name}" in caught.value.fix


def test_more_ranks_than_the_machine_can_hold_are_refused_unless_asked_for(project: Path) -> None:
    several = 4 * len(os.sched_getaffinity(0)) + 1
    torch = ("train.py", "--distribution", "torch_distributed", "--processes-per-host")
    checked_keys(read(*torch, str(several - 1)))
    mpi = ("--hyperparameter", "sagemaker_mpi_enabled=true", "--hyperparameter")
    total = ("train.py", *mpi, f"sagemaker_mpi_num_processes={several}")
    for argv in ((*torch, str(several)), (*torch, str(several - 1), "--hosts", "2"), total):
        with pytest.raises(UsageError, match="ranks on") as caught:
            checked_keys(read(*argv))
        assert "--oversubscribe" in caught.value.fix
        checked_keys(read(*argv, "--oversubscribe"))


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("src/train.py", "--output", "src"), "the code in"),
        (("src/train.py", "--output", "."), "the code in"),
        (("run.sh", "--source-dir", ".", "--channel", "a=data", "--output", "data"), "--channel a"),
        (("linked.py", "--output", "src"), "the script"),
    ],
)
def test_what_a_run_needs_does_not_lie_in_the_folder_that_it_empties(
    project: Path, argv: tuple[str, ...], what: str
) -> None:
    (project / "linked.py").symlink_to("src/train.py")
    with pytest.raises(UsageError, match=f"{what} .* lies in the run folder, --output"):
        read(*argv)
