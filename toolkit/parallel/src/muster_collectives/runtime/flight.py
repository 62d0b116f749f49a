"""The flight log: what a rank did last, written once: when a call of its group fails, else,
where COLLECTIVES_RECORDS is set, when the group ends."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.types import DTYPE_NAMES, Record

SCHEMA = 1
_log = logging.getLogger("muster_collectives")


class Flight:
    """Writes `DIR/flight-GROUP-rankN.json` at the first failure of a group, else at its end."""

    def __init__(self, folder: str, group: str, rank: int, size: int) -> None:
        self._folder = folder
        self._group = group
        self._rank = rank
        self._size = size
        self._is_written = False

    @property
    def path(self) -> str:
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", self._group)[:100]
        return os.path.join(self._folder, f"flight-{safe}-rank{self._rank}.json")

    def write(
        self,
        error: CollectiveError | None,
        records: Sequence[Record],
        waits_s: Callable[[], Sequence[float]] = tuple,
    ) -> None:
        """Never raises: the failure itself is what the person must see. What an earlier group of
        this name and process left of its failure stays where this one has none."""
        if self._is_written:
            return
        self._is_written = True
        if error is None and self._tells_of_failure():
            return
        try:
            waits = [round(wait, 6) for wait in waits_s()]
        except CollectiveError:
            waits = []
        document = {
            "schema": SCHEMA,
            "group": self._group,
            "rank": self._rank,
            "size": self._size,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "time": time.time(),
            "monotonic_s": time.monotonic(),
            "error": None if error is None else _error(error),
            "waits_s": waits,
            "operations": [_line(record) for record in records],
        }
        try:
            write_json(self.path, document)
        except OSError as failed:
            _log.warning("the flight log %s cannot be written: %s", self.path, failed)

    def _tells_of_failure(self) -> bool:
        try:
            with open(self.path, encoding="utf-8") as file:
                found = json.load(file)
            return bool(found["pid"] == os.getpid() and found["error"])
        except (OSError, ValueError, LookupError, TypeError):
            return False


def _error(error: CollectiveError) -> dict[str, object]:
    return {
        "kind": type(error).__name__,
        "code": error.code.name,
        "message": error.message,
        "ranks": list(error.ranks),
        "operation": error.operation,
    }


def _line(record: Record) -> dict[str, object]:
    what = record.what
    return {
        "seq": what.seq,
        "verb": what.verb.name.lower(),
        "count": what.count,
        "dtype": DTYPE_NAMES[what.dtype],
        "op": what.op.name.lower(),
        "root": what.root,
        "began_s": record.began_s,
        "took_s": record.took_s,
        "code": record.code.name,
        "path": record.path.name.lower() if record.path is not None else "",
    }


def write_json(path: str, document: Mapping[str, object]) -> None:
    """A JSON file; makes its folder where it is missing. A reader finds the whole document or none;
    a kill in the very moment of writing may leave a hidden file beside it. Raises OSError."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    partial = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")
    try:
        with open(partial, "x", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise
