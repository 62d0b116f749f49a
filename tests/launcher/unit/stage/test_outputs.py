"""B41: where a job leaves its work is looked at before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.contract.findings import Findings
from muster.contract.request.inputs import prepare_outputs
from muster.types.job import Paths

NOT_ROOT = pytest.mark.skipif(os.getuid() == 0, reason="root may write but on a read-only disk")


def look_at(base: Path, checkpoints: str | None = None) -> list[str]:
    findings = Findings()
    prepare_outputs(Paths.below(str(base)), checkpoints, findings)
    assert findings.warnings == []
    return [str(problem) for problem in findings.problems]


@pytest.mark.promise("B41")
def test_absent_folders_are_made_and_checkpoints_only_where_the_platform_keeps_them(
    tmp_path: Path,
) -> None:
    assert look_at(tmp_path / "ml") == []
    assert (tmp_path / "ml/model").is_dir()
    assert (tmp_path / "ml/output/data").is_dir()
    assert not (tmp_path / "ml/checkpoints").exists()
    assert look_at(tmp_path / "ml", str(tmp_path / "saved")) == []
    assert (tmp_path / "saved").is_dir()


@pytest.mark.promise("B41")
@pytest.mark.parametrize("name", ["model", "output/data", "checkpoints"])
def test_a_folder_on_a_read_only_disk_is_a_problem(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to("/proc/sys")  # nobody makes a file there, and the kernel says so
    if os.access(folder, os.W_OK):
        pytest.skip("/proc/sys takes files here")
    (problem,) = look_at(tmp_path)
    assert problem.startswith(f"{folder}: cannot be written")
    assert problem.endswith("what the job writes there would be lost")


@NOT_ROOT
@pytest.mark.promise("B41")
def test_a_folder_of_another_mode_names_its_owner_and_the_user(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir(mode=0o500)
    (problem,) = look_at(tmp_path)
    me = os.getuid()
    assert f"cannot be written by user {me}: user {me} owns it (mode 500)" in problem


@pytest.mark.promise("B41")
def test_what_is_no_folder_is_a_problem_also_where_the_platform_keeps_checkpoints(
    tmp_path: Path,
) -> None:
    (tmp_path / "model").write_text("")
    (tmp_path / "saved").write_text("")
    problems = look_at(tmp_path, str(tmp_path / "saved"))
    assert [problem.partition(";")[0] for problem in problems] == [
        f"{tmp_path}/model: is not a folder",
        f"{tmp_path}/saved: is not a folder",
    ]
