"""Finds a record and reads it: a run folder, `output/data/muster`, a downloaded output.tar.gz, or
folders of several hosts laid side by side."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from muster.report.archive import unpack
from muster.report.cells import Cleaner, mapping, sequence, text, whole
from muster.report.host import read_host
from muster.report.values import HostRecord, RunRecord
from muster.types.files import read_object
from muster.types.masking import Masker
from muster.types.names import counted, listed
from muster.types.run_files import COLLECTIVES, EVENTS, LOGS, METRICS, SUMMARY
from muster.types.values import NamedTuple

COMMAND = "command.json"
SCHEMA = 1
DEPTH = 5  # folders below the one that was named
MOST_FOLDERS = 5_000
ALL_TAILS = 16  # ranks of which the end of the log is shown, whatever their end
_HYPERPARAMETERS = "opt/ml/input/config/hyperparameters.json"


class NoRecord(Exception):  # noqa: N818 - the caller says what is wrong with the name
    """There is nothing of a record; the text says what was looked for."""


class _Place(NamedTuple):
    """A folder of a record. `hosts`: its folders of hosts."""

    path: str
    hosts: tuple[str, ...]


class OpenRecord(NamedTuple):
    """A record whose files may still be read. `places`: folders that hold those of its
    hosts; `folders`: of each host; `clean`: for the texts in its files."""

    record: RunRecord
    places: tuple[str, ...]
    folders: Mapping[str, str]
    clean: Cleaner


def read_record(path: str, secrets: Mapping[str, object], live: bool = False) -> RunRecord:
    """The record at the path. `secrets`: names and values, of which those that look secret are
    masked wherever they stand. Raises NoRecord, and OSError where the path cannot be read."""
    with open_record(path, secrets, live) as opened:
        return opened.record


@contextmanager
def open_record(
    path: str, secrets: Mapping[str, object], live: bool = False, traces: bool = False
) -> Iterator[OpenRecord]:
    """As `read_record`. `traces`: with what a trace needs besides, the files of profilers, and
    without the metrics, which it reads line by line."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        os.listdir(path)  # a folder of another user: the error says so
        archive = os.path.join(path, "output.tar.gz")
        if next(_places(path), None) or not os.path.isfile(archive):
            yield _read(path, path, secrets, live, [], not traces)
            return
        path = archive
    with tempfile.TemporaryDirectory(prefix="muster-report-") as temp:
        missing = unpack(path, temp, traces=traces)
        yield _read(temp, path, secrets, live, missing, not traces)


def _read(
    path: str,
    said: str,
    secrets: Mapping[str, object],
    live: bool,
    missing: list[str],
    metrics: bool,
) -> OpenRecord:
    places = list(_places(path))
    if not places:
        why = f" ({missing[0].partition(':')[0]})" if missing else ""
        raise NoRecord(f"{said} has no record of muster{why}")
    hyperparameters = {
        host: {
            name: _decoded(value)
            for name, value in read_object(os.path.join(place.path, host, _HYPERPARAMETERS)).items()
        }
        for place in places
        for host in place.hosts
    }
    clean = Cleaner(Masker.of(secrets, hyperparameters))
    summaries = [read_object(os.path.join(place.path, SUMMARY)) for place in places]
    runs = [place.path for place, one in zip(places, summaries, strict=True) if _is_own(one)]
    if len(runs) > 1:
        names = listed(sorted(os.path.relpath(one, path) for one in runs), 5)
        raise NoRecord(f"{said} has {len(runs)} runs: {names}")
    summary = mapping(clean.all(max(summaries, key=_worth)))
    command = [read_object(os.path.join(place.path, COMMAND)) for place in places]
    wanted = _wanted(summary)
    hosts: dict[str, HostRecord] = {}
    folders: dict[str, str] = {}
    for place in places:
        for folder in place.hosts:
            name = clean.text(folder, 200)
            if name in hosts:
                missing.append(f"{name}: two records of it, only the first is shown")
                continue
            full = folders[name] = os.path.join(place.path, folder)
            hosts[name], lacking = read_host(full, name, clean, wanted, metrics)
            missing += lacking
    missing += _lacking(summary, hosts, live)
    record = RunRecord(
        name=clean.text(summary.get("job")) or clean.text(os.path.basename(said)),
        summary=summary,
        command=tuple(map(clean.text, _words(command[0]))),
        hosts=tuple(sorted(hosts.values(), key=_order(summary))),
        missing=tuple(dict.fromkeys(clean.text(one) for one in missing)),
        live=live,
        read_at=time.time(),
    )
    return OpenRecord(record, tuple(place.path for place in places), folders, clean)


