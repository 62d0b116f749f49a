"""The status files: written whole, never over the script's own, and never at any price."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.contract import report
from muster.contract.report import RESERVE, reserve, write
from muster.types.job import Paths
from muster.types.masking import Masker
from muster.types.outcome import Failed, Stopped, Succeeded

FAILED = Failed(7, "UserScriptError: exit code 7, algo-1 rank 0", "mend the script")
PLAIN = Masker()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.below(str(tmp_path / "ml"))


def output(paths: Paths) -> dict[str, str]:
    return {file.name: file.read_text() for file in Path(paths.output).iterdir()}


def test_a_failure_leaves_one_file_with_the_whole_text(paths: Paths) -> None:
    assert reserve(paths)
    assert Path(paths.output, RESERVE).stat().st_size == 1024
    assert write(paths, FAILED, PLAIN)
    assert output(paths) == {"failure": f"{FAILED.headline}\nFix: mend the script\n"}


def test_success_leaves_an_empty_success_file(paths: Paths) -> None:
    reserve(paths)
    assert write(paths, Succeeded(), PLAIN)
    assert output(paths) == {"success": ""}


@pytest.mark.parametrize("engine", ["kubernetes", "slurm", ""])
def test_the_kubelet_is_told_in_a_pod_of_muster_run_only(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Also `muster local` may run in a pod, whose end is another."""
    told = tmp_path / "termination-log"
    told.write_text("")
    monkeypatch.setattr(report, "TERMINATION", str(told))
    Path(paths.config).mkdir(parents=True)
    if engine:
        Path(paths.config, "muster-engine.json").write_text(json.dumps({"engine": engine}))
    assert write(paths, FAILED, PLAIN)
    assert told.read_text() == (output(paths)["failure"] if engine == "kubernetes" else "")


def test_the_kubelet_gets_a_scripts_own_failure(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "termination-log"
    told.write_text("x" * 5000)
    monkeypatch.setattr(report, "TERMINATION", str(told))
    Path(paths.config).mkdir(parents=True)
    Path(paths.config, "muster-engine.json").write_text('{"engine": "kubernetes"}')
    Path(paths.output).mkdir()
    Path(paths.failure).write_text("mine")
    assert write(paths, FAILED, PLAIN)
    assert told.read_text() == "mine"
    told.unlink()
    assert write(paths, FAILED, PLAIN) and not told.exists()


@pytest.mark.promise("F01")
def test_a_clean_stop_leaves_nothing(paths: Paths) -> None:
    reserve(paths)
    assert write(paths, Stopped("SIGTERM"), PLAIN)
    assert output(paths) == {}


def test_a_failure_that_the_script_wrote_stays(paths: Paths) -> None:
    reserve(paths)
    Path(paths.failure).write_text("the script knows best")
    assert write(paths, FAILED, PLAIN)
    assert output(paths) == {"failure": "the script knows best"}


def test_leftovers_of_an_earlier_run_are_set_aside(paths: Paths) -> None:
    os.makedirs(paths.output)
    for name in ("failure", "success", RESERVE):
        Path(paths.output, name).write_text("old")
    assert reserve(paths)
    assert output(paths) == {"failure.earlier": "old", RESERVE: "\n" * 1024}
    assert write(paths, FAILED, PLAIN)
    assert output(paths)["failure"].startswith(FAILED.headline)


def test_a_report_needs_no_reserve(paths: Paths) -> None:
    assert write(paths, FAILED, PLAIN)
    assert set(output(paths)) == {"failure"}


def test_the_reserve_is_written_in_place(paths: Paths) -> None:
    reserve(paths)
    inode = Path(paths.output, RESERVE).stat().st_ino
    write(paths, FAILED, PLAIN)
    assert Path(paths.failure).stat().st_ino == inode, "the blocks that were set aside"


@pytest.mark.promise("S18")
@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["success", RESERVE])
def test_no_other_file_is_emptied_through_a_link(
    paths: Paths, name: str, link: Callable[[str, str], None]
) -> None:
    reserve(paths)
    victim = Path(paths.base, "checkpoint")
    victim.write_text("keep me")
    place = f"{paths.output}/{name}"
    Path(place).unlink(missing_ok=True)
    link(str(victim), place)  # the script did so
    outcome = Succeeded() if name == "success" else FAILED
    assert write(paths, outcome, PLAIN)
    assert victim.read_text() == "keep me"
    assert os.stat(victim).st_nlink == 1
    (status,) = Path(paths.output).iterdir()
    assert status.name in ("success", "failure") and status.is_file() and not status.is_symlink()


@pytest.mark.promise("S18")
@pytest.mark.parametrize("name", ["success", RESERVE])
@pytest.mark.parametrize("reader", [False, True])
def test_a_fifo_in_the_place_of_a_status_file_is_replaced(
    paths: Paths, name: str, reader: bool
) -> None:
    """Opened as it is it would block for ever, or take what nobody keeps."""
    reserve(paths)
    place = f"{paths.output}/{name}"
    Path(place).unlink(missing_ok=True)
    os.mkfifo(place)
    descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK) if reader else -1
    outcome = Succeeded() if name == "success" else FAILED
    assert write(paths, outcome, PLAIN)
    if reader:
        os.close(descriptor)
    (status,) = Path(paths.output).iterdir()
    assert status.name in ("success", "failure") and status.is_file()


@pytest.mark.promise("F51")
def test_an_output_folder_that_cannot_be_made_is_told_and_not_raised(tmp_path: Path) -> None:
    (tmp_path / "ml").mkdir()
    (tmp_path / "ml" / "output").write_text("a file in place of the folder")
    paths = Paths.below(str(tmp_path / "ml"))
    assert not reserve(paths)
    assert not write(paths, FAILED, PLAIN)
    assert not write(paths, Succeeded(), PLAIN)


FULL_DISK = """
import os, sys
from muster.contract import report
from muster.contract.report import reserve, write
from muster.types.job import Paths
from muster.types.masking import Masker
from muster.types.outcome import Failed
paths = Paths.below(sys.argv[1])
assert reserve(paths)
try:
    with open(paths.output + "/big", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    assert error.errno == 28, error  # no space left
assert os.statvfs(paths.output).f_bavail == 0
assert write(paths, Failed(7, "UserScriptError: x", "y"), Masker())
assert open(paths.failure).read() == "UserScriptError: x\\nFix: y\\n"
"""
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.mark.promise("F50")
def test_a_disk_that_fills_up_cannot_lose_the_failure_file(tmp_path: Path) -> None:
    if not shutil.which("unshare") or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("needs user namespaces (unshare --user --mount)")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=64k none "$0" && exec "$1" -c "$2" "$0"'
    command = [*NAMESPACE, "sh", "-c", script, str(disk), sys.executable, FULL_DISK]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
