"""Calls of muster_collectives: the last ones of groups that left them, and lives of groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from muster.report.cells import Cleaner, mapping, number, sequence, whole
from muster.report.host import files_in
from muster.report.lines import tail
from muster.report.trace.writer import TraceWriter, Track
from muster.types.values import NamedTuple

FLIGHT_BYTES = 32 << 20  # 65,536 calls with indents are 20 MB
_OF_GROUP = ("layer", "size", "transport", "why", "time_s", "wait_s", "sent_bytes",
             "received_bytes")  # fmt: skip


class CallSpan(NamedTuple):
    """A call, or the life of a group. `thread`: what it is shown on."""

    thread: str
    begins_s: float
    ends_s: float
    name: str
    args: Mapping[str, object]


class CallFiles:
    """The files of one host. `at`, `at_wall`: seconds since the trace began of a time of its
    monotonic clock, or since 1970; `ranks`: of its processes, by their numbers."""

    def __init__(
        self,
        at: Callable[[float], float],
        at_wall: Callable[[float], float | None],
        ranks: Mapping[int, int],
        clean: Cleaner,
    ) -> None:
        self._at = at
        self._at_wall = at_wall
        self._ranks = ranks
        self._clean = clean

    def write(self, folder: str, writer: TraceWriter, process: Track) -> int:
        """How many of the files could not be read."""
        spans: list[CallSpan] = []
        bad = 0
        for path in files_in(folder):
            if not path.endswith(".json"):
                continue
            try:
                document = mapping(self._clean.all(json.loads(tail(path, FLIGHT_BYTES))))
            except (OSError, ValueError, RecursionError):
                bad += 1
                continue
            spans += self._last_calls(document) if "operations" in document else []
            spans += self._life(document) if "ended_s" in document else []
        spans.sort(key=lambda one: (one.begins_s, -one.ends_s))
        for span in spans:
            track = writer.lane(process, span.thread, span.begins_s, span.ends_s)
            writer.slice(track, span.name, span.begins_s, span.ends_s, span.args)
        return bad

    def _last_calls(self, document: Mapping[str, Any]) -> Iterator[CallSpan]:
        """Of flight-GROUP-rankN.json, on the monotonic clock of the host."""
        thread = f"{self._rank(document)} calls of {document.get('group')}"
        for one in map(mapping, sequence(document["operations"])):
            began_s, took_s = number(one.get("began_s")), number(one.get("took_s"))
            if began_s is None or took_s is None or took_s < 0:
                continue
            begins_s = self._at(began_s)
            args = {key: value for key, value in one.items() if key not in ("began_s", "took_s")}
            if one.get("code") not in ("OK", None):
                args["error"] = mapping(document.get("error")).get("message")
            yield CallSpan(thread, begins_s, begins_s + took_s, str(one.get("verb")), args)

    def _life(self, document: Mapping[str, Any]) -> Iterator[CallSpan]:
        """Of a group that ended: collectives-GROUP-RANK-LIFE.json, on the wall clock; its sums."""
        began, ended = number(document.get("began_s")), number(document.get("ended_s"))
        begins_s = None if began is None else self._at_wall(began)
        if began is None or ended is None or begins_s is None or ended < began:
            return
        args = {key: document.get(key) for key in (*_OF_GROUP, "verbs", "paths")}
        name = f"group {document.get('group')}"
        yield CallSpan(
            f"{self._rank(document)} groups", begins_s, begins_s + ended - began, name, args
        )

    def _rank(self, document: Mapping[str, Any]) -> str:
        """In the world: that of its process; else what the document says."""
        rank, pid = whole(document.get("rank")), whole(document.get("pid"))
        members = sequence(document.get("global_ranks"))
        if rank is not None and 0 <= rank < len(members):
            return f"rank {whole(members[rank])}"
        if pid is not None and pid in self._ranks:
            return f"rank {self._ranks[pid]}"
        return f"rank {rank} of the group's" if rank is not None else "a rank's"
