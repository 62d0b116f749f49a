"""What a person sees of a run: streams, progress, tables, and the verdict in exit codes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from muster.local.hosts import HostStream
from muster.local.record.summary import (
    HostEnd,
    RunEnd,
    compose,
    disagreement,
    exit_code,
    last_line,
    leader_first,
    settled,
    table,
    verdict,
    write,
)
from muster.local.session import SessionEnd
from muster.local.show.outlet import FULL_BYTES, Outlet
from muster.local.show.progress import Progress, Tail
from muster.local.show.pump import HostPump
from muster.local.show.screen import Screen, describe, fitting, ranks_in_words
from muster.types.shown import BLOCK_MARK

MARK = BLOCK_MARK.encode()
OUT_1, ERR_1 = HostStream(10, 0, False), HostStream(11, 0, True)
OUT_2, ERR_2 = HostStream(12, 1, False), HostStream(13, 1, True)


class Written:
    """Collects what a pump writes, as (errors, data)."""

    def __init__(self) -> None:
        self.pieces: list[tuple[bool, bytes]] = []
        self.pump = HostPump(lambda errors, data: self.pieces.append((errors, data)))

    def text(self, errors: bool) -> bytes:
        return b"".join(data for to, data in self.pieces if to == errors)


@pytest.fixture
def written() -> Written:
    return Written()


def test_lines_of_two_hosts_never_mix(written: Written) -> None:
    written.pump.feed(OUT_1, b"one half, ")
    written.pump.feed(OUT_2, b"whole\nrest")
    written.pump.feed(OUT_1, b"other half\n")
    written.pump.end(OUT_2)
    assert written.text(False) == b"whole\none half, other half\nrest"


def test_bytes_pass_unchanged(written: Written) -> None:
    data = bytes(byte for byte in range(256) if byte != 13) * 3 + b" end\r\n\xff\n"
    for start in range(0, len(data), 7):
        written.pump.feed(OUT_1, data[start : start + 7])
    written.pump.end(OUT_1)
    assert written.text(False) == data


def states(written: Written) -> list[bytes]:
    return written.pump.states(False)


def test_a_line_shows_how_it_stands_and_passes_as_it_stands_at_its_end(written: Written) -> None:
    """As a progress bar writes it, however its bytes arrive."""
    data = b"[algo-1:0] 10%\r[algo-1:0] 50%\r[algo-1:1] 7%\r[algo-1:0] 99%\r"
    seen = []
    for start in range(len(data)):
        written.pump.feed(OUT_1, data[start : start + 1])
        seen.append(states(written))
    assert [b"[algo-1:0] 10%"] in seen
    assert [b"[algo-1:0] 50%"] in seen
    assert seen[-1] == [b"[algo-1:0] 99%", b"[algo-1:1] 7%"]
    assert written.text(False) == b""
    written.pump.feed(OUT_1, b"[algo-1:0] 100%\n")
    assert states(written) == [b"[algo-1:1] 7%"]
    assert written.text(False) == b"[algo-1:0] 100%\n"
    written.pump.feed(OUT_1, b"[algo-1:1] \r")  # wiped
    assert states(written) == []
    written.pump.end(OUT_1)
    assert written.text(False) == b"[algo-1:0] 100%\n"


def test_where_nothing_shows_states_the_last_becomes_a_line_once_a_second(
    written: Written,
) -> None:
    began = time.monotonic()
    written.pump.feed(OUT_1, b"[algo-1:0] 10%\r[algo-1:0] 20%\r")
    written.pump.tick(began + 0.5, ())
    assert written.text(False) == b""
    for later in (2, 2.1, 2.9):
        written.pump.tick(began + later, ())
    assert written.text(False) == b"[algo-1:0] 20%\n"
    written.pump.tick(began + 20, ())  # nothing new
    assert written.text(False) == b"[algo-1:0] 20%\n"
    written.pump.feed(OUT_1, b"[algo-1:0] 30%\r")
    written.pump.tick(began + 21, (True, False))  # drawn elsewhere
    assert written.text(False) == b"[algo-1:0] 20%\n"


def test_what_looks_like_a_closing_block_passes_at_once(written: Written) -> None:
    """A test runner's lines, of a rank whose lines have no prefix."""
    written.pump.feed(ERR_1, b"FAILED tests/a.py\nmore\n")
    assert written.text(True) == b"FAILED tests/a.py\nmore\n"


