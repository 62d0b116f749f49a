"""The protocols of the node, explored by the model checker SPIN: right as they are, and each error
found.

model/rounds.pml stands for csrc/group/epoch.c under weak memory and the wait of csrc/inter/epoch.c,
model/records.pml for the error record of csrc/group/failure.c, model/registered.pml for
csrc/shm/registered.c, model/bells.pml for the wake-ups of sends and receives in csrc/p2p, and
model/offers.pml for its large messages, which are read where they lie.
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
OFFERS, RECORDS = MODELS / "offers.pml", MODELS / "records.pml"
REGISTERED = MODELS / "registered.pml"
LIMIT_S = 110


class Verdict(NamedTuple):
    """`why`: the first error in SPIN's words, "" without one."""

    errors: int
    states: int
    why: str


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("RANKS=2 ROUNDS=5", id="two ranks"),
        pytest.param("RANKS=3 ROUNDS=3", id="three ranks"),
        pytest.param("RANKS=2 ROUNDS=4 NET", id="one moves a message on"),
        pytest.param("RANKS=3 ROUNDS=2 NET", id="beside one who waits for the same rank"),
    ],
)
def test_every_rank_reads_every_round_and_comes_to_its_end(case: str, tmp_path: Path) -> None:
    verdict = explored(tmp_path, ROUNDS, *defines(case))
    assert verdict.errors == 0, verdict.why
    assert verdict.states > 1000


@pytest.mark.parametrize(
    ("error", "found"),
    [
        pytest.param("STORE", "assertion violated", id="the flag overtakes the data"),
        pytest.param("LOAD", "assertion violated", id="data is read before the flag"),
        pytest.param("FENCE", "invalid end state", id="a sleeper is overlooked"),
        pytest.param("PARITY", "assertion violated", id="one place instead of two"),
        pytest.param("MOVE NET", "invalid end state", id="who waits moves no message on"),
        pytest.param("SLICE NET", "invalid end state", id="it sleeps without a limit"),
        pytest.param(
            "FIRST NET RANKS=3 ROUNDS=3", "invalid end state", id="it moves on for the first only"
        ),
    ],
)
def test_the_model_finds_the_error(error: str, found: str, tmp_path: Path) -> None:
    verdict = explored(tmp_path, ROUNDS, *defines(f"ERROR_{error}"))
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
    verdict = explored(tmp_path, BELLS, *defines(case))
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
    verdict = explored(tmp_path, BELLS, *defines(f"ERROR_{error}"))
    assert verdict.errors == 1
    assert found in verdict.why


@pytest.mark.parametrize(
    ("model", "case"),
    [
        pytest.param(OFFERS, "", id="offers"),
        pytest.param(OFFERS, "STILL", id="offers, the reader stands still"),
        pytest.param(OFFERS, "DEATH", id="offers, a rank dies"),
        pytest.param(OFFERS, "DEATH STILL", id="offers, a rank dies or stands still"),
        pytest.param(RECORDS, "", id="records"),
        pytest.param(RECORDS, "DEATH", id="records, two ranks die"),
        pytest.param(REGISTERED, "", id="registered"),
        pytest.param(REGISTERED, "RANKS=3", id="registered, three ranks", marks=pytest.mark.long),
    ],
)
def test_what_ranks_share_is_right_and_all_come_to_their_end(
    model: Path, case: str, tmp_path: Path
) -> None:
    verdict = explored(tmp_path, model, *defines(case))
    assert verdict.errors == 0, verdict.why
    assert verdict.states > 1000


_WRONG, _STUCK = "assertion violated", "invalid end state"


@pytest.mark.parametrize(
    ("model", "error", "found"),
    [
        (OFFERS, "TAKE", _WRONG),
        (OFFERS, "WITHDRAW", _WRONG),
        (OFFERS, "TURN", _STUCK),
        (OFFERS, "RETURN", _WRONG),
        (OFFERS, "DONE STILL", _WRONG),
        (OFFERS, "BACK STILL", _WRONG),
        (OFFERS, "ALIVE DEATH", _WRONG),
        (OFFERS, "GONE DEATH", _STUCK),
        (OFFERS, "DROP", _STUCK),
        (OFFERS, "COPY", _STUCK),
        (OFFERS, "BELL", _STUCK),
        (RECORDS, "STORE", _WRONG),
        (RECORDS, "PLACE", _WRONG),
        (RECORDS, "EARLY", _WRONG),
        (RECORDS, "OWN", _WRONG),
        (RECORDS, "WAKE", _STUCK),
        (RECORDS, "WAIT DEATH", _STUCK),
        (REGISTERED, "ASK", _WRONG),
        (REGISTERED, "END", _WRONG),
        (REGISTERED, "ALL", _WRONG),
        (REGISTERED, "PART", _WRONG),
        (REGISTERED, "PARITY", _WRONG),
        (REGISTERED, "FIRST", _WRONG),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_the_model_of_what_ranks_share_finds_the_error(
    model: Path, error: str, found: str, tmp_path: Path
) -> None:
    """Each error is told at the head of its model."""
    verdict = explored(tmp_path, model, *defines(f"ERROR_{error}"))
    assert verdict.errors == 1
    assert found in verdict.why


def defines(words: str) -> list[str]:
    return [f"-D{word}" for word in words.split()]


def explored(folder: Path, model: Path, *given: str) -> Verdict:
    """All states of the model; skips where SPIN or a compiler is missing."""
    for tool, package in (("spin", "spin"), ("gcc", "gcc")):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: apt-get install {package}")
    _run(folder, "spin", "-a", *given, str(model))
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
