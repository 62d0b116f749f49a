"""Where the code comes from, and what lies in the code folder afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.stage.code import source
from muster.stage.code.source import fetch
from muster.types.errors import ConfigError, SourceError
from muster.types.job import Job
from tests.launcher.support.archives import code_archive
from tests.launcher.support.jobs import make_job
from tests.launcher.support.steps import LogLines


@pytest.fixture
def log() -> LogLines:
    return LogLines()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "opt" / "ml"
    (path / "input/data").mkdir(parents=True)
    return path


def job_of(base: Path, came_from: str = "", program: str = "train.py") -> Job:
    return make_job(base=str(base))._replace(source=came_from, program=program)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def put(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_a_code_folder_with_files_wins_and_says_so_once(base: Path, log: LogLines) -> None:
    put(base / "code", train_py="mine")
    archive = code_archive(base.parent / "sent.tar.gz", train_py="sent")
    program = fetch(job_of(base, str(archive)), log)
    assert (base / "code/train.py").read_text() == "mine"
    assert program.code_dir == str(base / "code")
    (line,) = log.lines
    assert line.startswith("INFO stage the code folder is not empty")
    assert str(archive) in line


def test_the_code_folder_as_its_own_source_needs_no_line(base: Path, log: LogLines) -> None:
    put(base / "code", train_py="mine")
    fetch(job_of(base, f"{base}/code/"), log)
    fetch(job_of(base), log)
    assert log.lines == []


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz"])
def test_a_local_archive_is_unpacked(suffix: str, base: Path, log: LogLines) -> None:
    archive = code_archive(base.parent / f"sent{suffix}", train_py="sent", util_py="")
    program = fetch(job_of(base, str(archive)), log)
    assert names(base / "code") == ["train.py", "util.py"]
    assert program.kind == "script"
    assert names(base) == ["code", "input"]


def test_a_local_folder_is_copied_and_left_alone(base: Path, log: LogLines) -> None:
    sent = put(base.parent / "sent", train_py="sent")
    (sent / "link").symlink_to("train.py")
    (sent / "sub").mkdir()
    fetch(job_of(base, f"file://{sent}"), log)
    assert names(base / "code") == ["link", "sub", "train.py"]
    assert (base / "code/link").is_symlink()
    assert names(sent) == ["link", "sub", "train.py"]


def test_a_single_file_is_copied(base: Path, log: LogLines) -> None:
    put(base.parent / "sent", train_py="sent")
    fetch(job_of(base, str(base.parent / "sent/train.py")), log)
    assert names(base / "code") == ["train.py"]


def test_the_code_folder_itself_stays(base: Path, log: LogLines) -> None:
    """It may be a mount point, or the working folder of `train`."""
    (base / "code").mkdir()
    before = (base / "code").stat().st_ino
    fetch(job_of(base, str(code_archive(base.parent / "s.tar.gz", train_py="x"))), log)
    assert (base / "code").stat().st_ino == before


@pytest.mark.parametrize("as_source", [False, True])
def test_plain_files_of_the_code_channel_run_where_they_are(
    as_source: bool, base: Path, log: LogLines
) -> None:
    channel = put(base / "input/data/code", train_py="x")
    program = fetch(job_of(base, str(channel) if as_source else ""), log)
    assert program.code_dir == str(channel)
    assert not (base / "code").exists()


@pytest.mark.parametrize("how", ["nothing", "the folder", "the archive"])
def test_the_archive_of_the_code_channel_is_unpacked(how: str, base: Path, log: LogLines) -> None:
    channel = base / "input/data/code"
    channel.mkdir()
    archive = code_archive(channel / "sourcedir.tar.gz", train_py="x")
    given = {"nothing": "", "the folder": str(channel), "the archive": str(archive)}[how]
    program = fetch(job_of(base, given), log)
    assert program.code_dir == str(base / "code")
    assert names(channel) == ["sourcedir.tar.gz"]


@pytest.mark.promise("B44")
@pytest.mark.parametrize("scheme", ["http", "https", "gs", "git+ssh"])
def test_other_schemes_are_refused_by_name(scheme: str, base: Path, log: LogLines) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch(job_of(base, f"{scheme}://user:pw@host/code.tar.gz"), log)
    assert f"supported: s3, local path; got {scheme!r}" in caught.value.message
    assert "pw" not in caught.value.message + log.text


@pytest.mark.promise("B17")
def test_no_code_at_all_says_what_to_set(base: Path, log: LogLines) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch(job_of(base), log)
    assert f"program 'train.py' not found in {base}/code" in caught.value.message
    assert "sagemaker_submit_directory" in caught.value.fix


def test_a_source_that_is_not_here_is_named(base: Path, log: LogLines) -> None:
    with pytest.raises(SourceError, match="/not/here, which does not exist on this host"):
        fetch(job_of(base, "/not/here"), log)


@pytest.mark.promise("F52")
def test_what_a_killed_run_left_is_neither_code_nor_kept(base: Path, log: LogLines) -> None:
    put(base / "code/.muster-code-0123/tree", half_py="x")
    put(base / ".muster-code-4567", half_py="x")
    fetch(job_of(base, str(code_archive(base.parent / "s.tar.gz", train_py="x"))), log)
    assert names(base) == ["code", "input"]
    assert "train.py" in names(base / "code")


@pytest.mark.promise("F52")
def test_copying_onto_a_full_disk_is_foreseen(
    base: Path, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.stage.space.free_bytes", lambda _: 100)
    sent = put(base.parent / "sent", train_py="x" * 2000)
    with pytest.raises(SourceError) as caught:
        fetch(job_of(base, str(sent)), log)
    assert "no space left (needs 1.95 KiB, 100 bytes free)" in caught.value.message
    assert names(base / "code") == []


def test_a_source_around_the_code_folder_is_refused(base: Path, log: LogLines) -> None:
    with pytest.raises(SourceError, match="holds the code folder itself"):
        fetch(job_of(base, str(base)), log)


def test_a_pipe_among_the_code_is_an_error_and_not_a_hang(base: Path, log: LogLines) -> None:
    sent = put(base.parent / "sent", train_py="x")
    os.mkfifo(sent / "pipe")
    with pytest.raises(SourceError, match="pipe"):
        fetch(job_of(base, str(sent)), log)


def test_nothing_is_written_into_a_folder_that_is_not_ours(base: Path, log: LogLines) -> None:
    folder = put(base / "code", train_py="x")
    before = {path: path.stat().st_mtime_ns for path in [folder, folder / "train.py"]}
    program = fetch(job_of(base), log)
    source.code_hash(program)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert names(folder) == ["train.py"]


def test_the_program_carries_the_jobs_arguments(base: Path, log: LogLines) -> None:
    put(base / "code", train_py="x")
    program = fetch(job_of(base)._replace(arguments=("--lr", "1; rm -rf $HOME")), log)
    assert program.arguments == ("--lr", "1; rm -rf $HOME")
