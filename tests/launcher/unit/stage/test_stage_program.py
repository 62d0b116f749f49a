"""What kind of program an entry point is, and what is said when it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.stage.code.program import decide, is_package
from muster.types.errors import ConfigError
from muster.types.job import Program

WHERE = "hyperparameter sagemaker_program"
BUILDABLE = '[build-system]\nrequires = ["setuptools"]\n\n[project]\nname = "p"\n'
LISTING = '[project]\nname = "p"\ndependencies = ["numpy"]\n'
TOOLS = "[tool.ruff]\nline-length = 100\n"


def decided(folder: Path, name: str, ours: bool = False) -> Program:
    return decide(str(folder), name, ("--lr", "1"), WHERE, ours)


def refusal(folder: Path, name: str, ours: bool = False) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        decided(folder, name, ours)
    assert caught.value.problems[0].where in (WHERE, str(folder / "pyproject.toml"))
    return caught.value


@pytest.mark.parametrize(
    ("files", "name", "kind", "runs"),
    [
        ({"train.py": ""}, "train.py", "script", "train.py"),
        ({"src/train.py": ""}, "src/train.py", "script", "src/train.py"),
        ({"run.sh": ""}, "run.sh", "command", "run.sh"),
        ({"run.sh": "", "setup.py": ""}, "run.sh", "command", "run.sh"),
        ({"train.py": "", "setup.py": ""}, "train.py", "module", "train"),
        ({"p/train.py": "", "setup.py": ""}, "p/train.py", "module", "p.train"),
        ({"p/train.py": "", "setup.py": ""}, "p.train", "module", "p.train"),
        ({"lib/train.py": "", "setup.py": ""}, "train.py", "module", "train"),
        ({"train.py": "", "pyproject.toml": BUILDABLE}, "train.py", "module", "train"),
        ({"p/t.py": "", "pyproject.toml": LISTING}, "p.t", "module", "p.t"),
        ({"train.py": "", "pyproject.toml": LISTING}, "train.py", "script", "train.py"),
        ({"train.py": "", "pyproject.toml": TOOLS}, "train.py", "script", "train.py"),
    ],
)
def test_the_kind_follows_from_name_and_folder(
    files: dict[str, str], name: str, kind: str, runs: str, tmp_path: Path
) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = decided(tmp_path, name)
    assert found[:4] == Program(kind, runs, str(tmp_path), ("--lr", "1"))[:4]


@pytest.mark.parametrize(
    ("first_line", "interpreter"),
    [
        ("echo", ("/bin/sh",)),
        ("#!/bin/bash", ("/bin/bash",)),
        ("#! /bin/bash -eu ", ("/bin/bash", "-eu")),
        ("#!/usr/bin/env bash", ("/usr/bin/env", "bash")),
        ("#!/no/such/shell", ("/bin/sh",)),
        ("#!", ("/bin/sh",)),
        ("", ("/bin/sh",)),
    ],
)
def test_a_shell_script_is_run_by_what_its_first_line_names(
    first_line: str, interpreter: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(first_line + "\n")
    assert decided(tmp_path, "run.sh").interpreter == interpreter


@pytest.mark.promise("B17")
@pytest.mark.parametrize(
    ("there", "name", "listed", "fix"),
    [
        (["main.py", "utils.py"], "train.py", "files there: main.py, utils.py", "'main.py'?"),
        (["zoo.py"], "train.py", "files there: zoo.py", "by its path"),
        (["trian.py", "utils.py"], "train.py", "trian.py", "did you mean 'trian.py'?"),
        (["src/train.py", "x.txt"], "train.py", "src/, x.txt", "did you mean 'src/train.py'?"),
        (["src/trainer.py"], "train.py", "src/", "did you mean 'src/trainer.py'?"),
        (["run.sh"], "run_.sh", "run.sh", "did you mean 'run.sh'?"),
        ([f"f{n}.txt" for n in range(12)], "train.py", "f5.txt and 4 more", "by its path"),
        ([], "train.py", "the folder holds no files", "set sagemaker_submit_directory"),
    ],
)
def test_a_missing_program_is_answered_with_what_is_there(
    there: list[str], name: str, listed: str, fix: str, tmp_path: Path
) -> None:
    for path in there:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    error = refusal(tmp_path, name)
    assert error.exit_code == 100
    assert error.headline.startswith(f"ConfigError: {WHERE}: program {name!r} not found in ")
    assert listed in error.message
    assert fix in error.fix


@pytest.mark.promise("B17")
def test_a_module_that_no_folder_of_the_package_holds_is_missing(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    (tmp_path / "other.py").touch()
    assert "program 'train.py' not found" in refusal(tmp_path, "train.py").message


@pytest.mark.promise("B18", "S05")
@pytest.mark.parametrize(
    "name", ["../x.py", "/tmp/x.py", "a/../../x.py", "--help", "-c", "", "a\0b"]
)
def test_a_name_that_leaves_the_folder_or_looks_like_an_option_is_refused(
    name: str, tmp_path: Path
) -> None:
    assert "must be relative to the code folder" in refusal(tmp_path, name).message


@pytest.mark.promise("B19")
@pytest.mark.parametrize(
    ("content", "mode", "words", "fix"),
    [
        (b"#!/bin/sh\n", 0o644, "has no execute permission; it would be started as ./run", "chmod"),
        (b'{"a": 1}', 0o755, "is not executable: it has no '#!' line", "name a .py or .sh file"),
        (b"", 0o755, "is not executable", "name a .py or .sh file"),
    ],
)
def test_what_cannot_be_started_says_how_it_would_have_been(
    content: bytes, mode: int, words: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "run").write_bytes(content)
    (tmp_path / "run").chmod(mode)
    error = refusal(tmp_path, "run")
    assert words in error.message
    assert fix in error.fix


@pytest.mark.promise("B19")
def test_a_folder_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    assert "'train'" in refusal(tmp_path, "train").message


def test_an_execute_bit_is_mended_in_our_own_folder_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.write_text("#!/bin/sh\n")
    run.chmod(0o644)
    refusal(tmp_path, "run")
    assert run.stat().st_mode & 0o777 == 0o644
    assert decided(tmp_path, "run", ours=True).kind == "command"
    assert run.stat().st_mode & 0o777 == 0o755


@pytest.mark.promise("B20")
def test_a_project_without_a_name_is_refused_with_file_and_field(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\n[project]\nversion="1"'
    )
    error = refusal(tmp_path, "train.py")
    assert error.message == f"{tmp_path}/pyproject.toml: [project] has no name"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BUILDABLE, True),
        ("[ build-system ]\nrequires=[]", True),
        ('[project]\n"name" = "x"\n[build-system]\n', True),
        ("# [build-system]\n", False),
        ("[tool.build-system]\n", False),
        (LISTING, False),
        ("", False),
    ],
)
def test_a_project_counts_when_it_can_be_built(text: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "pyproject.toml").write_text(text)
    assert is_package(str(tmp_path), "train.py") is expected
