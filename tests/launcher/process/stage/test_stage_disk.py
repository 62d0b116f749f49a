"""Unpacking onto real small disks: mount points, full and read-only ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.support.archives import Entry, write_archive

_FETCH = """
import os, sys
sys.path[:0] = sys.argv[3].split(os.pathsep)
from muster.types.errors import MusterError
from muster.stage.code.source import fetch
from tests.launcher.support.jobs import make_job
from tests.launcher.support.steps import LogLines
try:
    fetch(make_job(base=sys.argv[1])._replace(source=sys.argv[2]), LogLines())
except MusterError as error:
    print(error.headline)
for folder in (sys.argv[1], sys.argv[1] + "/code"):
    print(" ".join(sorted(os.listdir(folder))))
"""


def fetched(base: Path, archive: Path, *mounts: str) -> list[str]:
    """What a fetch says, then what the base folder and the code folder hold, after `mounts`."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    shell = " && ".join([*mounts, 'exec "$@"'])
    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[4])])
    argv = [sys.executable, "-c", _FETCH, str(base), str(archive), path]
    done = subprocess.run(
        [*unshare, "sh", "-c", shell, "sh", *argv],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "ml"
    (path / "code").mkdir(parents=True)
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    files = [Entry("train.py", b"print(1)"), Entry("weights.bin", os.urandom(3 << 20))]
    return write_archive(tmp_path / "sent.tar.gz", *files)


def test_a_code_folder_that_is_a_mount_point_is_filled(base: Path, archive: Path) -> None:
    lines = fetched(base, archive, f"mount -t tmpfs -o size=16m tmpfs {base}/code")
    assert lines == ["code", "train.py weights.bin"]


@pytest.mark.promise("F63")
def test_only_the_code_folder_needs_to_be_writable(base: Path, archive: Path) -> None:
    lines = fetched(
        base,
        archive,
        f"mount --bind {base} {base}",
        f"mount -t tmpfs -o size=16m tmpfs {base}/code",
        f"mount -o remount,bind,ro {base}",
    )
    assert lines == ["code", "train.py weights.bin"]


@pytest.mark.promise("F52")
def test_a_disk_that_is_too_small_is_told_with_both_numbers(base: Path, archive: Path) -> None:
    lines = fetched(base, archive, f"mount -t tmpfs -o size=1m tmpfs {base}/code")
    assert lines[0].startswith("SourceError: no space left unpacking code archive")
    assert lines[0].endswith("(needs 3 MiB, 1 MiB free)")
    assert lines[1:] == ["code", ""]


@pytest.mark.promise("F52")
def test_a_disk_without_room_for_names_is_a_full_disk(base: Path, tmp_path: Path) -> None:
    many = write_archive(tmp_path / "many.tar.gz", *[Entry(f"{n}.py", b"") for n in range(200)])
    lines = fetched(base, many, f"mount -t tmpfs -o size=4m,nr_inodes=50 tmpfs {base}/code")
    assert "no space left unpacking code archive" in lines[0]
    assert "the disk is full" in lines[0]
    assert lines[1:] == ["code", ""]


def test_a_read_only_code_folder_is_named(base: Path, archive: Path) -> None:
    lines = fetched(
        base, archive, f"mount --bind {base} {base}", f"mount -o remount,bind,ro {base}"
    )
    assert (
        lines[0]
        == f"SourceError: the code folder {base}/code cannot be written: Read-only file system"
    )
