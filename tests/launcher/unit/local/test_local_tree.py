"""Each host's `/opt/ml`: documents as SageMaker writes them, folders, code and run folder."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from muster.arguments import UsageError
from muster.contract.request.read import read_job
from muster.local import tree
from muster.local.code import sourcecode
from muster.local.record.layout import FRESH_SOURCE, MARK
from muster.local.record.runfolder import clear, discard, job_name, link_latest, make_run_folder
from muster.local.request import Group
from muster.types.distribution import Torchrun
from tests.launcher.support.local.local_runs import make_request
from tests.launcher.support.local.unprivileged import NOBODY, home_of_nobody


def test_a_plain_resource_config_has_no_instance_groups() -> None:
    assert tree.resource_config(make_request(), "algo-2", "eth0") == {
        "current_host": "algo-2",
        "current_instance_type": "local",
        "hosts": ["algo-1", "algo-2"],
        "network_interface_name": "eth0",
    }


def test_instance_groups_stand_in_the_resource_config_when_asked_for() -> None:
    request = make_request(hosts=3, groups=(Group("big", 2, "ml.p4d"), Group("small", 1, "ml.c5")))
    document = tree.resource_config(request, "algo-3", "eth0")
    assert document["current_group_name"] == "small"
    assert document["current_instance_type"] == "ml.c5"
    assert document["instance_groups"] == [
        {"instance_group_name": "big", "instance_type": "ml.p4d", "hosts": ["algo-1", "algo-2"]},
        {"instance_group_name": "small", "instance_type": "ml.c5", "hosts": ["algo-3"]},
    ]


@pytest.mark.parametrize(
    ("typed", "wire"),
    [
        ("0.1", "0.1"),
        ("1e-3", "1e-3"),
        ("true", "true"),
        ("True", '"True"'),
        ("adam", '"adam"'),
        ("007", '"007"'),
        ("", '""'),
        ('"7"', '"7"'),
        ('{"a": [1]}', '{"a": [1]}'),
        ('say "hi"; $(x)\n', '"say \\"hi\\"; $(x)\\n"'),
    ],
)
def test_typed_values_travel_as_sdk_v2_encodes_them(typed: str, wire: str) -> None:
    assert tree.on_the_wire(typed) == wire
    json.loads(wire)


def test_every_hyperparameter_is_a_string_and_the_users_own_win() -> None:
    request = make_request(
        processes_per_host=4,
        hyperparameters={"lr": "0.1", "sagemaker_container_log_level": "10"},
    )
    keys = {"sagemaker_torch_distributed_enabled": "true"}
    document = tree.hyperparameters(request, keys, "job-1", "/run/source.tar.gz")
    assert document == {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"/run/source.tar.gz"',
        "sagemaker_container_log_level": "10",
        "sagemaker_job_name": '"job-1"',
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "4",
        "lr": "0.1",
    }


def test_the_written_tree_is_read_back_as_the_job(tmp_path: Path) -> None:
    request = make_request(processes_per_host=2, channels={"train": str(tmp_path / "data")})
    (tmp_path / "data").mkdir()
    base = tmp_path / "algo-1" / "opt" / "ml"
    keys = {"sagemaker_torch_distributed_enabled": "true"}
    documents = {
        "resourceconfig.json": tree.resource_config(request, "algo-1", "lo"),
        "inputdataconfig.json": tree.input_data_config(["train"]),
        "hyperparameters.json": tree.hyperparameters(request, keys, "job", "/x.tar.gz"),
    }
    tree.write_tree(str(base), documents, request.channels)
    job = read_job({"SAGEMAKER_BASE_DIR": str(base)})
    assert [host.name for host in job.cluster.hosts] == ["algo-1", "algo-2"]
    assert job.distribution == Torchrun(processes_per_host=2)
    assert job.program == "train.py"
    assert (base / "input/data/train").readlink() == tmp_path / "data"
    assert all((base / folder).is_dir() for folder in ("model", "output/data", "checkpoints"))


def test_the_archive_holds_the_code_and_no_earlier_runs(tmp_path: Path) -> None:
    for path in (
        *("train.py", "pkg/a.py", "muster-runs/x/model.bin", ".git/config", "__pycache__/a.pyc"),
        *("venv/pyvenv.cfg", "venv/lib/big.py", "out/summary.json"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "train.py").chmod(0o755)
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "pkg/link.py").symlink_to("../train.py")
    archive = tmp_path / "out" / "source" / "code.tar.gz"
    sourcecode.pack(str(tmp_path), str(archive), [str(tmp_path / "out")])
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert sorted(members) == ["pkg/a.py", "pkg/link.py", "train.py"]
    assert members["pkg/link.py"].isreg()
    assert members["train.py"].mode & 0o111


def test_a_folder_too_large_to_be_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sourcecode, "MAX_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.py").touch()
    with pytest.raises(UsageError, match="too much to be code"):
        sourcecode.pack(str(tmp_path), str(tmp_path / "out/a.tar.gz"), [str(tmp_path / "out")])


def test_each_run_has_a_folder_of_its_own_and_latest_names_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = make_run_folder("pkg/train.py", None, now=0.0)
    second = make_run_folder("pkg/train.py", None, now=0.0)
    assert first.path != second.path
    assert os.path.dirname(first.path) == str(tmp_path / "muster-runs")
    assert first.path.endswith("-train")
    link_latest(first)
    link_latest(second)
    assert os.path.realpath("muster-runs/latest") == second.path
    assert (tmp_path / "muster-runs/.gitignore").read_text() == "*\n"


def test_a_folder_with_files_that_are_not_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not of a run of muster"):
        make_run_folder("t.py", str(tmp_path))
    with pytest.raises(UsageError, match=r"thesis\.txt is a file, or"):
        make_run_folder("t.py", str(tmp_path / "thesis.txt"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_earlier_run_gives_way_unless_it_is_still_running(tmp_path: Path) -> None:
    first = make_run_folder("t.py", str(tmp_path / "out"))
    (tmp_path / "out/algo-1/opt/ml/input/data").mkdir(parents=True)
    (tmp_path / "out/algo-1/opt/ml/input/data/train").symlink_to(tmp_path)  # a channel
    with pytest.raises(UsageError, match="in use by another run"):
        make_run_folder("t.py", str(tmp_path / "out"))
    assert (tmp_path / "out/algo-1/opt").is_dir()
    os.close(first.lock)
    second = make_run_folder("t.py", str(tmp_path / "out"))
    (tmp_path / "out" / FRESH_SOURCE).touch()
    clear(second)
    assert sorted(os.listdir(second.path)) == [MARK, "source"]
    os.close(second.lock)


def test_an_output_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        make_run_folder("t.py", str(tmp_path / "file" / "out"))


def test_a_run_that_never_began_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    discard(make_run_folder("t.py", None))
    assert os.listdir("muster-runs") == [".gitignore"]


@pytest.mark.parametrize(
    ("text", "name"), [("a b_c.d", "a-b-c-d"), ("--x--", "x"), ("é", "job"), ("a" * 99, "a" * 63)]
)
def test_a_job_name_is_one_that_sagemaker_takes(text: str, name: str) -> None:
    assert job_name(text) == name


def test_earlier_runs_inside_the_source_folder_are_not_packed(tmp_path: Path) -> None:
    from muster.local.code.sourcecode import find_files

    (tmp_path / "train.py").write_text("pass")
    (tmp_path / "out1" / "algo-1").mkdir(parents=True)
    (tmp_path / "out1" / MARK).write_text("a-job\n")
    (tmp_path / "out1" / "algo-1" / "model.pt").write_text("big")
    assert list(find_files(str(tmp_path), [])) == [str(tmp_path / "train.py")]


@pytest.mark.parametrize("kept", ["secret.key", "private"])
def test_what_cannot_be_read_beside_the_script_is_named(tmp_path: Path, kept: str) -> None:
    def refuse() -> None:
        with pytest.raises(UsageError, match=f"{kept} .*cannot be read: Permission denied"):
            sourcecode.pack(str(code), str(code.parent / "out/a.tar.gz"), [])

    if os.getuid():
        code = fill(tmp_path)
        (code / kept).chmod(0)
        refuse()
        return
    with home_of_nobody(fill) as home:  # root may read everything
        code = home / "src"
        (code / kept).chmod(0)
        os.seteuid(NOBODY)
        try:
            refuse()
        finally:
            os.seteuid(0)


def fill(home: Path) -> Path:
    (home / "src" / "private").mkdir(parents=True)
    for name in ("train.py", "secret.key", "private/notes"):
        (home / "src" / name).write_text("pass")
    return home / "src"
