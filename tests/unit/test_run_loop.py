"""The event loop: order, timers, and a stop that is never lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from muster.run.loop import Loop


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
