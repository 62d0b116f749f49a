"""A child: each step of its life once, in order. A rank: its failure, masked before it is cut."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from muster.contract.request.distribution import MAX_PROCESSES
from muster.plan.launchplan import RankSlot
from muster.run.base.evidence import TAIL_BYTES, Watcher
from muster.run.base.loop import Loop
from muster.run.base.memory import KillWatch, Memory
from muster.run.channel import messages as m
from muster.run.channel import wire
from muster.run.child.child import KILLED_S, LAST_WORDS_S, Child
from muster.run.child.failures import MOST_REPORTED
from muster.run.child.rank import FAILURE_TEXT_BYTES, SUMMARY_BYTES, Rank
from muster.run.child.shim_handle import ShimHandle
from muster.run.job.context import DETAIL_BYTES, host_error_of
from muster.types.errors import InstallError
from muster.types.masking import Masker
from muster.types.outcome import RankFailure

DRAIN_S = 5.0
SECRET = "canary-0123456789abcdef"
MASK = Masker([SECRET]).mask


def a_rank(number: int) -> Rank:
    """One that nothing happens to: its loop never runs, so it needs no owner."""
    return Rank(RankSlot(number, 0, number), cast(Any, None), cast(Any, None), 0.0)


def failed(written: bytes, status: int = 1) -> RankFailure:
    """The failure of a rank that has written this and ended with the status."""
    rank = a_rank(0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rank.handle = ShimHandle("rank", ours, 1, {}, lambda _one, _on: None)
        rank.handle.status = status
        rank.began_s, rank.ended_s = 1.0, 2.0
        for begin in range(0, len(written), 1 << 14):
            rank.watcher.feed(written[begin : begin + (1 << 14)], 1.5, True)
        return rank.failure("algo-1", "python", 0.0, "", KillWatch(Memory(), list), MASK)


@pytest.mark.promise("S08")
@pytest.mark.parametrize("shift", range(0, len(SECRET), 3))
def test_a_secret_where_a_text_is_cut_leaves_no_part_of_itself(shift: int) -> None:
    """By its value it is known only whole."""
    line = f"ValueError: {'x' * shift}{f'{SECRET} ' * 400}".encode()
    failure = failed(b"Traceback (most recent call last):\n" + line + b"\n")
    for text in (failure.tail, failure.summary):
        assert "canary" not in text
        assert "0123456789" not in text
    told = host_error_of(
        InstallError("y" * shift + SECRET * 300, "", "z" * shift + SECRET * 600), MASK
    )
    for text in (told.message, told.detail):
        assert "canary" not in text
        assert "cdef" not in text


def test_the_end_of_a_rank_that_was_killed_is_known_before_it_has_told_it() -> None:
    rank = a_rank(3)
    rank.began_s, rank.signalled_s, rank.killed = 1.0, 5.0, True
    assert rank.end(7.5) == m.RankEnd(3, -signal.SIGKILL, 6.5, stopped=True, forced=True)


def test_what_a_watcher_keeps_begins_with_a_whole_line() -> None:
    watcher = Watcher()
    for number in range(9000):
        watcher.feed(f"{SECRET} {number}\n".encode(), 0.0, True)
    assert len(watcher.tail) > TAIL_BYTES - 100
    assert watcher.tail.startswith(SECRET.encode())
    assert watcher.tail.endswith(b" 8999\n")


def test_what_the_most_ranks_of_a_host_tell_at_their_end_fits_a_frame() -> None:
    ends = tuple(
        m.RankEnd(rank, -signal.SIGKILL, 123456.789, True, True)
        for rank in range(1_000_000, 1_000_000 + MAX_PROCESSES)
    )
    text = m.shortened("\U0001f600" * FAILURE_TEXT_BYTES, FAILURE_TEXT_BYTES)
    summary = m.shortened("\U0001f600" * SUMMARY_BYTES, SUMMARY_BYTES)
    one = RankFailure(
        "a" * 63, 10**6, -6, 1e6 / 3, summary, text, True, True, "/l" * 100, "n" * 99, summary
    )
    phases = dict.fromkeys(("join", "stage", "plan", "ready", "watch"), 12345.678901234)
    ended = m.HostEnded(ends, (one,) * MOST_REPORTED, phases)
    payload = wire.encode(m.to_wire(ended))
    wire.encode_numbered(10**9, 10**9, payload)
    assert DETAIL_BYTES < wire.FRAME_LIMIT_BYTES


class LoopByHand:
    """A loop whose time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._calls.append((self.now + seconds, call))

    def post(self, call: Callable[[], None]) -> None:
        self.after(0, call)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        while due := sorted(
            (one for one in self._calls if one[0] <= self.now), key=lambda one: one[0]
        ):
            self._calls.remove(due[0])
            due[0][1]()


