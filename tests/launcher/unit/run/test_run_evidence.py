"""What a rank's error stream says about its end (protocol.md, Failures)."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.run.base.evidence import (
    TAIL_BYTES,
    Watcher,
    last_traceback,
    looks_like_lost_peer,
    summary,
)

PLAIN = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("bad batch")
ValueError: bad batch
"""


def stderr_of(script: str) -> bytes:
    """What a real interpreter writes."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    return done.stderr


def watched(*blocks: tuple[float, bytes]) -> Watcher:
    watcher = Watcher()
    for at_s, block in blocks:
        watcher.feed(block, at_s, True)
    return watcher


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("raise ValueError('bad batch')", "ValueError: bad batch"),
        ("raise ValueError", "ValueError"),
        ("try:\n 1/0\nexcept Exception as e:\n raise KeyError('x') from e", "KeyError: 'x'"),
        ("try:\n 1/0\nexcept Exception:\n raise KeyError('x')", "KeyError: 'x'"),
        ("raise ValueError('first\\nsecond')", "ValueError: first"),
        (
            "import subprocess\nsubprocess.run(['false'], check=True)",
            "subprocess.CalledProcessError",
        ),
        (
            "def f():\n class E(Exception): pass\n raise E('deep')\nf()",
            "f.<locals>.E: deep",
        ),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("def f(:", ""),  # a syntax error of the program itself has no traceback header
        ("raise ValueError('é中')", "ValueError: é中"),
        ("import sys; sys.exit('no')", ""),
    ],
    ids=range(11),
)
def test_the_exception_of_real_tracebacks(script: str, expected: str) -> None:
    found = summary(stderr_of(script)).removeprefix("__main__.")  # written up to Python 3.10
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")
def test_an_exception_group_is_named_by_one_of_its_exceptions() -> None:
    text = stderr_of("raise ExceptionGroup('many', [ValueError('a'), KeyError('b')])")
    assert summary(text) in (
        "ExceptionGroup: many (2 sub-exceptions)",
        "KeyError: 'b'",
        "ValueError: a",
    )
    assert last_traceback(text)


@pytest.mark.parametrize("prefix", [b"[rank1]: ", b"[default0]:", b"0: "])
def test_a_prefix_of_every_line_is_no_part_of_it(prefix: bytes) -> None:
    text = b"".join(prefix + line for line in PLAIN.splitlines(keepends=True))
    assert summary(b"noise\n" + text + b"more noise\n") == "ValueError: bad batch"


@pytest.mark.parametrize(
    "line",
    [
        "terminate called after throwing an instance of 'c10::Error'",
        "Fatal Python error: Segmentation fault",
        "train: kernel.cpp:10: int f(int): Assertion `x > 0' failed.",
        "CUDA error: device-side assert triggered",
        "[host:17] *** Process received signal ***",
    ],
)
def test_an_abort_without_a_traceback_is_evidence(line: str) -> None:
    watcher = watched((1.0, b"epoch 1\n"), (2.0, line.encode() + b"\n"))
    evidence = watcher.evidence()
    assert evidence is not None
    assert (evidence.at_s, evidence.summary) == (2.0, line)


def test_ordinary_lines_are_no_evidence() -> None:
    assert watched((1.0, b"WARNING: error rate 0.1\n"), (2.0, b"Error: none\n")).evidence() is None


@given(st.lists(st.integers(1, len(PLAIN) - 1), max_size=6))
def test_a_traceback_in_pieces_of_lines_is_one(cuts: list[int]) -> None:
    lines = PLAIN.splitlines(keepends=True)
    watcher = Watcher()
    at_s, block = 10.0, b""
    for number, line in enumerate(lines):
        block += line
        if number in cuts or number == len(lines) - 1:
            watcher.feed(block, at_s, True)
            at_s, block = at_s + 0.01, b""
    evidence = watcher.evidence()
    assert evidence is not None
    assert (evidence.at_s, evidence.summary, evidence.is_open) == (
        10.0,
        "ValueError: bad batch",
        True,
    )


def test_the_moment_is_that_of_the_last_block_of_errors() -> None:
    benign = watched((1.0, PLAIN), (2.0, b"goes on\n"), (500.0, PLAIN.replace(b"batch", b"end")))
    evidence = benign.evidence()
    assert evidence is not None
    assert (evidence.at_s, evidence.summary) == (500.0, "ValueError: bad end")
    chained = watched((500.0, PLAIN), (501.0, b"\nDuring handling of ...\n\n" + PLAIN))
    evidence = chained.evidence()
    assert evidence is not None
    assert evidence.at_s == 500.0


@pytest.mark.parametrize(
    ("after", "error_stream", "is_open"),
    [
        (b"", True, True),
        (b"  File 'x', line 2\nValueError: x\n", True, True),
        (b"step 2 of 10\n", True, False),
        (b"step 2\n", False, False),
    ],
)
def test_evidence_is_open_until_something_else_is_written(
    after: bytes, error_stream: bool, is_open: bool
) -> None:
    watcher = watched((1.0, PLAIN))
    if after:
        watcher.feed(after, 2.0, error_stream)
    evidence = watcher.evidence()
    assert evidence is not None
    assert evidence.is_open == is_open


@given(st.lists(st.binary(max_size=40_000), max_size=5))
def test_the_tail_is_bounded_and_any_bytes_are_taken(blocks: list[bytes]) -> None:
    watcher = watched(*((float(i), block) for i, block in enumerate(blocks)))
    assert watcher.tail == b"".join(blocks)[-TAIL_BYTES:]
    summary(watcher.tail)
    last_traceback(watcher.tail)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer", True),
        ("torch.distributed.DistBackendError: NCCL error: remote process exited or there was a "
         "network error", True),
        ("PeerError: lost algo-2", True),
        ("ValueError: bad batch", False),
        ("RuntimeError: CUDA out of memory", False),
        ("", False),
    ],
)  # fmt: skip
def test_victims_of_another_rank_are_known(text: str, lost: bool) -> None:
    assert looks_like_lost_peer(text) == lost


def test_without_a_traceback_the_last_lines_are_shown() -> None:
    text = "\n".join(f"line {i}" for i in range(100)).encode()
    assert last_traceback(text).splitlines() == [f"line {i}" for i in range(80, 100)]
    assert last_traceback(b"before\n" + PLAIN) == PLAIN.decode().rstrip("\n")


def test_a_hundred_megabytes_are_watched_in_seconds() -> None:
    block = (b"epoch 1 loss 0.123 Error none\n" * 2200)[: 1 << 16]
    watcher = Watcher()
    began = time.process_time()
    for number in range(1600):
        watcher.feed(block, float(number), True)
    assert time.process_time() - began < 10
