"""What the hosts do right now, read from their events.jsonl as they grow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence

MAX_READ_BYTES = 1 << 20


class Tail:
    """What is new in the hosts' files of events, those of one host in their order."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._files = [_File(path) for path in paths]

    def read(self) -> list[dict[str, object]]:
        """All events since the last call."""
        return [event for file in self._files for event in file.read()]

    def close(self) -> None:
        for file in self._files:
            file.close()


class _File:
    """New whole lines of a growing file, as JSON objects; what is not one is passed over."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._partial = b""

    def read(self) -> list[dict[str, object]]:
        """All events since the last call."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return []
        events: list[dict[str, object]] = []
        while data := os.read(self._fd, MAX_READ_BYTES):
            *lines, self._partial = (self._partial + data).split(b"\n")
            events += filter(None, map(_event, lines))
        return events

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _event(line: bytes) -> dict[str, object] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


class RankProgress:
    """One rank: its host, and its exit status once it ended (minus a signal)."""

    def __init__(self, number: int, host: str, started: float) -> None:
        self.number = number
        self.host = host
        self.started = started
        self.ended: float | None = None
        self.status: int | None = None
        self.stopped = False  # after a signal of muster's

    @property
    def seconds(self) -> float | None:
        """How long it ran; None while it runs."""
        return None if self.ended is None else self.ended - self.started


class Progress:
    """Phases and ranks of all hosts, and how the job ended, as far as the events tell."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.phases = dict.fromkeys(hosts, "start")
        self.ranks: dict[int, RankProgress] = {}
        self.planned = 0  # ranks of all hosts
        self.failure = ""
        self._failure_order = (True, float("inf"))
        self.outcome: Mapping[str, object] | None = None

    def take(self, event: Mapping[str, object]) -> None:
        """One event; unknown kinds and hosts are passed over."""
        kind, host, rank = event.get("kind"), event.get("host"), event.get("rank")
        if kind == "outcome":
            self.outcome = self.outcome or event
        elif kind == "failure":
            self._take_failure(event)
        if not isinstance(host, str) or host not in self.phases:
            return
        if kind == "phase":
            self.phases[host] = str(event.get("name", ""))
        elif kind in ("rank_started", "rank_ended") and isinstance(rank, int):
            self._take_rank(kind == "rank_ended", rank, host, event)

    def _take_failure(self, event: Mapping[str, object]) -> None:
        """Shows the earliest of those that are not of a lost peer, if there is one."""
        at, lost = event.get("at_s"), event.get("peer_lost") is True
        order = (lost, float(at) if isinstance(at, (int, float)) else 0.0)
        if order < self._failure_order:
            self._failure_order = order
            self.failure = f"rank {event.get('rank')}: {event.get('summary') or 'failed'}"

    def _take_rank(self, ended: bool, number: int, host: str, event: Mapping[str, object]) -> None:
        time = event.get("t")
        at = float(time) if isinstance(time, (int, float)) else 0.0
        rank = self.ranks.setdefault(number, RankProgress(number, host, at))
        size = event.get("world_size")
        self.planned = max(self.planned, size if isinstance(size, int) else 0, len(self.ranks))
        if not ended:
            return
        rank.ended = at
        status = event.get("status")
        rank.status = status if isinstance(status, int) else None
        rank.stopped = event.get("stopped") is True

    def ranks_of(self, host: str) -> list[RankProgress]:
        """By number."""
        return sorted((r for r in self.ranks.values() if r.host == host), key=lambda r: r.number)

    def headline(self) -> str:
        """Where the whole cluster is, in a few words; "" before all ranks run, and after."""
        if self.outcome is not None:
            return f"ending: {str(self.outcome.get('result', '')).lower()}"
        if self.failure:
            return f"failing: {self.failure}"
        running = sum(rank.ended is None for rank in self.ranks.values())
        all_began = self.ranks and len(self.ranks) >= self.planned
        return f"{running} of {self.planned} ranks running" if all_began and running else ""
