"""The event loop: order, timers, and a stop that is never lost."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator

import pytest

from muster.run.base.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    made.after(10, made.stop)  # a test that is wrong ends all the same
    try:
        yield made
    finally:
        made.close()


@pytest.mark.promise("F16")
def test_a_stop_before_the_run_counts(loop: Loop) -> None:
    """A job may be over before its loop was started; it hung for ever when that was forgotten."""
    called: list[str] = []
    loop.after(0, lambda: called.append("timer"))
    loop.stop()
    loop.run()
    assert not called


def test_a_stop_is_obeyed_once(loop: Loop) -> None:
    called: list[str] = []
    loop.stop()
    loop.run()
    loop.after(0, lambda: called.append("second run"))
    loop.after(0.001, loop.stop)
    loop.run()
    assert called == ["second run"]


def test_timers_run_by_time_and_then_by_age(loop: Loop) -> None:
    called: list[str] = []
    loop.after(0.002, loop.stop)
    loop.after(0.001, lambda: called.append("later"))
    loop.after(0, lambda: called.append("first"))
    loop.after(0, lambda: called.append("second"))
    loop.after(0, lambda: called.append("never")).cancel()
    loop.run()
    assert called == ["first", "second", "later"]


def test_a_call_from_another_thread_wakes_the_loop(loop: Loop) -> None:
    where: list[int] = []

    def called() -> None:
        where.append(threading.get_ident())
        loop.stop()

    thread = threading.Thread(target=loop.post, args=(called,))
    loop.after(0, thread.start)
    loop.run()
    thread.join(5)
    assert where == [threading.get_ident()]


def test_a_call_after_the_close_is_nothing() -> None:
    closed = Loop()
    closed.close()
    closed.post(lambda: pytest.fail("called after the close"))


def test_a_descriptor_that_is_forgotten_by_another_one_s_handler_is_not_called(loop: Loop) -> None:
    """Both can be read in the same round; the first handler takes the second away."""
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []
    for own, other in ((0, 1), (1, 0)):

        def handler(_events: int, own: int = own, other: int = other) -> None:
            called.append(own)
            loop.forget(pipes[other][0])
            loop.stop()

        loop.watch(pipes[own][0], handler)
        os.write(pipes[own][1], b"x")
    loop.run()
    assert len(called) == 1
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)


def test_an_event_of_a_descriptor_is_not_its_next_owner_s(loop: Loop) -> None:
    """One handler closes what another one watches, and opens something under the same number."""
    called: list[str] = []
    first, second = os.pipe(), os.pipe()
    nothing_yet: list[tuple[int, int]] = []

    def replace(own: tuple[int, int], other: tuple[int, int]) -> None:
        called.append("event")
        loop.forget(own[0])
        loop.forget(other[0])
        os.close(other[0])
        nothing_yet.append(os.pipe())
        assert nothing_yet[0][0] == other[0]
        loop.watch(other[0], lambda _events: called.append("stale"))
        loop.after(0.01, loop.stop)

    loop.watch(first[0], lambda _events: replace(first, second))
    loop.watch(second[0], lambda _events: replace(second, first))
    for pipe in (first, second):
        os.write(pipe[1], b"x")
    loop.run()
    assert called == ["event"]
    os.write(nothing_yet[0][1], b"x")  # its own events come
    loop.after(0.01, loop.stop)
    loop.run()
    assert called[1:]


def test_a_call_while_the_loop_closes_writes_to_nobody_else() -> None:
    """The wake-up pipe's number may belong to another file by the time of the write."""
    for _ in range(200):
        closing, go = Loop(), threading.Barrier(2)

        def call(closing: Loop = closing, go: threading.Barrier = go) -> None:
            go.wait(5)
            for _ in range(20):
                closing.post(lambda: None)

        thread = threading.Thread(target=call)
        thread.start()
        go.wait(5)
        closing.close()
        reader, writer = os.pipe2(os.O_NONBLOCK)  # takes the numbers that were closed
        thread.join(5)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("where", ["a call", "a handler"])
def test_what_was_read_is_known_to_timers_although_the_thread_stood_still(
    loop: Loop, where: str
) -> None:
    """A timer that comes late is called before what came meanwhile was read; it can tell."""
    (ours, theirs), (other, others) = os.pipe(), os.pipe()
    seen: list[tuple[bool, bool]] = []  # whether it came before `read_s`, and was read
    read: list[bytes] = []
    came_s = math.inf  # a timer may be called before the thread has stood still

    def stand(_events: int = 0) -> None:
        nonlocal came_s
        loop.forget(other)
        os.write(theirs, b"x")
        time.sleep(0.02)
        came_s = time.monotonic()

    def look() -> None:
        seen.append((loop.read_s >= came_s, bool(read)))
        if read and seen[-1][0]:
            loop.stop()
        else:
            loop.after(0.001, look)

    loop.watch(ours, lambda _events: read.append(os.read(ours, 1)))
    if where == "a call":
        loop.post(stand)
    else:
        os.write(others, b"x")
        loop.watch(other, stand)
    loop.after(0.001, look)
    loop.run()
    assert seen[0] == (False, False)  # the fault: late, and nothing was read
    assert (True, False) not in seen
    for fd in (ours, theirs, other, others):
        os.close(fd)