def _decoded(value: object) -> object:
    """Of a hyperparameter, which is JSON in a text, or a text that is none; numbers keep their
    spelling."""
    try:
        found = json.loads(text(value))
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, str | list | dict) else value


def _words(command: Mapping[str, object]) -> tuple[object, ...]:
    """The command line; () where it is not known."""
    argv = sequence(command.get("argv"))
    return ("muster", command.get("command", "local"), *argv) if argv else ()


def _places(root: str) -> Iterator[_Place]:
    """Folders that hold a summary or folders of hosts, the nearest to the root on each way; the
    one above the root, where that is the folder of a host."""
    if _is_host(root):
        yield _Place(os.path.dirname(root), (os.path.basename(root),))
        return
    level, seen = [root], 0
    for _ in range(DEPTH + 1):
        below: list[str] = []
        for path in level:
            folders = _folders(path)
            hosts = tuple(one for one in folders if _is_host(os.path.join(path, one)))
            if hosts or _is_summary(os.path.join(path, SUMMARY)):
                yield _Place(path, hosts)
            else:
                below += [os.path.join(path, one) for one in folders]
        seen += len(level)
        level = below[: MOST_FOLDERS - seen]


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _is_host(path: str) -> bool:
    """Whether the folder is that of one host."""
    if os.path.isfile(os.path.join(path, EVENTS)):
        return True
    # a host whose launcher was killed before it wrote an event has perhaps logs
    return re.fullmatch(r"algo-\d+", os.path.basename(path)) is not None and any(
        os.path.isdir(os.path.join(path, one)) for one in (LOGS, METRICS, COLLECTIVES)
    )


def _is_summary(path: str) -> bool:
    return "outcome" in read_object(path)


def _is_own(summary: Mapping[str, object]) -> bool:
    """Whether the leader has written it: a run has one of these."""
    return bool(summary) and summary.get("complete") is not False


def _worth(summary: Mapping[str, object]) -> tuple[bool, int]:
    """The leader's own is worth most."""
    return _is_own(summary), len(summary)


def _wanted(summary: Mapping[str, object]) -> Callable[[int], bool]:
    """Whether the log of a rank is read: of those that failed, and of the first few."""
    first = mapping(mapping(summary.get("outcome")).get("first"))
    failed = {whole(first.get("rank"))}
    for one in map(mapping, sequence(summary.get("ranks"))):
        if whole(one.get("status")) and not one.get("stopped") and len(failed) < ALL_TAILS:
            failed.add(whole(one.get("rank")))
    return lambda rank: rank in failed or rank < ALL_TAILS


def _lacking(
    summary: Mapping[str, object], hosts: Mapping[str, HostRecord], live: bool
) -> Iterator[str]:
    """What a reader would expect of a record and does not find, in sentences."""
    if not summary and not live:
        yield "no summary.json: the leader was killed, its disk was full, or its record is not here"
    elif summary.get("complete") is False and not live:
        yield "the leader ended without a summary"
    if (whole(summary.get("schema")) or 0) > SCHEMA:
        yield "summary.json was written by a newer muster: use that version for the whole"
    known = [str(mapping(one).get("name")) for one in sequence(summary.get("hosts"))]
    if absent := [name for name in known if name not in hosts]:
        yield (f"no record of {counted(len(absent), 'host')}: {listed(absent, 5)}; "
               "lay the folders of all hosts side by side to see them")  # fmt: skip


def _order(summary: Mapping[str, object]) -> Callable[[HostRecord], tuple[int, int, str]]:
    """The leader first, then by number: algo-2 before algo-10."""
    known = [str(mapping(one).get("name")) for one in sequence(summary.get("hosts"))]
    places = {name: at for at, name in enumerate(known)}
    return lambda host: (places.get(host.name, len(places)), len(host.name), host.name)
