"""Reading a record: whatever is missing, cut, newer or hostile is said, and is never an error."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from muster.report.archive import UnpackLimits, unpack
from muster.report.cells import Cleaner
from muster.report.figures import as_json, figures_of
from muster.report.host import read_host
from muster.report.read import NoRecord, read_record
from muster.report.values import RankCalls
from muster.types.masking import Masker
from tests.launcher.support.generated_records import Made, as_lines, write_record

SMALL = Made(steps=20, seconds=30)
CANARY = "s3cr3t-canary-7291"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return Path(write_record(str(tmp_path / "run"), SMALL))


def test_a_whole_record_lacks_nothing(record: Path) -> None:
    found = read_record(str(record), {})
    assert found.missing == ()
    assert [host.name for host in found.hosts] == ["algo-1", "algo-2"]
    assert found.hosts[1].metrics[3].lines == 20
    assert len(found.hosts[0].samples[0]) == 5


@pytest.mark.parametrize("depth", ["", "data/muster", "output/data/muster"])
def test_a_downloaded_archive_is_read_like_the_folder(
    record: Path, tmp_path: Path, depth: str
) -> None:
    archive = tmp_path / "output.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(record, arcname=depth or ".")
    found = read_record(str(archive), {})
    assert found == read_record(str(record), {})._replace(read_at=found.read_at)


def test_records_of_hosts_laid_side_by_side_are_one(record: Path, tmp_path: Path) -> None:
    side = tmp_path / "side"
    for host, files in (("algo-1", ["summary.json", "algo-1"]), ("algo-2", ["algo-2"])):
        place = side / host / "muster"
        place.mkdir(parents=True)
        for name in files:
            (record / name).rename(place / name)
    found = read_record(str(side), {})
    assert [host.name for host in found.hosts] == ["algo-1", "algo-2"]
    assert found.missing == ()


def test_of_a_container_that_was_started_again_the_last_start_is_shown(
    record: Path, tmp_path: Path
) -> None:
    """`train` adds events and metrics to those that lie there."""
    once = read_record(str(record), {})
    for path in (record / "algo-1").rglob("*.jsonl"):
        lines = list(map(json.loads, path.read_text().splitlines()))
        earlier = [{**one, "time": one["time"] - 900.0} for one in lines]
        for one in earlier:
            one.update({"t": one["t"] - 900.0} if "t" in one else {})
        path.write_text(as_lines([*earlier, *lines]))
    twice = read_record(str(record), {})
    assert twice.missing == ("algo-1: 1 earlier start of its container",)
    assert twice._replace(missing=(), read_at=0.0) == once._replace(read_at=0.0)


def test_calls_of_an_earlier_start_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "algo-1"
    (folder / "collectives").mkdir(parents=True)
    for at, time_s in enumerate((1_000.0, 2_000.0)):
        calls = {"rank": 0, "global_ranks": [0, 1], "wait_s": 1.0 + at, "time_s": 4.0 + at,
                 "transport": ("sockets", "native")[at]}  # fmt: skip
        path = folder / "collectives" / f"collectives-world-0-{at}.json"
        path.write_text(json.dumps(calls))
        os.utime(path, (time_s, time_s))
    starts = [{"t": at, "time": at, "kind": "phase", "name": name}
              for at, name in ((900, "stage"), (950, "watch"), (1_900, "stage"))]  # fmt: skip
    (folder / "events.jsonl").write_text(as_lines(starts))
    host, _ = read_host(str(folder), "algo-1", Cleaner(Masker(())), lambda _: True)
    assert host.calls == {0: RankCalls(2.0, 5.0)}
    assert host.backends == ("muster collectives (native)",)


def test_a_folder_of_several_runs_is_not_taken_for_one(record: Path) -> None:
    """As `muster report muster-runs`: hosts of two runs would stand on one page."""
    write_record(str(record.parent / "other"), SMALL._replace(seconds=60))
    with pytest.raises(NoRecord, match=r"has 2 runs: other, run"):
        read_record(str(record.parent), {})


def test_a_folder_of_one_host_is_shown_with_the_summary_beside_it(record: Path) -> None:
    found = read_record(str(record / "algo-2"), {})
    assert [host.name for host in found.hosts] == ["algo-2"]
    assert found.summary["outcome"]
    assert found.missing[0].startswith("no record of 1 host: algo-1")


def test_a_missing_host_is_named(record: Path) -> None:
    (record / "algo-2").rename(record.parent / "elsewhere")
    (missing,) = read_record(str(record), {}).missing
    assert "1 host: algo-2" in missing


def test_a_record_cut_at_any_byte_is_read(record: Path) -> None:
    events = record / "algo-1" / "events.jsonl"
    whole = events.read_bytes()
    for cut in range(0, len(whole), 97):
        events.write_bytes(whole[:cut])
        figures_of(read_record(str(record), {}))
    events.write_bytes(whole[:-9])
    assert "1 line of its events cannot be read" in read_record(str(record), {}).missing[0]


def test_a_killed_run_without_a_summary_says_where_it_was(record: Path) -> None:
    (record / "summary.json").unlink()
    events = record / "algo-1" / "events.jsonl"
    kept = [line for line in events.read_text().splitlines() if '"rank_ended"' not in line]
    events.write_text("\n".join(kept[:6]) + "\n")
    figures = figures_of(read_record(str(record), {}))
    assert figures.verdict.headline.startswith("How the job ended is not in the record")
    assert any("rank 0 on algo-1" in one or "phase" in one for one in figures.verdict.why)
    assert any("no summary.json" in one for one in figures.missing)


def test_what_a_host_recorded_of_the_end_counts_where_the_leaders_summary_is_not_here(
    record: Path,
) -> None:
    (record / "summary.json").unlink()
    with (record / "algo-2" / "events.jsonl").open("a") as file:
        failure = {"t": 2028, "time": 5, "kind": "failure", "rank": 3, "status": 1, "summary": "X"}
        outcome = {"t": 2029, "time": 6, "kind": "outcome", "result": "Failed", "exit_code": 1}
        file.write(as_lines([failure, outcome]))
    verdict = figures_of(read_record(str(record), {})).verdict
    assert verdict.headline == "Rank 3 on algo-2 failed: X"


def test_a_newer_schema_is_said_and_read_as_far_as_known(record: Path) -> None:
    events = record / "algo-1" / "events.jsonl"
    events.write_text(events.read_text().replace('"schema": 1', '"schema": 7'))
    summary = record / "summary.json"
    summary.write_text(summary.read_text().replace('"schema": 1', '"schema": 7'))
    found = read_record(str(record), {})
    assert sum("newer muster" in one for one in found.missing) == 2
    assert found.hosts[0].samples


GARBAGE = ("", "{", "[]", "null", '{"t": "x"}', '{"kind": 3, "t": 1}',
           '{"t": 1e999, "kind": "phase"}',
           '{"t": 1, "kind": "phase", "name": {"a": [1]}}', "[" * 100_000, "\x00\xff", "9" * 5000,
           '{"t": 1, "kind": "sample", "rank": 1, "cpu_s": [], "memory_bytes": "1"}',
           '{"t": 1, "kind": "clock", "offset_s": NaN}',
           '{"t": 1, "kind": "rank_ended", "rank": 0, "status": 99999999999}',
           '{"t": 1, "kind": "rank_ended", "rank": -5, "status": -99}',
           '{"t": 1, "kind": "stall", "verdict": null}')  # fmt: skip


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize(
    "name", ["events.jsonl", "metrics/rank-0.jsonl", "collectives/a.json", "stacks/a.txt"]
)
def test_garbage_in_any_file_is_no_error(record: Path, name: str, line: str) -> None:
    path = record / "algo-1" / name
    path.parent.mkdir(exist_ok=True)
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}{line}\n", encoding="utf-8", errors="surrogateescape")
    json.dumps(as_json(figures_of(read_record(str(record), {}))), allow_nan=False)


SUMMARIES = ("", "[]", "{}", '{"outcome": 3}', '{"outcome": {"first": []}}',
             '{"ranks": [1, {"rank": "x"}], "outcome": {"result": "Failed"}}',
             '{"hosts": {}, "phases": [], "plan": 4, "outcome": {"result": "Odd"}}')  # fmt: skip


@pytest.mark.parametrize("text", SUMMARIES)
def test_a_summary_of_any_shape_is_no_error(record: Path, text: str) -> None:
    (record / "summary.json").write_text(text)
    json.dumps(as_json(figures_of(read_record(str(record), {}))), allow_nan=False)


def test_of_a_million_events_and_a_gigabyte_of_logs_only_what_is_shown_is_kept(
    record: Path,
) -> None:
    events = record / "algo-1" / "events.jsonl"
    sample = {"schema": 1, "t": 1003.0, "time": 1.0, "host": "algo-1", "rank": 0, "kind": "sample",
              "cpu_s": 1.0, "memory_bytes": 5}  # fmt: skip
    with events.open("a") as file:
        file.write(as_lines([sample]) * 30_000)
        file.write(as_lines([{**sample, "kind": "missing", "text": "x"}]) * 30_000)
    log = record / "algo-1" / "logs" / "rank-0.out"
    with log.open("wb") as file:
        file.truncate(1 << 30)  # a hole: it takes no room
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last line\n")
    found = read_record(str(record), {})
    assert found.hosts[0].tails[0].endswith("the last line")
    assert len(found.hosts[0].samples[0]) < 3000
    assert len(found.hosts[0].events) <= 20_000
    assert any("left out" in one for one in found.missing)


def test_a_link_or_a_fifo_in_a_record_is_not_opened(record: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of somebody else\n")
    log = record / "algo-1" / "logs" / "rank-0.out"
    log.unlink()
    log.symlink_to(secret)
    metrics = record / "algo-1" / "metrics" / "rank-1.jsonl"
    metrics.unlink()
    os.mkfifo(metrics)
    found = read_record(str(record), {})
    assert 0 not in found.hosts[0].tails
    assert 1 not in found.hosts[0].metrics


@pytest.mark.parametrize(
    "given",
    [{"db_password": CANARY}, {"db_password": f'"{CANARY}"'},
     {"data": f'{{"db_password": "{CANARY}"}}'}],
)  # fmt: skip
def test_secrets_are_masked_wherever_they_stand(record: Path, given: object) -> None:
    """Values of hyperparameters are JSON, or a text that is none."""
    hyperparameters = record / "algo-1" / "opt" / "ml" / "input" / "config" / "hyperparameters.json"
    hyperparameters.parent.mkdir(parents=True)
    hyperparameters.write_text(json.dumps(given))
    for path in (record / "algo-1" / "logs" / "rank-0.out", record / "algo-2" / "stacks" / "a.txt"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"it is {CANARY} or AKIAABCDEFGHIJKLMNOP or https://u:pw123456@host/x")
    events = record / "algo-1" / "events.jsonl"
    with events.open("a") as file:
        file.write(as_lines([{"t": 1010, "kind": "stall", "verdict": f"x {CANARY}"}]))
    text = json.dumps(as_json(figures_of(read_record(str(record), {}))))
    assert "it is ***" in text
    for one in (CANARY, "AKIAABCDEFGHIJKLMNOP", "pw123456"):
        assert one not in text


def test_what_is_no_record_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoRecord, match="has no record of muster"):
        read_record(str(tmp_path), {})
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    with pytest.raises(NoRecord, match="damaged"):
        read_record(str(tmp_path / "x.tar.gz"), {})
    with pytest.raises(FileNotFoundError):
        read_record(str(tmp_path / "absent"), {})


def test_a_cut_archive_shows_what_came_before(record: Path, tmp_path: Path) -> None:
    archive = tmp_path / "output.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(record, arcname="muster")
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) * 3 // 4])
    found = read_record(str(archive), {})
    assert "is damaged" in found.missing[0]
    assert found.hosts
    cuts = range(len(whole) // 2, len(whole) - 20, max(1, len(whole) // 200))
    for at, cut in enumerate(cuts):  # within a file, its padding, or the header of the next one
        archive.write_bytes(whole[:cut])
        (said,) = unpack(str(archive), str(tmp_path / str(at)))
        assert "is damaged" in said


def test_nothing_leaves_the_folder_that_an_archive_is_unpacked_to(tmp_path: Path) -> None:
    archive, target = tmp_path / "x.tar", tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    plain = tarfile.REGTYPE
    members = (
        ("../../out/events.jsonl", plain, ""),
        ("/abs/events.jsonl", plain, ""),
        ("algo-1", tarfile.SYMTYPE, str(tmp_path)),
        ("algo-1/events.jsonl", plain, ""),
        ("algo-2/events.jsonl", tarfile.LNKTYPE, "/etc/passwd"),
        ("model.bin", plain, ""),
        ("algo-3/logs/rank-0.out", tarfile.FIFOTYPE, ""),
    )
    with tarfile.open(archive, "w") as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            member.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"{}\n") if member.size else None)
    assert unpack(str(archive), str(target)) == []
    written = sorted(str(one.relative_to(target)) for one in target.rglob("*") if one.is_file())
    assert written == ["abs/events.jsonl", "algo-1/events.jsonl"]
    assert not any(one.is_symlink() for one in target.rglob("*"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["deep", "x.tar"]


def test_an_archive_that_is_too_large_is_left_in_time(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for at in range(9):
            member = tarfile.TarInfo(f"algo-{at}/events.jsonl")
            member.size = 1 << 20
            tar.addfile(member, io.BytesIO(b" " * member.size))
    for limits in (
        UnpackLimits(read_bytes=3 << 20),
        UnpackLimits(files=2),
        UnpackLimits(written_bytes=2 << 20),
    ):
        target = tmp_path / str(limits)
        target.mkdir()
        assert "too large" in unpack(str(archive), str(target), limits)[0]
        assert sum(1 for one in target.rglob("*.jsonl")) <= 3