def test_a_line_left_open_is_ended_before_another_stream_goes_on(written: Written) -> None:
    written.pump.feed(OUT_1, b"no end")
    written.pump.end(OUT_1)
    written.pump.feed(OUT_2, b"next\n")
    assert written.text(False) == b"no end\nnext\n"


def test_a_line_without_end_does_not_grow_for_ever(written: Written) -> None:
    written.pump.feed(OUT_1, b"x" * (2 << 20))
    assert len(written.text(False)) == 2 << 20


def test_stdout_and_stderr_stay_apart(written: Written) -> None:
    written.pump.feed(OUT_1, b"data\n")
    written.pump.feed(ERR_1, b"trouble\n")
    assert (written.text(False), written.text(True)) == (b"data\n", b"trouble\n")


def test_the_leaders_failure_block_is_the_last_thing_on_the_screen(written: Written) -> None:
    written.pump.feed(ERR_1, b"log line\n" + MARK + b"FAILED algo-1 rank 0: boom\n  Trace")
    written.pump.feed(ERR_2, b"late line of the other host\n")
    written.pump.feed(ERR_1, b"back\nexit code 1\n")
    written.pump.end(ERR_1)
    written.pump.say("the table")
    written.pump.release()
    assert written.text(True) == (
        b"log line\nlate line of the other host\nthe table\n"
        b"FAILED algo-1 rank 0: boom\n  Traceback\nexit code 1\n"
    )


def test_a_rank_that_prints_failed_is_not_taken_for_the_block(written: Written) -> None:
    written.pump.feed(ERR_1, b"[algo-1:0] FAILED to load cache\n")
    written.pump.feed(ERR_1, b"[algo-1:0] x" + MARK + b"y\n")
    written.pump.feed(OUT_1, b"FAILED on stdout\n")
    assert written.text(True) == (b"[algo-1:0] FAILED to load cache\n[algo-1:0] x" + MARK + b"y\n")
    assert written.text(False) == b"FAILED on stdout\n"


def test_a_reader_that_does_not_read_blocks_nothing() -> None:
    reader, writer = os.pipe()
    outlet = Outlet(writer)
    data = os.urandom(FULL_BYTES + 1000)
    outlet.write(data)
    assert outlet.waiting
    assert not outlet.full  # the pipe took some of it
    outlet.write(data)
    assert outlet.full
    got = b""
    while len(got) < 2 * len(data):
        got += os.read(reader, 1 << 16)
        outlet.drain()
    assert got == data + data
    assert not outlet.waiting
    os.close(reader)
    os.close(writer)


def test_a_reader_that_is_gone_ends_no_run() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    outlet = Outlet(writer)
    outlet.write(b"x" * 100)
    outlet.flush(5)
    assert not outlet.waiting
    os.close(writer)


def event(kind: str, host: str = "algo-1", rank: int | None = None, **facts: object) -> bytes:
    fields = {"t": 1.0, "time": 2.0, "host": host, "rank": rank, "kind": kind, **facts}
    return json.dumps(fields).encode() + b"\n"


def test_events_are_read_as_the_file_grows_and_odd_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail([str(path)])
    assert tail.read() == []
    path.write_bytes(event("phase", name="join")[:-5])
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(event("phase", name="join")[-5:] + b"not json\n[1]\n" + event("joined"))
    assert [found["kind"] for found in tail.read()] == ["phase", "joined"]
    tail.close()


def make_progress(*lines: bytes) -> Progress:
    progress = Progress(["algo-1", "algo-2"])
    for line in lines:
        progress.take(json.loads(line))
    return progress


