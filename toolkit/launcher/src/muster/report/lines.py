"""JSON lines, read in large pieces: one call of the parser for a thousand lines costs a quarter of
a thousand calls. Lines that cannot be read are counted, never raised."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from muster.types.files import open_plain

PIECE_BYTES = 1 << 20
MOST_BYTES = 1 << 30  # of one file; what follows is left out, and said


class Lines:
    """The objects of a file. After the last: `bad`, lines that are no object; `cut`: the last one
    has no end; `beyond`: bytes that were not read. Raises OSError when iterated."""

    def __init__(self, path: str, most_bytes: int = MOST_BYTES) -> None:
        self.bad = 0
        self.cut = False
        self.beyond = 0
        self._path = path
        self._most = most_bytes

    def pieces(self) -> Iterator[list[dict[str, Any]]]:
        """Lists of objects, in the order of the file."""
        rest = b""
        read = 0
        with open_plain(self._path) as file:
            size = os.fstat(file.fileno()).st_size
            while read < self._most and (data := file.read(PIECE_BYTES)):
                read += len(data)
                cut = data.rfind(b"\n") + 1
                if not cut:
                    rest += data
                    continue
                yield self._objects(rest + data[:cut])
                rest = data[cut:]
        self.beyond = max(0, size - read)
        if rest:
            self.cut = True
            yield self._objects(rest)

    def _objects(self, data: bytes) -> list[dict[str, Any]]:
        data = data.strip(b"\n")
        try:
            found: list[Any] = json.loads(b"[" + data.replace(b"\n", b",") + b"]")
        except (ValueError, RecursionError):
            found = []
        if len(found) != data.count(b"\n") + 1:  # a bad line, or none at all
            found = [_parsed(line) for line in data.split(b"\n") if line.strip()]
        if set(map(type, found)) <= {dict}:  # one look: mostly all are
            return found
        good = [one for one in found if isinstance(one, dict)]
        self.bad += len(found) - len(good)
        return good


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def tail(path: str, most_bytes: int) -> str:
    """The end of a text file, from a line's beginning. Raises OSError."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - most_bytes))
        data = file.read(most_bytes)
    if size > most_bytes:
        data = data.partition(b"\n")[2] or data
    return data.decode("utf-8", "replace")
