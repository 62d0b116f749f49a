"""The protocols of the node, explored by the model checker SPIN: right as they are, and each error
found.

model/rounds.pml stands for csrc/group/epoch.c under weak memory, model/bells.pml for the wake-ups
of sends and receives in csrc/p2p.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

MODELS = Path(__file__).resolve().parent / "model"
ROUNDS, BELLS = MODELS / "rounds.pml", MODELS / "bells.pml"
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
    verdict = explored(tmp_path, ROUNDS, f"-DRANKS={ranks}", f"-DROUNDS={rounds}")
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
    verdict = explored(tmp_path, ROUNDS, f"-D{error}")
    assert verdict.errors == 1
    assert found in verdict.why


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("BUSY=0", id="the sender computes"),
        pytest.param("BUSY=1", id="the receiver computes", marks=pytest.mark.long),
        pytest.param("BUSY=0 DEATH", id="a sender dies", marks=pytest.mark.long),
        pytest.param("BUSY=1 DEATH", id="a sender that waits dies", marks=pytest.mark.long),
        pytest.param("BUSY=0 LEAVE", id="one closes early", marks=pytest.mark.long),
    ],
)
def test_a_message_in_a_node_arrives_or_fails_and_both_ranks_come_to_their_end(
    case: str, tmp_path: Path
) -> None:
    verdict = explored(tmp_path, BELLS, *(f"-D{word}" for word in case.split()))
    assert verdict.errors == 0, verdict.why
    assert verdict.states > 1000


@pytest.mark.parametrize(
    ("error", "found"),
    [
        pytest.param("ORDER", "invalid end state", id="the thread moves, then listens"),
        pytest.param("ENTRUST", "invalid end state", id="who posts moves, then has it listen"),
        pytest.param(
            "CALLS",
            "invalid end state",
            id="a call before the sleep is forgotten",
            marks=pytest.mark.long,
        ),
        pytest.param("NEWS", "invalid end state", id="news is read before listening is stored"),
        pytest.param("ROOM", "invalid end state", id="nobody says that there is room"),
        pytest.param(
            "SLEEPERS", "invalid end state", id="a sleeper is overlooked", marks=pytest.mark.long
        ),
        pytest.param(
            "WAITER",
            "invalid end state",
            id="a ring before the sleep is forgotten",
            marks=pytest.mark.long,
        ),
        pytest.param("CLOSE", "invalid end state", id="a close leaves the thread asleep"),
        pytest.param(
            "IDLE DEATH",
            "invalid end state",
            id="an idle thread misses a death",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "SWEEP DEATH", "invalid end state", id="nobody looks for deaths", marks=pytest.mark.long
        ),
        pytest.param("LAST DEATH", "assertion violated", id="the last bytes of the dead are lost"),
    ],
)
def test_the_model_of_messages_finds_the_error(error: str, found: str, tmp_path: Path) -> None:
    verdict = explored(tmp_path, BELLS, *(f"-D{word}" for word in f"ERROR_{error}".split()))
    assert verdict.errors == 1
    assert found in verdict.why


def explored(folder: Path, model: Path, *defines: str) -> Verdict:
    """All states of the model; skips where SPIN or a compiler is missing."""
    for tool, package in (("spin", "spin"), ("gcc", "gcc")):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: apt-get install {package}")
    _run(folder, "spin", "-a", *defines, str(model))
    # to optimise takes longer than it saves: 5 s of compilation, 1 s of the longest exploration
    _run(folder, "gcc", "-O0", "-DSAFETY", "-DVECTORSZ=2048", "-o", "explorer", "pan.c")
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
