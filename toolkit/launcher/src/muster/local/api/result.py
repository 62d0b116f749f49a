"""What came of a run, as frozen values read from its record."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from muster.report.cells import mapping
from muster.report.host import rank_files
from muster.report.lines import Lines, tail
from muster.types.files import read_object, read_text
from muster.types.run_files import LOGS, METRICS, SUMMARY
from muster.types.values import NamedTuple

LAUNCHER_BYTES, LAUNCHER_LINES = 8192, 20  # of what is shown


class RankResult(NamedTuple):
    """One rank of a run. `exit_code`: minus a signal where that ended it, None when unknown."""

    number: int
    host: str
    exit_code: int | None
    folder: str  # its host's in the record

    @property
    def stdout(self) -> str:
        """All that it wrote, read from the record; "" where that is gone."""
        return read_text(self.path("out"), -1)

    @property
    def stderr(self) -> str:
        return read_text(self.path("err"), -1)

    def path(self, kind: str) -> str:
        """The file of its output, `out` or `err`."""
        return os.path.join(self.folder, LOGS, f"rank-{self.number}.{kind}")


class Failure(NamedTuple):
    """Why a run failed or was stopped. `rank` and `host`: the first that failed, None and "" where
    no rank did. `text`: the last lines that it wrote, or else the launcher."""

    headline: str
    fix: str = ""
    rank: int | None = None
    host: str = ""
    text: str = ""

    def __str__(self) -> str:
        fix = f"Fix: {self.fix}" if self.fix else ""
        return "\n".join(filter(None, [self.headline, self.text, fix]))


class Result(NamedTuple):
    """The end of a run. `exit_code` is the job's, as `muster local` would exit with it. `folder`:
    the run folder, "" for a run that was stopped before it had one. `summary`: its summary.json."""

    exit_code: int
    folder: str
    summary: Mapping[str, Any]
    ranks: tuple[RankResult, ...]

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0

    @property
    def failure(self) -> Failure | None:
        """None of a run that succeeded."""
        if self.succeeded:
            return None
        outcome = mapping(self.summary.get("outcome"))
        first = mapping(outcome.get("first"))
        headline = str(outcome.get("headline") or f"the run ended with exit code {self.exit_code}")
        if outcome.get("result") == "Stopped":
            headline = f"stopped: {headline}"
        rank = first.get("rank")
        no_rank = outcome.get("result") == "Failed" and not first
        said = self._said_by_launchers() if no_rank else ""
        return Failure(
            headline=headline,
            fix=str(first.get("fix") or outcome.get("fix") or ""),
            rank=rank if isinstance(rank, int) else None,
            host=str(first.get("host") or ""),
            text=str(first.get("tail") or "") or said,
        )

    def _said_by_launchers(self) -> str:
        """The last lines of the first host whose torchrun or mpirun wrote any."""
        for log in sorted(glob.glob(f"{glob.escape(self.folder)}/*/{LOGS}/launcher.log")):
            with suppress(OSError):  # of another user
                if lines := tail(log, LAUNCHER_BYTES).splitlines():
                    return "\n".join(lines[-LAUNCHER_LINES:])
        return ""

    @property
    def metrics(self) -> tuple[Mapping[str, Any], ...]:
        """What each rank gave to `muster.metrics`, rank by rank in its order: `step`, `samples`,
        `time` and `values` as far as there are, `rank`, `host`. What was cut off is left out."""
        return tuple(one for rank in self.ranks for one in _metrics(rank))

    def rank(self, number: int) -> RankResult:
        """Raises IndexError where the run has no such rank."""
        for rank in self.ranks:
            if rank.number == number:
                return rank
        have = ", ".join(str(rank.number) for rank in self.ranks) or "none"
        raise IndexError(f"the run has no rank {number}; its ranks: {have}")

    def __repr__(self) -> str:
        end = "succeeded" if self.succeeded else f"exit code {self.exit_code}"
        return f"<Result: {end}, {len(self.ranks)} ranks, {self.folder or 'no record'}>"

    def __str__(self) -> str:
        return "\n".join(filter(None, [repr(self), str(self.failure or "")]))


def read_result(exit_code: int, folder: str) -> Result:
    """The end of the run whose record lies there."""
    summary = read_object(os.path.join(folder, SUMMARY)) if folder else {}
    ended = [one for one in summary.get("ranks") or () if isinstance(one, dict)]
    known = {one.get("rank"): one for one in ended}
    ranks = {
        number: RankResult(number, host, None, os.path.join(folder, host))
        for number, host in _with_output(folder)
    }
    for number, one in known.items():
        if isinstance(number, int):
            host = str(one.get("host") or "")
            ranks[number] = RankResult(number, host, one.get("status"), os.path.join(folder, host))
    return Result(exit_code, folder, summary, tuple(ranks[number] for number in sorted(ranks)))


def _with_output(folder: str) -> list[tuple[int, str]]:
    """(rank, host) of all that wrote something, also where no leader lived to list its ranks."""
    hosts = sorted(os.listdir(folder)) if os.path.isdir(folder) else ()
    return [(rank, host) for host in hosts
            for _, rank, _ in rank_files(os.path.join(folder, host, LOGS))]  # fmt: skip


def _metrics(rank: RankResult) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    lines = Lines(os.path.join(rank.folder, METRICS, f"rank-{rank.number}.jsonl"))
    with suppress(OSError):
        for document in chain.from_iterable(lines.pieces()):
            values = {name: _number(one) for name, one in mapping(document.get("values")).items()}
            found.append({**document, "values": values, "rank": rank.number, "host": rank.host})
    return found


def _number(value: object) -> object:
    """NaN and the infinities are texts in the file."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