class Diary(Child):
    """A child that notes what happens to it."""

    def __init__(self, loop: LoopByHand, drain_s: float | None = DRAIN_S) -> None:
        super().__init__(cast(Loop, loop), "the diary", drain_s)
        self.notes: list[str] = []

    def on_start(self) -> None:
        self.notes.append("start")

    def on_lost_shim(self) -> None:
        self.notes.append("lost shim")

    def on_end(self) -> None:
        self.notes.append("end")

    def on_last_words(self) -> None:
        self.notes.append("last words")

    def on_gone(self) -> None:
        self.notes.append("gone")


class House:
    """A child with two streams, and the end of its shim's socket."""

    def __init__(self, drain_s: float | None = DRAIN_S) -> None:
        self.loop = LoopByHand()
        self.child = Diary(self.loop, drain_s)
        ours, self.shim = socket.socketpair()
        self.handle = ShimHandle("rank", ours, 1, {}, lambda _one, _on: None)
        pump: Any = type("Pump", (), {"add": lambda _self, _stream: None})()
        streams: list[Any] = [object(), object()]
        self.child.begin(self.handle, pump, streams, ["true"], {}, "/")
        assert self.shim.recv(4096).endswith(b"start\0/\x001\0true")

    def close(self) -> None:
        self.handle.sock.close()
        self.shim.close()

    def starts(self) -> None:
        self.handle.pid = 7
        self.child.changed()

    def ends(self, status: int = 0) -> None:
        self.handle.status = status
        self.child.changed()

    def stream_ends(self) -> None:
        self.child.stream_ended()
        self.loop.wait(0)

    def orders(self) -> bytes:
        """What the shim is asked to do."""
        self.shim.setblocking(False)
        try:
            return self.shim.recv(4096)
        except BlockingIOError:
            return b""


@pytest.fixture(params=[DRAIN_S])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    made = House(request.param)
    yield made
    made.close()


def test_output_that_ends_first_makes_the_end_final(house: House) -> None:
    house.starts()
    house.stream_ends()
    house.stream_ends()
    assert house.child.notes == ["start"]
    house.ends(3)
    assert house.child.notes == ["start", "end", "last words", "gone"]
    assert (house.child.status, house.child.runs, house.child.ran) == (3, False, True)
    assert house.handle.child is house.child


def test_last_words_are_waited_for_and_then_the_end_of_the_output(house: House) -> None:
    house.starts()
    house.ends()
    house.loop.wait(LAST_WORDS_S - 0.01)
    assert house.child.notes == ["start", "end"]
    house.loop.wait(0.02)
    assert house.child.notes == ["start", "end", "last words"]
    house.stream_ends()
    assert not house.child.gone
    house.stream_ends()
    house.loop.wait(100)
    assert house.child.notes == ["start", "end", "last words", "gone"]
    assert house.orders() == b""  # it left nothing that is to be killed


def test_what_keeps_the_output_open_is_killed_and_given_up(house: House) -> None:
    house.starts()
    house.ends()
    house.loop.wait(DRAIN_S)
    assert house.orders().endswith(b"kill")
    assert not house.child.gone
    house.loop.wait(KILLED_S)
    assert house.child.notes == ["start", "end", "last words", "gone"]
    house.stream_ends()
    house.stream_ends()
    assert house.child.notes.count("gone") == 1


@pytest.mark.parametrize("house", [None], indirect=True)
def test_output_may_stay_open_for_ever_where_nothing_is_to_drain(house: House) -> None:
    house.starts()
    house.ends()
    house.loop.wait(1e6)
    assert house.child.notes == ["start", "end", "last words"]


def test_a_shim_that_goes_is_not_the_end_of_its_script(house: House) -> None:
    house.starts()
    house.handle.connected = False
    house.child.changed()
    assert house.child.notes == ["start", "lost shim"]
    house.ends(-9)
    house.ends(-9)
    assert house.child.notes == ["start", "lost shim", "end"]


def test_nothing_is_ordered_before_there_is_a_shim() -> None:
    child = Diary(LoopByHand())
    child.kill()
    child.release()
    assert (child.status, child.runs, child.ran, child.notes) == (0, False, False, [])


@pytest.mark.parametrize(
    ("written", "status", "expected"),
    [
        ("", -signal.SIGTERM, True),
        ("", 143, True),
        ("", -signal.SIGKILL, False),
        ("KeyboardInterrupt", 1, True),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated. ", 1, True),
        ("RuntimeError: Connection closed by peer [10.0.0.2]:7777", 1, True),
        ("ValueError: bad batch", 1, False),
        ("ValueError: signal 155 of sensor", 1, False),
    ],
)
def test_what_a_stop_may_have_done(written: str, status: int, expected: bool) -> None:
    rank = a_rank(0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rank.handle = ShimHandle("rank", ours, 1, {}, lambda _one, _on: None)
        rank.handle.status = status
        if written:
            text = f"Traceback (most recent call last):\n  x\n{written}\n"
            rank.watcher.feed(text.encode(), 1.5, True)
        assert rank.may_be_stopped(()) is expected
