"""The pump: what ranks write arrives byte for byte, whatever the reader does (F58, F59)."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.run.base.evidence import Watcher
from muster.run.base.logs import LINE_BYTES, Pump, Stream

pieces = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from([b"\n", b"\r", b"\r\n", "é中\n".encode()[:2], b"x" * LINE_BYTES, b"a\nb"]),
    ),
    max_size=20,
)


def stream(prefix: bytes = b"", fd: int = -1, target: int = 1) -> Stream:
    return Stream(fd, target, prefix, None, None, lambda: None)


@given(pieces)
def test_blocks_are_whole_lines_and_nothing_is_changed(data: list[bytes]) -> None:
    one = stream()
    blocks = []
    for piece in data:
        block = one.complete(piece)
        assert len(one.partial) < LINE_BYTES
        if block:
            blocks.append(block)
            assert block[-1:] in b"\n\r" or len(block) >= LINE_BYTES
    assert b"".join(blocks) + one.partial == b"".join(data)


@given(pieces)
def test_a_prefix_stands_at_the_start_of_each_line_and_nowhere_else(data: list[bytes]) -> None:
    one = stream(b"[algo-1:0] ")
    shown = b"".join(one.prefixed(block) for block in map(one.complete, data) if block)
    shown += one.prefixed(one.partial)
    whole = b"".join(data)
    expected = b"".join(b"[algo-1:0] " + line for line in lines_of(whole))
    assert shown == expected


def lines_of(data: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


class Pipes:
    """A pump, pipes into it, and a pipe out of it."""

    def __init__(self, live: bool = False) -> None:
        self.pump = Pump(live)
        self.out_r, self.out_w = os.pipe()
        self.ended = threading.Semaphore(0)
        self.fds: list[int] = []

    def writer(self, prefix: bytes = b"", keep: Callable[[bytes], None] | None = None) -> int:
        read, write = os.pipe()
        self.fds.append(write)
        self.pump.add(Stream(read, self.out_w, prefix, Watcher(), keep, self.ended.release))
        return write

    def end(self, write: int) -> None:
        self.fds.remove(write)
        os.close(write)

    def read(self, count: int, limit_s: float = 10) -> bytes:
        data, until = b"", time.monotonic() + limit_s
        while len(data) < count and time.monotonic() < until:
            if select.select([self.out_r], [], [], 0.1)[0]:
                data += os.read(self.out_r, 1 << 16)
        return data

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        if self.out_r >= 0:
            os.close(self.out_r)
        self.pump.close(5)
        os.close(self.out_w)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


@pytest.fixture
def live() -> Iterator[Pipes]:
    made = Pipes(live=True)
    yield made
    made.close()


def test_a_live_pump_tells_how_an_open_line_stands_and_writes_it_once(live: Pipes) -> None:
    kept: list[bytes] = []
    write = live.writer(b"[a:0] ", keep=kept.append)
    for text, told in (
        (b"loading", b"[a:0] loading\r"),
        (b" 10%", b"[a:0] loading 10%\r"),
        (b"\r 20%", b"[a:0]  20%\r"),
        (b"\r 30%\r", b"[a:0]  30%\r"),
        (b"\r\n", b"[a:0]  30%\n"),
        (b"whole\nopen", b"[a:0] whole\n[a:0] open\r"),
    ):
        os.write(write, text)
        assert live.read(len(told)) == told
    live.end(write)
    assert live.read(11) == b"[a:0] open\n"
    assert b"".join(kept) == b"loading 10%\r 20%\r 30%\r\r\nwhole\nopen"


def test_a_bar_without_end_stays_one_line_in_constant_memory(live: Pipes) -> None:
    write = live.writer()
    bar = b"\r" + b"#" * 99
    for _ in range(3 * LINE_BYTES // len(bar)):
        os.write(write, bar)
    os.write(write, b"\rend\n")
    data = b""
    while not data.endswith(b"\n"):
        data += live.read(1)
    *states, line = data.split(b"\r")
    assert set(states) <= {b"#" * 99, b""}
    assert line == b"end\n"


def test_what_is_written_comes_out_and_the_end_is_told(pipes: Pipes) -> None:
    write = pipes.writer()
    os.write(write, b"one\ntw")
    assert pipes.read(4) == b"one\n"
    pipes.end(write)
    assert pipes.read(2) == b"tw"
    assert pipes.ended.acquire(timeout=5)


def test_lines_of_many_streams_are_never_mixed(pipes: Pipes) -> None:
    lines = 200

    def write_all(fd: int, name: bytes) -> None:
        for number in range(lines):
            text = b"%s %d %s\n" % (name, number, name * 20)
            os.write(fd, text[:7])
            os.write(fd, text[7:])
        pipes.end(fd)

    writers = [(pipes.writer(b"<%d> " % i), b"n%02d" % i) for i in range(8)]
    threads = [threading.Thread(target=write_all, args=pair) for pair in writers]
    for thread in threads:
        thread.start()
    expected = {
        b"<%d> n%02d %d %s" % (i, i, number, b"n%02d" % i * 20)
        for i in range(8)
        for number in range(lines)
    }
    data = pipes.read(sum(len(line) + 1 for line in expected))
    for thread in threads:
        thread.join(5)
    assert set(data.splitlines()) == expected


@pytest.mark.promise("F59")
def test_a_reader_that_stops_reading_blocks_neither_us_nor_loses_a_byte(pipes: Pipes) -> None:
    write = pipes.writer()
    os.set_blocking(write, False)
    sent = b""
    while True:  # until the pipes in and out are full
        try:
            count = os.write(write, b"x" * 4095 + b"\n")
            sent += (b"x" * 4095 + b"\n")[:count]
        except BlockingIOError:
            if not select.select([], [write], [], 0.3)[1]:
                break
    began = time.monotonic()
    pipes.pump.say(pipes.out_w, b"our own line\n")
    assert not pipes.pump.flush(0.05)
    assert time.monotonic() - began < 1
    pipes.end(write)
    data = pipes.read(len(sent) + 13)
    assert data.replace(b"our own line\n", b"") == sent
    assert b"our own line\n" in data


@pytest.mark.promise("F59")
def test_a_reader_that_is_gone_does_not_stop_the_ranks(pipes: Pipes) -> None:
    kept: list[int] = []
    write = pipes.writer(keep=lambda data: kept.append(len(data)))
    os.close(pipes.out_r)
    pipes.out_r = -1
    for _ in range(100):
        os.write(write, b"x" * 8191 + b"\n")  # blocks for ever when nobody drains it
    pipes.end(write)
    assert pipes.ended.acquire(timeout=5)
    assert sum(kept) == 100 * 8192


def test_an_abandoned_stream_gives_what_it_holds(pipes: Pipes) -> None:
    write = pipes.writer()
    os.write(write, b"last words\nand half")
    pipes.pump.abandon()
    assert pipes.ended.acquire(timeout=5)
    assert pipes.read(19) == b"last words\nand half"


def test_closing_writes_what_is_left(pipes: Pipes) -> None:
    write = pipes.writer()
    os.write(write, b"half")
    pipes.pump.say(pipes.out_w, b"said\n")
    assert pipes.pump.close(5)
    assert sorted(pipes.read(9)) == sorted(b"halfsaid\n")


def test_descriptors_are_closed_at_the_end_of_a_stream(pipes: Pipes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        pipes.end(pipes.writer())
    for _ in range(50):
        assert pipes.ended.acquire(timeout=5)
    assert pipes.pump.flush(5)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.promise("F58")
def test_a_line_without_an_end_is_passed_on_in_constant_memory(pipes: Pipes) -> None:
    write = pipes.writer()
    total, got = 20 << 20, 0

    def feed() -> None:
        block = b"x" * (1 << 16)
        for _ in range(total // len(block)):
            os.write(write, block)
        pipes.end(write)

    thread = threading.Thread(target=feed)
    thread.start()
    began = time.monotonic()
    while got < total and time.monotonic() - began < 20:
        got += len(pipes.read(1))
    thread.join(5)
    assert got == total


def test_a_defect_of_a_watcher_costs_the_watcher_and_not_the_output(pipes: Pipes) -> None:
    """With nobody to read their pipes, all ranks would hang."""
    kept: list[bytes] = []

    def broken(data: bytes) -> None:
        kept.append(data)
        raise KeyError("no such thing")

    bad, good = pipes.writer(keep=broken), pipes.writer()
    for text in (b"one\n", b"two\n"):
        os.write(bad, text)
        assert pipes.read(4) == text
    os.write(good, b"fine\n")
    assert pipes.read(5) == b"fine\n"
    assert kept == [b"one\n"]
    assert pipes.pump.problem == "KeyError: 'no such thing'"
