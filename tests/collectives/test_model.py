"""The protocol of rounds, explored by the model checker SPIN: right as it is, and each error found.

The model is model/rounds.pml; it stands for csrc/wait.c under weak memory.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

MODEL = Path(__file__).resolve().parent / "model" / "rounds.pml"
LIMIT_S = 110


class Verdict(NamedTuple):
    """`why`: the first error in SPIN's words, "" without one."""

    errors: int
    states: int
    why: str


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 5), (3, 3)])
def test_every_rank_reads_every_round_and_comes_to_its_end(
    ranks: int, rounds: int, tmp_path: Path
) -> None:
    verdict = explored(tmp_path, f"-DRANKS={ranks}", f"-DROUNDS={rounds}")
    assert verdict.errors == 0, verdict.why
    assert verdict.states > 1000


@pytest.mark.parametrize(
    ("error", "found"),
    [
        pytest.param("ERROR_STORE", "assertion violated", id="the flag overtakes the data"),
        pytest.param("ERROR_LOAD", "assertion violated", id="data is read before the flag"),
        pytest.param("ERROR_FENCE", "invalid end state", id="a sleeper is overlooked"),
        pytest.param("ERROR_PARITY", "assertion violated", id="one place instead of two"),
    ],
)
def test_the_model_finds_the_error(error: str, found: str, tmp_path: Path) -> None:
    verdict = explored(tmp_path, f"-D{error}")
    assert verdict.errors == 1
    assert found in verdict.why


def explored(folder: Path, *defines: str) -> Verdict:
    """All states of the model; skips where SPIN or a compiler is missing."""
    for tool, package in (("spin", "spin"), ("gcc", "gcc")):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: apt-get install {package}")
    _run(folder, "spin", "-a", *defines, str(MODEL))
    _run(folder, "gcc", "-O2", "-DSAFETY", "-DVECTORSZ=2048", "-o", "explorer", "pan.c")
    out = _run(folder, "./explorer", "-m1000000", "-w22")
    assert "max search depth too small" not in out
    errors = re.search(r"errors: (\d+)", out)
    states = re.search(r"(\d+) states, stored", out)
    assert errors and states, out
    why = re.search(r"^pan:1: (.+)$", out, re.MULTILINE)
    return Verdict(int(errors[1]), int(states[1]), why[1] if why else "")


def _run(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout
