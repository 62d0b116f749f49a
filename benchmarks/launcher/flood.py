"""A rank that writes a known flood as fast as its reader takes it; the benchmark knows the same.

`pump.py` puts this file into a job's code folder as the script, so it imports nothing
but the standard library.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import chain

OUT, ERR = 1, 2
PIECE_BYTES = 1 << 16
POOL_BYTES = 8_000_000
BEGIN = b"<the flood begins>\n"
END = b"\n<the flood has ended>"
NOTHING = "none"  # in place of a file
MIXED, ONE_LINE = "mixed lines", "one line"
_LIMIT_S = 120.0
_WORD = "abcdefghijklmnopqrstuvwxyz0123456789 =.:"


def flood(kind: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of `size` bytes in all and the stream of each: mixed lines in turns on both, one line
    on stderr, which is the one that is searched for errors. The same in every process."""
    streams = (OUT, ERR) if kind == MIXED else (ERR,)
    pool = _mixed() if kind == MIXED else _one_line()
    sent = 0
    while sent < size:
        for at in range(0, len(pool), PIECE_BYTES):
            # no piece is like another, so that one that is lost or comes twice is noticed
            number = b"%012d" % sent + (b"\n" if kind == MIXED else b"")
            piece = (number + pool[at : at + PIECE_BYTES - len(number)])[: size - sent]
            yield streams[at // PIECE_BYTES % len(streams)], piece
            sent += len(piece)
            if sent >= size:
                return


@cache
def _mixed() -> bytes:
    """What training jobs write, and what they should not: long lines, bars, bytes of any value."""
    chance = random.Random(1)
    lines: list[bytes] = [b"WARNING Error: the first error word of this log\n"]
    size = 0
    while size < POOL_BYTES:
        line = _line(chance, len(lines))
        lines.append(line)
        size += len(line)
    return b"".join(lines)[:POOL_BYTES]


def _line(chance: random.Random, number: int) -> bytes:
    kind = chance.randrange(1000)
    loss = f"{chance.random():.5f}"
    if kind < 100:
        return f"\r{number % 100:3d}%|##########          | {number}/9999 loss={loss}".encode()
    if kind < 150:
        return f"epoch {number} Verlust {loss} \u2713 \u635f\u5931 \U0001f600\n".encode()
    if kind < 160:
        return f"WARNING step {number} RuntimeError: batch skipped\n".encode()
    if kind < 162:
        return (
            b"Traceback (most recent call last):\n"
            b'  File "train.py", line %d, in step\n    loss = model(batch)\n'
            b"ValueError: not finite, tried again\n" % number
        )
    if kind < 165:
        return bytes(range(256)) + b"\n"
    if kind == 165:
        return b"x" * chance.randrange(2_000, 100_000) + b"\n"
    words = "".join(chance.choices(_WORD, k=chance.randrange(20, 120)))
    return f"2026-01-01 00:00:00,000 INFO step {number} loss {loss} {words}\n".encode()


@cache
def _one_line() -> bytes:
    return bytes(random.Random(2).choices(_WORD.encode(), k=POOL_BYTES))


def put(stream: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(stream, view) :]


def _wait_for(path: str) -> None:
    end = time.monotonic() + _LIMIT_S
    while path != NOTHING and not os.path.exists(path):
        if time.monotonic() > end:
            sys.exit(f"{path} did not come")
        time.sleep(0.002)


def main() -> None:
    """Writes the flood. What comes behind the first `--first` bytes waits for the file `--go`, the
    script's end for the file `--done`. The file `--began` gets the moment when the rest began:
    seconds of the clock that all processes of a machine share."""
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    pieces = flood(given["--kind"], int(given["--size"]))
    head = next(pieces)  # makes the pool, before the clock runs
    for stream in (OUT, ERR):
        put(stream, BEGIN)
    began_s, sent = 0.0, 0
    for stream, piece in chain((head,), pieces):
        if not began_s and sent >= int(given["--first"]):
            _wait_for(given["--go"])
            began_s = time.monotonic()
        put(stream, piece)
        sent += len(piece)
    with open(given["--began"], "w", encoding="ascii") as file:
        file.write(repr(began_s))
    for stream in (OUT, ERR):
        put(stream, END + b"\n")
    _wait_for(given["--done"])


if __name__ == "__main__":
    main()
