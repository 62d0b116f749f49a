"""What a person and a scraper read of a failure."""

from __future__ import annotations

import random

import pytest

from muster.contract.report import failure_block, failure_text
from muster.contract.wording import MAX_FAILURE_BYTES, newest
from muster.types.masking import Masker
from muster.types.outcome import Failed, RankFailure, Stopped, Succeeded

PLAIN = Masker()
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/ml/code/train.py", line 7, in <module>\n'
    "    step(batch)\n"
    "ValueError: bad batch\n"
)
RANK = RankFailure(
    host="algo-2", rank=5, status=42, at_s=1.0, summary="ValueError: bad batch",
    tail="warming up\n" + TRACEBACK, log="/run/logs/algo-2/rank-5.err",
)  # fmt: skip
FAILED = Failed(
    exit_code=42,
    headline="UserScriptError: ValueError: bad batch, algo-2 rank 5, exit code 42",
    fix="see the traceback",
    first=RANK,
    stopped_ranks=7,
)


def test_the_file_has_headline_fix_scraper_words_and_the_tail() -> None:
    assert failure_text(FAILED, PLAIN) == (
        "UserScriptError: ValueError: bad batch, algo-2 rank 5, exit code 42\n"
        "Fix: see the traceback; all that it wrote: /run/logs/algo-2/rank-5.err\n"
        "ExecuteUserScriptError: ExitCode 42\n"
        "warming up\n" + TRACEBACK
    )


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("/opt/ml/output/data/muster/logs/rank-5.err",
         "all that it wrote: /opt/ml/output/data/muster/logs/rank-5.err on algo-2"),
        ("/runs/x/algo-2/logs/rank-5.err", "all that it wrote: /runs/x/algo-2/logs/rank-5.err"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_log_is_named_with_its_host_where_there_is_one(log: str, said: str) -> None:
    outcome = FAILED._replace(first=RANK._replace(log=log))
    assert said in failure_block(outcome, PLAIN).splitlines() or not said
    assert ("all that it wrote" in failure_text(outcome, PLAIN)) == bool(said)


def test_a_long_tail_keeps_its_newest_lines() -> None:
    tail = "".join(f"line {i}\n" for i in range(1000)) + "ValueError: the end\n"
    text = failure_text(FAILED._replace(first=RANK._replace(tail=tail)), PLAIN)
    assert MAX_FAILURE_BYTES - 10 < len(text.encode()) <= MAX_FAILURE_BYTES
    assert text.endswith("line 999\nValueError: the end\n")
    assert text.splitlines()[3].startswith("line "), "whole lines only"


def test_no_input_makes_the_file_longer_than_the_platform_shows_or_bad_utf8() -> None:
    random.seed(5)
    pieces = ["a", "é", "😀", "\n", "\r", "\0", "\ud800", "\x1b[31m", "word ", "x" * 200]
    for _ in range(500):
        noise = ["".join(random.choices(pieces, k=random.randrange(300))) for _ in range(3)]
        outcome = FAILED._replace(
            headline="E: " + noise[0], fix=noise[1], first=RANK._replace(tail=noise[2])
        )
        text = failure_text(outcome, PLAIN)
        assert len(text.encode("utf-8")) <= MAX_FAILURE_BYTES
        assert text.startswith("E:") and "\nExecuteUserScriptError: ExitCode 42\n" in text
        assert not set(text) & {"\0", "\r", "\x1b"}


@pytest.mark.parametrize(
    ("text", "room", "kept"),
    [
        ("a\nbb\nccc\n", 100, "a\nbb\nccc\n"),
        ("a\nbb\nccc\n", 7, "bb\nccc\n"),
        ("a\nbb\nccc\n", 6, "ccc\n"),
        ("a\nbb\nccc\n", 0, ""),
        ("éééé\n", 6, "éé\n"),
        ("abc", 2, "bc"),
    ],
)
def test_the_newest_lines_that_fit_are_kept(text: str, room: int, kept: str) -> None:
    assert newest(text, room) == kept


def test_a_failure_without_a_rank_has_its_detail_and_no_scraper_words() -> None:
    outcome = Failed(100, "ConfigError: hosts: twice", "name it once", detail="hosts: also that")
    assert failure_text(outcome, PLAIN) == (
        "ConfigError: hosts: twice\nFix: name it once\nhosts: also that\n"
    )


def test_success_and_a_clean_stop_have_no_text() -> None:
    assert failure_text(Succeeded(), PLAIN) == failure_text(Stopped("SIGTERM"), PLAIN) == ""


@pytest.mark.promise("F04")
def test_a_stop_that_left_ranks_behind_says_so() -> None:
    headline = "StoppedError: 1 of 8 ranks did not stop in 100 s (algo-2 rank 5)"
    assert failure_text(Stopped("SIGTERM", headline), PLAIN) == headline + "\n"


@pytest.mark.promise("S08")
def test_secrets_of_every_part_are_masked() -> None:
    masker = Masker.of({"TOKEN": "canary-123"})
    first = RANK._replace(summary="E: canary-123", tail="t canary-123\n", note="canary-123")
    outcome = Failed(1, "E: canary-123", "use canary-123", "d canary-123", first)
    assert "canary" not in failure_text(outcome, masker)
    assert "canary" not in failure_block(outcome, masker)


def test_the_block_shows_who_failed_why_where_to_look_and_what_it_cost() -> None:
    assert failure_block(FAILED, PLAIN).splitlines() == [
        "FAILED algo-2 rank 5: ValueError: bad batch",
        "  Traceback (most recent call last):",
        '    File "/opt/ml/code/train.py", line 7, in <module>',
        "      step(batch)",
        "  ValueError: bad batch",
        "rank 5 ended: exit code 42",
        "Fix: see the traceback",
        "all that it wrote: /run/logs/algo-2/rank-5.err",
        "7 ranks were stopped by muster",
        "exit code 42",
    ]


def test_the_block_shows_only_the_last_traceback_and_not_all_of_it() -> None:
    long = TRACEBACK + "Traceback (most recent call last):\n" + "  frame\n" * 500 + "KeyError: 1\n"
    lines = failure_block(FAILED._replace(first=RANK._replace(tail=long)), PLAIN).splitlines()
    assert "ValueError" not in "\n".join(lines[1:-4])
    assert lines[1] == "  ... 462 lines" and "  KeyError: 1" in lines
    assert len(lines) < 60


@pytest.mark.promise("F10")
def test_a_rank_without_traceback_is_described_by_its_signal() -> None:
    first = RANK._replace(status=-11, summary="", tail="")
    block = failure_block(FAILED._replace(first=first, also_failed=1, stopped_ranks=1), PLAIN)
    assert block.startswith("FAILED algo-2 rank 5: killed by signal 11 (SIGSEGV)\n")
    assert "1 more rank failed after it\n1 rank was stopped by muster\n" in block
    assert "ExitCode -11" in failure_text(FAILED._replace(first=first), PLAIN)


def test_a_host_that_failed_before_its_ranks_is_not_counted_as_a_rank() -> None:
    block = failure_block(FAILED._replace(first=None, also_failed=1), PLAIN)
    assert "1 more host failed after it\n" in block


def test_a_signal_without_a_name_is_described_by_its_number_once() -> None:
    block = failure_block(
        FAILED._replace(first=RANK._replace(status=-40, summary="", tail="")), PLAIN
    )
    assert block.startswith("FAILED algo-2 rank 5: killed by signal 40\n")


def test_the_block_of_a_bad_request_lists_every_problem() -> None:
    block = failure_block(Failed(100, "ConfigError: a", "do b", "c: d\n  Fix: e"), PLAIN)
    assert block == "FAILED ConfigError: a\n  c: d\n    Fix: e\nFix: do b\nexit code 100"


HOSTILE = (
    "\x1b[2J\x9b31m\x85SUCCEEDED\u2028SUCCEEDED all\u2029\u202e\u2066\u200b\x7f\r\x0b\x1c\x00!"
)


def test_no_control_of_a_text_reaches_the_block_or_the_file() -> None:
    first = RANK._replace(summary=f"ValueError: {HOSTILE}", tail=f"{TRACEBACK}{HOSTILE}\n")
    outcome = FAILED._replace(first=first, headline=f"E: {HOSTILE}", fix=HOSTILE, detail=HOSTILE)
    for text in (failure_block(outcome, PLAIN), failure_text(outcome, PLAIN)):
        assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert not any(line.strip().startswith("SUCCEEDED") for line in text.split("\n"))
    assert "\x1b" not in failure_block(Stopped(HOSTILE, HOSTILE), PLAIN)


def test_no_line_of_ours_is_longer_than_a_screen_and_nothing_of_it_is_lost() -> None:
    words = " ".join(f"word{number}" for number in range(200))
    first = RANK._replace(summary=words, tail=f"Traceback (most recent call last):\n{words}\n")
    block = failure_block(FAILED._replace(first=first, fix=f"{words} end"), PLAIN)
    lines = [line for line in block.split("\n") if " ... " not in line]  # a rank's line
    assert max(map(len, lines)) <= 200
    assert " ".join(lines).split().count("word77") == 2


def test_a_long_line_of_a_rank_is_shortened_since_its_log_has_all() -> None:
    long = "ValueError: " + "y" * 5000 + " at the end"
    detail = "hosts: " + "word " * 100
    block = failure_block(
        FAILED._replace(first=RANK._replace(tail=f"{long}\n"), detail=detail), PLAIN
    )
    assert max(map(len, block.splitlines())) <= 200
    (shown,) = [line for line in block.splitlines() if "yyy" in line]
    assert shown.startswith("  ValueError: yyy")
    assert shown.endswith("yyy at the end")
    assert " ... " in shown
    assert block.count("word") == 100, "what is our own loses nothing"


def test_other_ends_are_one_line() -> None:
    assert failure_block(Succeeded(), PLAIN) == "SUCCEEDED all ranks exited 0"
    assert failure_block(Stopped("SIGTERM"), PLAIN) == "STOPPED by SIGTERM, exit code 143"