def test_progress_follows_phases_and_ranks() -> None:
    progress = make_progress(
        event("phase", name="join"),
        event("phase", "algo-2", name="watch"),
        event("phase", "stranger", name="watch"),
        event("rank_started", rank=0, pid=7),
        event("rank_started", "algo-2", rank=1, pid=8),
        event("rank_ended", "algo-2", rank=1, status=-9, t=3.5),
        event("something new", rank=0),
    )
    assert progress.phases == {"algo-1": "join", "algo-2": "watch"}
    assert ranks_in_words(progress, "algo-1") == "0 running"
    assert ranks_in_words(progress, "algo-2") == "1 SIGKILL"
    assert progress.ranks[1].seconds == 2.5
    assert progress.headline() == "1 of 2 ranks running"


def test_the_counter_knows_how_many_ranks_are_to_come() -> None:
    started = [event("rank_started", rank=number, world_size=3) for number in range(3)]
    assert make_progress(*started[:2]).headline() == ""
    assert make_progress(*started).headline() == "3 of 3 ranks running"
    ended = event("rank_ended", rank=1, status=0)
    assert make_progress(*started, ended).headline() == "2 of 3 ranks running"


def test_a_drawn_line_fits_and_moves_nothing() -> None:
    assert fitting(b"0123456789", 4) == b"0123"
    assert fitting("日本語".encode(), 5) == "日本".encode()
    assert fitting(b"\x1b[1A\x1b[31mred\x1b[K\tx", 9) == b"\x1b[31mred x\x1b[0m"
    assert fitting(b"\xff", 9) == "\ufffd".encode()


def test_many_ranks_are_told_in_few_words() -> None:
    progress = make_progress(*(event("rank_started", rank=number) for number in range(20)))
    assert ranks_in_words(progress, "algo-1").endswith("7 running, and 12 more")


def test_the_first_failure_and_the_outcome_become_the_headline() -> None:
    progress = make_progress(
        event("failure", rank=2, summary="connection closed", at_s=1.0, peer_lost=True),
        event("failure", "algo-2", rank=3, summary="ValueError: x", at_s=2.0, peer_lost=False),
        event("failure", rank=0, summary="", at_s=2.5, peer_lost=False),
        event("failure", rank=1, at_s="odd", peer_lost=True),
    )
    assert progress.headline() == "failing: rank 3: ValueError: x"
    progress.take({"kind": "outcome", "host": "algo-1", "result": "Failed", "exit_code": 3})
    assert progress.headline() == "ending: failed"


def make_end(*statuses: int | None, ending: SessionEnd | None = None, error: str = "") -> RunEnd:
    hosts = tuple(HostEnd(f"algo-{place + 1}", status) for place, status in enumerate(statuses))
    return RunEnd(hosts, ending or SessionEnd(), "process", 1.5, 20.0, error)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (make_end(0, 0), 0),
        (make_end(7, 7), 7),
        (make_end(0, 3), 3),
        (make_end(-9, -9), 137),
        (make_end(None, 0), 137),
        (make_end(143, 143, ending=SessionEnd("SIGINT")), 143),
        (make_end(-9, -9, ending=SessionEnd("SIGINT", killed=True)), 143),
        (make_end(143, 143, ending=SessionEnd("timeout", timed_out=True)), 124),
        (make_end(0, 0, ending=SessionEnd("timeout", timed_out=True)), 124),
        (make_end(None, error="mount /proc"), 106),
    ],
)
def test_the_exit_code_is_the_jobs(end: RunEnd, code: int) -> None:
    assert exit_code(end) == code


def test_hosts_that_disagree_are_told_of() -> None:
    assert disagreement(make_end(0, 0)) == ""
    assert disagreement(make_end(0, 3)).endswith("algo-1 exit 0, algo-2 exit 3")


def test_the_table_names_every_host_and_rank() -> None:
    progress = make_progress(
        event("rank_started", rank=0),
        event("rank_ended", rank=0, status=0, t=3.0),
        event("rank_started", rank=1),
        event("rank_ended", rank=1, status=0, t=3.0, stopped=True),
        event("rank_started", rank=2),
        event("rank_ended", rank=2, status=-15, t=3.0, stopped=True),
    )
    assert table(make_end(0, 102), progress) == [
        "  host    rank  end               seconds",
        "  algo-1     0  exit 0                2.0",
        "  algo-1     1  exit 0, stopped       2.0",
        "  algo-1     2  SIGTERM, stopped      2.0",
        "  algo-2     -  exit 102                -",
    ]


