"""Oversized variables: what the kernel refuses goes to files, and the rest then starts."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from muster.contract import spill as spilling
from muster.contract.spill import MAX_STRING_BYTES, spill, total_limit

PATH = {"PATH": "/usr/bin:/bin"}


def starts(environ: dict[str, str], *arguments: str) -> bool:
    """Whether the kernel starts a process with these."""
    try:
        subprocess.run(["true", *arguments], env=environ, check=True)
    except OSError:
        return False
    return True


@pytest.mark.promise("B34")
def test_a_value_at_the_kernels_limit_stays_and_one_byte_more_goes_to_a_file(
    tmp_path: Path,
) -> None:
    fits = {**PATH, "SM_HPS": "x" * (MAX_STRING_BYTES - len("SM_HPS=") - 1)}
    over = {**PATH, "SM_HPS": fits["SM_HPS"] + "x"}
    assert starts(fits) and not starts(over), "the kernel's limit is where we think it is"
    assert spill(fits, str(tmp_path)) == (fits, ())
    environ, (warning,) = spill(over, str(tmp_path / "new"))
    assert starts(environ)
    assert "SM_HPS" not in environ
    assert Path(environ["SM_HPS_FILE"]).read_text() == over["SM_HPS"]
    assert "SM_HPS_FILE" in warning


@pytest.mark.promise("B34")
def test_the_largest_go_first_until_the_whole_fits_beside_the_arguments(tmp_path: Path) -> None:
    count = total_limit() // 100_000 + 1
    big = {f"SM_HP_{i:03}": "v" * (100_000 + i) for i in range(count)}
    arguments = ["a" * 100_000] * 2
    assert not starts({**PATH, **big}, *arguments)
    environ, warnings = spill({**PATH, **big}, str(tmp_path / "env"), arguments)
    assert starts(environ, *arguments)
    assert len(warnings) == 1
    moved = {name.removesuffix("_FILE") for name in environ if name.endswith("_FILE")}
    assert moved == set(sorted(big)[-len(moved) :]), "the largest ones"
    assert len(moved) < count / 2, "no more than needed"


@pytest.mark.promise("B34")
def test_sixty_hyperparameters_of_full_length_start_a_process(tmp_path: Path) -> None:
    values = {f"SM_HP_{i}": "v" * 2400 for i in range(60)}
    joined = "".join(values.values())
    environ = {**PATH, **values, "SM_HPS": joined, "SM_TRAINING_ENV": joined * 2}
    assert not starts(environ)
    spilled, _ = spill(environ, str(tmp_path / "env"))
    assert starts(spilled)
    assert spilled["SM_HP_59"] == values["SM_HP_59"]


@pytest.mark.promise("B34")
@pytest.mark.promise("S18")
def test_files_are_private_and_the_same_for_the_same_input(tmp_path: Path) -> None:
    environ = {
        "SM_HPS": "é" * 70_000,
        "SM_HP_A/../B": "x" * 200_000,
        "SM_HP_" + "N" * 250: "y" * MAX_STRING_BYTES,
    }
    folder = tmp_path / "env"
    first, _ = spill(environ, str(folder))
    second, _ = spill(environ, str(tmp_path / "other"))
    names = [{name: Path(path).name for name, path in files.items()} for files in (first, second)]
    assert names[0] == names[1]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [Path(path) for path in first.values()]
    assert len(files) == len(set(files)) == 3
    assert {file.parent for file in files} == {folder}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert Path(first["SM_HPS_FILE"]).read_text(encoding="utf-8") == environ["SM_HPS"]


def test_variables_of_the_user_are_never_moved(tmp_path: Path) -> None:
    environ = {"MY_BLOB": "x" * (3 * MAX_STRING_BYTES)}
    assert spill(environ, str(tmp_path)) == (environ, ())


@pytest.mark.promise("S18")
def test_a_folder_that_is_there_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    with pytest.raises(FileExistsError):
        spill({"SM_HPS": "x" * MAX_STRING_BYTES}, str(tmp_path / "env"))


def test_the_total_limit_is_the_kernels() -> None:
    assert total_limit() == os.sysconf("SC_ARG_MAX") or total_limit() == spilling.MAX_TOTAL_BYTES
