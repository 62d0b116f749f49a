"""How long ranks waited for each other, as muster's collectives left it in the record at their end.

Scripts can write there too: what is read is bounded, and no link is followed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

from muster.types.files import open_plain

READ_S = 0.2
MOST_FILES = 4096
FILE_BYTES = 1 << 20
ALL_BYTES = 16 << 20


def waits_in(folder: str, since_s: float) -> dict[int, float]:
    """Rank of the world -> seconds that it waited in collectives of all groups."""
    found: dict[int, float] = {}
    for summary in _summaries(folder, since_s, time.monotonic() + READ_S):
        try:
            rank, waited = summary["global_ranks"][summary["rank"]], summary["wait_s"]
        except (KeyError, IndexError, TypeError):
            continue
        if type(rank) is int and type(waited) is float and 0 <= waited < 1e12:
            found[rank] = found.get(rank, 0.0) + waited
    return found


def _summaries(folder: str, since_s: float, until: float) -> Iterator[Any]:
    left = ALL_BYTES
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= MOST_FILES or left <= 0 or time.monotonic() > until:
                    return
                if entry.name.startswith("collectives-"):
                    text = _text(entry.path, since_s)
                    left -= len(text)
                    yield _parsed(text)
    except OSError:
        return


def _text(path: str, since_s: float) -> bytes:
    """The text of a plain file of a sane size; b"" for another."""
    try:
        with open_plain(path) as file:
            facts = os.fstat(file.fileno())
            fits = facts.st_mtime >= since_s and facts.st_size <= FILE_BYTES
            return file.read(FILE_BYTES) if fits else b""
    except OSError:
        return b""


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
