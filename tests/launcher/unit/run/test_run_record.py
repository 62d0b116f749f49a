"""The record: bounded files that lose the middle and never the outcome."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.run.base import record
from muster.run.base.record import RankLog, Recorder
from tests.support.waiting import wait_until

blocks = st.lists(st.binary(max_size=40), max_size=25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@given(blocks, st.integers(1, 50))
def test_a_log_keeps_the_first_and_the_last_bytes(
    folder: Path, data: list[bytes], limit: int
) -> None:
    path = folder / "rank-0.out"
    log = RankLog(str(path), limit)
    for block in data:
        log.write(block)
        assert path.stat().st_size <= limit
    log.close()
    whole = b"".join(data)
    left_out = len(whole) - 2 * limit
    if left_out > 0:
        note = b"\n... muster left out %d bytes here ...\n" % left_out
        assert path.read_bytes() == whole[:limit] + note + whole[-limit:]
    else:
        assert path.read_bytes() == whole
    assert os.listdir(folder) == ["rank-0.out"]


def plain(text: str) -> str:
    return text


def recorder(tmp_path: Path, limit: int = 1 << 20) -> Recorder:
    return Recorder("algo-1", str(tmp_path / "algo-1"), limit, plain)


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    one.event("rank_started", 3, pid=7)
    one.event("phase", name="watch")
    one.close(5)
    lines = (tmp_path / "algo-1" / "events.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert (first["host"], first["rank"], first["kind"], first["pid"]) == (
        "algo-1",
        3,
        "rank_started",
        7,
    )
    assert (second["rank"], second["name"]) == (None, "watch")


def test_nothing_is_recorded_without_a_folder() -> None:
    one = Recorder("algo-1", "", 1, plain)
    one.event("phase")
    assert one.stream_log("rank-0.out") is None
    assert one.log_path("rank-0.out") == ""
    one.close(5)


def test_the_record_is_its_owners_alone(tmp_path: Path) -> None:
    one = Recorder("algo-1", str(tmp_path / "data" / "muster" / "algo-1"), 1 << 20, plain)
    keep = one.stream_log("rank-0.out")
    assert keep is not None
    keep(b"x")
    one.event("phase")
    one.close(5)
    muster = tmp_path / "data" / "muster"
    for folder in (muster, muster / "algo-1", muster / "algo-1" / "logs"):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.promise("S08")
def test_secrets_are_masked_in_events_and_in_kept_tails(tmp_path: Path) -> None:
    one = Recorder(
        "algo-1",
        str(tmp_path / "algo-1"),
        1 << 20,
        lambda text: text.replace("hunter2", "***"),
    )
    keep = one.stream_log("rank-0.out")
    assert keep is not None
    keep(b"the password is hunter2\n" * 3)
    one.event("missing", text="hunter2")
    one.close(5, only_tails=True)
    for path in (tmp_path / "algo-1" / "events.jsonl", tmp_path / "algo-1" / "logs" / "rank-0.out"):
        assert "hunter2" not in path.read_text()
        assert "***" in path.read_text()


def test_only_the_last_mebibyte_of_a_stream_is_kept_on_the_platform(tmp_path: Path) -> None:
    one = recorder(tmp_path, 8 << 20)
    keep = one.stream_log("rank-0.out")
    assert keep is not None
    text = b"".join(b"line %07d\n" % i for i in range(140_000))
    for start in range(0, len(text), 1 << 16):
        keep(text[start : start + (1 << 16)])
    one.close(10, only_tails=True)
    assert not one.dropped_bytes
    kept = (tmp_path / "algo-1" / "logs" / "rank-0.out").read_bytes()
    assert kept == text[-record.KEEP_TAIL_BYTES :]


@pytest.mark.promise("F50")
def test_a_disk_that_takes_nothing_is_counted_and_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = Recorder("algo-1", str(tmp_path / "file" / "algo-1"), 1 << 20, plain)
    keep = one.stream_log("rank-0.out")
    assert keep is not None
    keep(b"x" * 100)
    one.event("phase")
    one.close(5, only_tails=True)
    assert one.dropped_bytes > 100
    assert "Not a directory" in one.problem


def opened(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""  # the one of the listing itself


@pytest.mark.promise("F50")
def test_a_full_disk_leaves_no_second_file_and_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    log = RankLog(str(tmp_path / "a"), 10)
    log.write(b"x" * 30)
    (fd,) = [name for name in os.listdir("/proc/self/fd") if opened(name) == log.path]
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, int(fd))
    os.close(full)
    with pytest.raises(OSError, match="No space"):
        log.close()
    assert os.listdir(tmp_path) == ["a"]
    assert len(os.listdir("/proc/self/fd")) == before


def blocked(one: Recorder, tmp_path: Path) -> Path:
    """A log that blocks whoever writes it, as a slow disk does: a pipe that nobody reads. One
    byte of it is to be written."""
    path = tmp_path / "algo-1" / "logs" / "blocks.out"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    keep = one.stream_log(path.name)
    assert keep is not None
    keep(b"x")
    return path


def go_on(blocks: Path) -> None:
    fd = os.open(blocks, os.O_RDONLY)
    assert os.read(fd, 1) == b"x"
    os.close(fd)


def test_a_slow_disk_drops_and_counts_and_takes_up_again(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    blocks = blocked(one, tmp_path)
    keep = one.stream_log("rank-0.out")
    assert keep is not None
    block = b"x" * (1 << 16)
    for _ in range(100):
        keep(block)
    taken = record.BACKLOG_BYTES // len(block) - 1
    assert one.dropped_bytes == (100 - taken) * len(block)
    keep(block[:-1])
    one.event("outcome", result="Failed")  # has room all the same
    go_on(blocks)
    one.close(10)
    assert [event["kind"] for event in recorded(tmp_path)] == ["outcome"]
    assert (tmp_path / "algo-1" / "logs" / "rank-0.out").stat().st_size == (taken + 1) * len(
        block
    ) - 1


def test_a_disk_that_blocks_does_not_block_the_end(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    before = set(threading.enumerate())
    blocks = blocked(one, tmp_path)
    (writer,) = set(threading.enumerate()) - before
    began = time.monotonic()
    one.close(0.1, only_tails=True)
    assert time.monotonic() - began < 5
    assert writer.is_alive()
    go_on(blocks)
    writer.join(5)


def test_many_threads_keep_the_count_right(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    keeps = [one.stream_log(f"rank-{i}.out") for i in range(4)]

    def write(number: int) -> None:
        keep = keeps[number]
        assert keep is not None
        for _ in range(2000):
            keep(b"0123456789")

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    one.close(10)
    sizes = [(tmp_path / "algo-1" / "logs" / f"rank-{i}.out").stat().st_size for i in range(4)]
    assert sum(sizes) + one.dropped_bytes == 4 * 2000 * 10


def recorded(tmp_path: Path) -> list[dict[str, object]]:
    lines = (tmp_path / "algo-1" / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "EVENTS_BYTES", 64_000)
    monkeypatch.setattr(record, "SAMPLES_BYTES", 32_000)
    monkeypatch.setattr(record, "ENDS_BYTES", 8_000)


@pytest.mark.promise("F75")
def test_samples_are_thinned_for_all_ranks_alike_and_the_end_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    one = recorder(tmp_path)
    for number in range(3000):
        for rank in range(4):
            one.event("sample", rank, number=number)
    for number in range(2000):
        one.event("missing", text=str(number))
    one.event("failure", 1, summary="ValueError: x")
    one.event("outcome", result="Failed")
    one.close(10)
    found = recorded(tmp_path)
    assert (tmp_path / "algo-1" / "events.jsonl").stat().st_size <= 64_000
    samples = [event for event in found if event["kind"] == "sample"]
    kept = [[e["number"] for e in samples if e["rank"] == rank] for rank in range(4)]
    assert kept[0][:5] == list(range(5))  # all, while there is room
    assert int(str(kept[0][-1])) > 1000  # fewer and fewer later
    assert max(map(len, kept)) - min(map(len, kept)) <= 2
    assert [event["kind"] for event in found[-3:]] == ["failure", "outcome", "left_out"]
    missing = sum(event["kind"] == "missing" for event in found)
    assert missing > 100
    assert found[-1]["samples"] == 12_000 - len(samples)
    assert found[-1]["events"] == 2000 - missing
    assert one.left_out["events"] == found[-1]["events"]


def test_what_an_earlier_start_left_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    path = tmp_path / "algo-1" / "events.jsonl"
    path.parent.mkdir()
    path.write_text("x" * 60_000)
    one = recorder(tmp_path)
    one.event("phase", name="join")
    wait_until(lambda: path.stat().st_size > 60_000, 10)
    one.event("missing", text="x")
    one.event("outcome", result="Failed")
    one.close(10)
    kinds = [json.loads(line)["kind"] for line in path.read_text()[60_000:].splitlines()]
    assert kinds == ["phase", "outcome", "left_out"]


def test_a_million_events_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of them are left out before anything is made of them."""
    small(monkeypatch)
    one = recorder(tmp_path)
    began = time.process_time()
    for _ in range(1_000_000):
        one.event("sample", 0, cpu_s=1.0)
    assert time.process_time() - began < 10
    one.close(10)
    assert not one.dropped_bytes