def test_the_leaders_summary_is_kept_and_completed(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text('{"schema": 1, "outcome": {"result": "Stopped"}}')
    ending = SessionEnd("timeout", timed_out=True)
    document = compose(str(path), make_end(143, 143, ending=ending), "job")
    outcome = {"result": "Stopped", "exit_code": 124, "headline": "--timeout 20 s reached"}
    assert document["outcome"] == outcome
    local = document["local"]
    assert isinstance(local, dict)
    assert local["note"] == "timeout after 20 s"
    assert local["hosts"] == [
        {"host": "algo-1", "status": 143},
        {"host": "algo-2", "status": 143},
    ]


@pytest.mark.parametrize(("result", "code"), [("Failed", 7), ("Succeeded", 0), ("Stopped", 124)])
def test_a_job_that_had_ended_by_itself_before_the_timeout_keeps_its_end(
    tmp_path: Path, result: str, code: int
) -> None:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"outcome": {"result": result, "exit_code": code}}))
    status = 143 if result == "Stopped" else code
    ending = SessionEnd("timeout", timed_out=True)
    end = settled(str(path), make_end(status, status, ending=ending))
    assert exit_code(end) == code
    assert bool(last_line(end)) == (result == "Stopped")
    assert exit_code(settled(str(path), end._replace(ending=ending._replace(killed=True)))) == 124


@pytest.mark.parametrize("found", [None, "", "{half", "[]"])
def test_a_missing_summary_is_replaced_by_one_that_says_so(
    tmp_path: Path, found: str | None
) -> None:
    path = tmp_path / "summary.json"
    if found is not None:
        path.write_text(found)
    ending = SessionEnd("SIGINT", killed=True)
    document: dict[str, Any] = compose(str(path), make_end(-9, -9, ending=ending), "job")
    assert document["complete"] is False
    assert document["outcome"]["exit_code"] == 143
    assert "without a summary" in document["outcome"]["headline"]
    assert "killed after SIGINT" in document["outcome"]["headline"]


def test_the_leader_that_the_summary_names_comes_first(tmp_path: Path) -> None:
    path, names = tmp_path / "summary.json", ["algo-1", "algo-2", "algo-3"]
    assert leader_first(str(path), names) == names
    hosts = [{"name": "algo-1", "leader": False}, {"name": "algo-2", "leader": True}]
    path.write_text(json.dumps({"hosts": hosts}))
    assert leader_first(str(path), names) == ["algo-2", "algo-1", "algo-3"]


def test_a_summary_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "summary.json.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="symbolic links"):
        write(str(tmp_path / "summary.json"), {"schema": 1})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit 0"), (-15, "SIGTERM"), (-63, "signal 63"), (None, "unknown")]
)
def test_a_status_is_told_in_words(status: int | None, words: str) -> None:
    assert describe(status) == words


def test_one_line_says_how_it_ended() -> None:
    assert verdict(make_end(0)) == "succeeded in 1.5 s"
    assert verdict(make_end(3)) == "failed after 1.5 s, exit code 3"
    timed_out = make_end(143, ending=SessionEnd("timeout", timed_out=True))
    assert verdict(timed_out) == "stopped after 1.5 s"
    assert last_line(timed_out) == "Stopped: --timeout 20 s reached (exit code 124)"
    by_hand = make_end(143, ending=SessionEnd("SIGINT"))
    assert last_line(by_hand) == "Stopped: Ctrl-C (exit code 143)"
    assert last_line(make_end(3)) == ""


def test_off_a_terminal_a_changed_headline_is_one_plain_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    screen = Screen(False, {"TERM": "xterm"})
    progress = make_progress(event("rank_started", rank=0))
    for now in range(3):
        screen.show(progress, now)
    screen.clear()
    screen.flush()
    captured = capfd.readouterr()
    assert captured.err == "muster local: 1 of 1 ranks running\n"
    assert captured.out == ""


def test_with_json_nothing_but_the_summary_may_reach_stdout(
    capfd: pytest.CaptureFixture[str],
) -> None:
    screen = Screen(True, {})
    screen.pump.feed(OUT_1, b"metric\n")
    screen.flush()
    assert capfd.readouterr() == ("", "metric\n")
