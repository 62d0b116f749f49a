"""The table of figures: bounds are judged and shown, a ratio says how many times better ours is.
And what the figures rest on: that the flood is known, and that a soak is read, not invented."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.launcher import soak
from benchmarks.launcher.flood import BEGIN, END, ERR, MIXED, ONE_LINE, OUT, flood
from benchmarks.launcher.pump import Passage, expected
from benchmarks.table import Row, at_least, at_least_times, missed, render, to_json, under
from tests.launcher.soak import summary
from tests.launcher.soak.scenario import scenario, seeds
from tests.launcher.soak.verdict import Verdict, not_run

SIZE = 200_000


def _row(ours: float, peer: float) -> Row:
    bounds = (at_least_times(4, peer, ours), under(ours, 0.2, "s"))
    return Row("a job", "s", ours, {"peer": peer}, bounds)


def test_a_row_is_met_only_when_every_bound_holds() -> None:
    assert _row(0.1, 0.4).met
    assert not _row(0.1, 0.39).met
    assert not _row(0.2, 8.0).met


def test_the_table_says_which_rows_are_not_met() -> None:
    text = render([_row(0.1, 0.5), _row(0.3, 0.5)]).splitlines()
    assert text[1].endswith("  met") and "peer 0.500 s (5.0x)" in text[1]
    assert text[2].endswith("  NOT met")


def test_json_holds_every_bound_with_its_verdict() -> None:
    (row,) = to_json([_row(0.3, 1.5)])
    assert row["met"] is False
    assert row["bounds"] == [
        {"text": "at least 4x less than the peer", "met": True},
        {"text": "under 0.2 s", "met": False},
    ]


def test_of_a_rate_more_is_better() -> None:
    bounds = (at_least(300, 100, "MB/s"),)
    row = Row("a pump", "MB/s", 300.0, {"peer": 3.0}, bounds, more_is_better=True)
    assert row.met and not at_least(99, 100, "MB/s").met
    assert "peer 3.000 MB/s (100.0x)" in render([row])


def test_a_peer_without_a_figure_is_shown_in_words() -> None:
    row = Row("told", "s", 0.1, {"peer": "never"}, (under(0.1, 1, "s", "median"),))
    assert "peer never  median under 1 s  met" in render([row])
    assert to_json([row])[0]["peers"] == {"peer": "never"}


def test_what_was_not_run_is_neither_met_nor_missed() -> None:
    bad, idle = _row(0.3, 0.5), Row("a soak", "", None, {}, (under(1, 1, "s"),))
    assert missed([_row(0.1, 0.5), bad, idle]) == [bad]
    assert render([idle]).splitlines()[1].endswith("  not run")
    assert to_json([idle])[0]["met"] is None


def test_a_figure_without_a_bound_is_not_called_met() -> None:
    assert Row("a figure", "s", 1.0, {}, ()).verdict == "-"


def _soak(path: Path, text: str) -> Row:
    path.write_text(text)
    (row,) = soak.rows(path)
    return row


def test_a_soak_that_did_not_run_is_not_made_up(tmp_path: Path) -> None:
    (absent,) = soak.rows(tmp_path / "soak.json")
    assert (absent.ours, absent.verdict, absent.detail) == (
        None,
        "not run",
        "run `make soak` first",
    )
    for text in ("", "[]", "{}", '{"runs": 200, "ok": null}', "half"):
        assert _soak(tmp_path / "soak.json", text).verdict == "not run", text


def _good(seed: int) -> Verdict:
    """All of its faults landed and all held."""
    kinds = tuple(fault.kind for fault in scenario(seed).faults)
    return Verdict(seed, 1.0, (0,), kinds, (), "")


def _found(path: Path, verdicts: Sequence[Verdict], cannot_land: dict[str, str]) -> Row:
    """The row of a soak, by the file that the soak itself writes."""
    found = summary.summarize(verdicts, len(verdicts), 7, 60.0, cannot_land)
    return _soak(path, json.dumps(found))


def test_a_soak_is_met_when_all_of_enough_runs_kept_every_promise(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    good = [_good(seed) for seed in seeds(7, 300)]
    broken = good[0]._replace(wrong=("a survivor",))
    skipped = not_run(good[0].seed, "only root may")
    assert _found(file, good, {}).verdict == _found(file, good[:200], {}).verdict == "met"
    assert _found(file, good[:199], {}).verdict == "NOT met"
    assert _found(file, [broken, *good[1:200]], {}).verdict == "NOT met"
    row = _found(file, [skipped, *good[1:]], {})
    assert row.verdict == "NOT met" and "1 not run: only root may" in row.detail
    assert "299 of 300" in render([row])


def test_a_soak_in_which_a_kind_of_fault_never_landed_is_met_only_with_a_reason(
    tmp_path: Path,
) -> None:
    file = tmp_path / "soak.json"
    missed_all = [
        one._replace(landed=tuple(kind for kind in one.landed if kind != "reset"))
        for one in map(_good, seeds(7, 200))
    ]
    row = _found(file, missed_all, {})
    assert row.verdict == "NOT met" and "no reset landed" in row.detail
    row = _found(file, missed_all, {"reset": "not in this kernel"})
    assert row.verdict == "met" and "no reset can land: not in this kernel" in row.detail


def test_a_soak_of_another_commit_or_of_none_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = [_good(seed) for seed in seeds(7, 200)]
    monkeypatch.setattr(soak, "commit", lambda: "b" * 40)
    for written, told in (("a" * 40, f"the present commit is {'b' * 40}"), ("", "commit unknown")):
        monkeypatch.setattr(summary, "commit", lambda written=written: written)
        assert told in _found(tmp_path / "soak.json", good, {}).detail


def _pass(stream: int, kind: str, cut: int, change: bytes = b"") -> str:
    """The digest that a reader finds which gets the flood in pieces of `cut` bytes."""
    body = b"".join(piece for to, piece in flood(kind, SIZE) if to == stream)
    data = b"our own line\n" + BEGIN + change + body + END + b"\nour last line\n"
    passage = Passage(-1)
    for at in range(0, len(data), cut):
        passage.take(data[at : at + cut])
    assert passage.ended.is_set()
    assert passage.passed_bytes == len(change) + len(body)
    return passage.digest


def test_a_flood_is_the_same_however_it_is_cut_and_nothing_else_is() -> None:
    for kind in (MIXED, ONE_LINE):
        want = expected(kind, SIZE)
        assert want == expected(kind, SIZE) != expected(kind, SIZE - 1)
        assert {_pass(ERR, kind, cut) for cut in (11, 4096, 1 << 20)} == {want[ERR]}
        assert _pass(ERR, kind, 4096, change=b"\n") != want[ERR]
    assert _pass(OUT, MIXED, 4096) == expected(MIXED, SIZE)[OUT]


def test_a_flood_has_the_size_that_was_asked_for_and_no_piece_twice() -> None:
    for kind in (MIXED, ONE_LINE):
        pieces = [piece for _, piece in flood(kind, 20_000_000)]
        assert sum(map(len, pieces)) == 20_000_000
        assert len(set(pieces)) == len(pieces)
    assert b"\n" not in b"".join(piece for _, piece in flood(ONE_LINE, SIZE))
