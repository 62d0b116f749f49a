"""Sizes that bench --tune finds, as values: what is chosen from times, what of a file is taken."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "toolkit" / "parallel" / "src"))

from muster_collectives.runtime import machine, machine_file
from muster_collectives.runtime.tuning import Tuning
from muster_collectives.tools.bench.tune import MARGIN, crossover, fastest, threshold, write

DOCUMENT = {"version": 1, "processors": 8, "machine": "x86_64", "tuning": {"chunk_bytes": 65536}}
BASE = Tuning()


def read(document: Any, processors: int = 8, kind: str = "x86_64") -> tuple[Tuning, str]:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    tuning, notes = machine_file.read(content, "FILE", BASE, processors, kind)
    return tuning, "; ".join(notes)


def tuned(**sizes: Any) -> dict[str, Any]:
    return {**DOCUMENT, "tuning": sizes}


def test_the_small_algorithm_counts_up_to_where_it_is_first_clearly_slower() -> None:
    large = dict.fromkeys((4, 8, 16, 32), 2.0)
    assert crossover({4: 1.0, 8: 1.0, 16: 3.0, 32: 1.0}, large) == 8
    assert crossover({4: 3.0}, {4: 2.0}) == 0
    assert crossover(large, large) == 32
    just, more = 2.0 * MARGIN * 0.999, 2.0 * MARGIN * 1.001
    assert crossover({4: just}, {4: 2.0}) == 4 and crossover({4: more}, {4: 2.0}) == 0


def test_the_large_algorithm_counts_from_where_it_is_clearly_faster_ever_after() -> None:
    assert threshold({4: 1.0, 8: 2.0, 16: 4.0}, {4: 2.0, 8: 1.0, 16: 1.0}, 99) == 8
    assert threshold({4: 4.0, 8: 1.0, 16: 4.0}, {4: 1.0, 8: 2.0, 16: 1.0}, 99) == 16
    assert threshold({4: 1.0}, {4: 1.0}, 99) == 99


def test_the_usual_piece_stays_unless_another_is_clearly_faster() -> None:
    assert fastest({64: 1.0, 128: 1.01}, 128) == 128
    assert fastest({64: 1.0, 128: 1.5}, 128) == 64
    assert fastest({64: 1.0, 256: 1.0}, 128) == 64  # the default was not measured


def test_a_file_counts_for_its_machine_and_names_what_it_does_not_know() -> None:
    assert read(DOCUMENT) == (Tuning(chunk_bytes=65536), "")
    tuning, note = read(tuned(chunk_bytes=65536, colour=1))
    assert tuning.chunk_bytes == 65536 and "FILE" in note and "colour" in note
    for other in ({"processors": 2}, {"kind": "aarch64"}):
        tuning, note = read(DOCUMENT, **other)  # type: ignore[arg-type]
        assert tuning == BASE and "FILE: the tuned sizes are for 8 processors of x86_64" in note


@pytest.mark.parametrize(
    ("content", "word"),
    [
        pytest.param(b"{", "Expecting", id="cut off"),
        pytest.param(b"[]", "none that bench --tune wrote", id="another's"),
        pytest.param(b'{"\xff', "utf-8", id="no text"),
        pytest.param(b"[" * 60_000, "recursion", id="deep"),
        pytest.param(b" " * 70_000, "65536 bytes", id="large"),
        pytest.param({**DOCUMENT, "version": 2}, "version 2", id="newer"),
        pytest.param({**DOCUMENT, "tuning": 1}, "none that bench --tune wrote", id="no sizes"),
        pytest.param(tuned(chunk_bytes="1M"), 'chunk_bytes is "1M"', id="words"),
        pytest.param(tuned(chunk_bytes=65536.5), "chunk_bytes is 65536.5", id="half a byte"),
        pytest.param(tuned(chunk_bytes=True), "chunk_bytes is true", id="a switch"),
        pytest.param(tuned(checked=1), "checked is 1", id="no switch"),
        pytest.param(tuned(one_shot_bytes=-1), "COLLECTIVES_ONE_SHOT_BYTES=-1", id="negative"),
        pytest.param(tuned(slot_bytes=1 << 50), "out of bounds", id="too large"),
        pytest.param(tuned(slot_bytes=5000), "multiple of 4096", id="uneven"),
        pytest.param(tuned(chunk_bytes=2 << 20), "does not fit", id="piece beyond slot"),
        pytest.param(tuned(spin_s=9), "COLLECTIVES_SPIN_US", id="spin"),
        pytest.param(tuned(wire=7), "Wire", id="no such wire"),
    ],
)
def test_a_file_that_cannot_be_used_is_ignored_and_said(
    tmp_path: Path, content: Any, word: str
) -> None:
    path = tmp_path / "collectives.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    document = {} if isinstance(content, bytes) else content
    if document.get("machine"):
        path.write_text(json.dumps({**document, "machine": platform.machine()}))
    tuning, [note] = machine_file.apply(str(path), BASE, 8)
    assert tuning == BASE
    assert note.startswith(f"{path} cannot be used and is ignored: ") and word in note, note
    assert "\n" not in note


def test_no_file_is_nothing_to_say_and_a_folder_in_its_place_is(tmp_path: Path) -> None:
    assert machine_file.apply(str(tmp_path / "none"), BASE, 8) == (BASE, ())
    assert machine_file.apply(str(tmp_path / "none" / "below"), BASE, 8) == (BASE, ())
    _, [note] = machine_file.apply(str(tmp_path), BASE, 8)
    assert "cannot be read" in note


def test_what_is_written_is_what_is_read_and_nothing_half_stays(tmp_path: Path) -> None:
    path = tmp_path / "config" / "muster" / "collectives.json"
    write(str(path), {"chunk_bytes": 131072, "direct_bytes": 1 << 62})
    tuning, notes = machine_file.apply(str(path), BASE, machine.processors())
    assert (tuning.chunk_bytes, tuning.direct_bytes, notes) == (131072, 1 << 62, ())
    assert [each.name for each in path.parent.iterdir()] == ["collectives.json"]
