"""`-m package.module` of `muster local`, and the hint about imports beside the source folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.arguments import UsageError
from muster.local.code.module import check_module, imports_from_here


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "job/tools").mkdir(parents=True)
    (tmp_path / "json").mkdir()
    for name in ("train.py", "own.py", "tools/__main__.py"):
        (tmp_path / "job" / name).write_text("pass\n")
    return tmp_path


@pytest.mark.parametrize("module", ["job.train", "job.tools"])
def test_a_module_is_named_from_the_source_folder(project: Path, module: str) -> None:
    check_module(module, str(project))


@pytest.mark.parametrize(
    ("module", "answer"),
    [
        ("job.trian", "did you mean 'train'?"),
        ("jobs.train", "no module 'jobs.train'"),
        ("job", "no __main__.py"),
        ("job/train.py", "did you mean -m job.train?"),
        ("", "not the name of a module"),
    ],
)
def test_a_module_that_is_not_there_is_refused(project: Path, module: str, answer: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_module(module, str(project))
    assert answer in f"{caught.value.message} {caught.value.fix}"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import job.train", ["job"]),
        ("from job import train\nimport job", ["job"]),
        ("def f():\n    import job", ["job"]),
        ("import json, own, absent", []),  # the standard library's, its own, nobody's
        ("from . import job", []),
        ("import job (", []),
        ("\0", []),
    ],
)
def test_imports_of_folders_beside_the_source_folder_are_seen(
    project: Path, code: str, found: list[str]
) -> None:
    (project / "job/train.py").write_text(code)
    assert imports_from_here("train.py", str(project / "job"), str(project)) == found
    assert imports_from_here("train.py", str(project), str(project)) == []
