"""What a rank's agent says of calls: how old they are, and in which one of MPI the code is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest

from muster.rank_bootstrap.calls import Ages, native_call_of

NS = 10**9


class Clocks:
    """Both clocks as the test sets them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.wall = 1000.0, 1e9
        patch.setattr(time, "monotonic", lambda: self.now)
        patch.setattr(time, "time", lambda: self.wall)

    def wait(self, time_s: float) -> None:
        self.now += time_s
        self.wall += time_s

    @property
    def stamp(self) -> int:
        return int(self.wall * NS)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_a_call_is_as_old_as_its_stamp_says(clocks: Clocks) -> None:
    ages, stamp = Ages(began_s=0.0), clocks.stamp
    clocks.wait(40)
    assert ages.of({("a",): stamp}) == {("a",): pytest.approx(40)}
    clocks.wait(5)
    assert ages.of({("a",): stamp}) == {("a",): pytest.approx(45)}


@pytest.mark.promise("F61")
@pytest.mark.parametrize("jump_s", [14400, -14400])
def test_a_clock_that_jumps_ages_no_call(clocks: Clocks, jump_s: float) -> None:
    """One that is known, and one that began after the look before."""
    ages, known = Ages(began_s=0.0), clocks.stamp
    clocks.wait(10)
    ages.of({("known",): known})
    clocks.wait(3)
    fresh = clocks.stamp
    clocks.wait(1)
    clocks.wall += jump_s
    found = ages.of({("known",): known, ("fresh",): fresh})
    assert found[("known",)] == pytest.approx(14)
    assert 0 <= found[("fresh",)] <= 4


def test_a_call_is_no_older_than_its_process(clocks: Clocks) -> None:
    stamp = clocks.stamp
    clocks.wall += 14400
    assert Ages(began_s=clocks.now - 7).of({("a",): stamp}) == {("a",): pytest.approx(7)}


class Comm:
    """In place of a communicator: its calls, native ones, look at who called them."""

    called = ""
    calls: ClassVar[list[str]] = []

    def __getattr__(self, _name: str) -> Callable[..., int]:
        return partial(self.look)

    def look(self, *_given: object, **_named: object) -> int:
        frame = sys._getframe(1)
        Comm.called = native_call_of(frame.f_code, frame.f_lasti)
        Comm.calls.append(Comm.called)
        return 1


def one_call(comm: Comm) -> None:
    comm.Allreduce([1], comm)


def a_result_that_is_kept(comm: Comm) -> None:
    total = 1
    total += comm.allreduce(total, op=max)


def a_call_after_another(comm: Comm) -> None:
    other = comm.Barrier() if comm else None
    if other:
        comm.Recv([0], source=1)


def a_call_of_something_else(comm: Comm) -> None:
    barrier = comm.Barrier
    comm.sleep(barrier)


def an_argument_that_is_read(comm: Comm) -> None:
    comm.bcast(comm.read(10), root=0)
    Comm.called = Comm.calls[-2]


def an_argument_that_is_named(comm: Comm) -> None:
    comm.sleep(comm.Barrier)


def a_call_after_a_return(comm: Comm) -> object:
    if not comm:
        return comm.Barrier()
    return look(0)


def a_call_in_arguments(comm: Comm) -> None:
    comm.Send(comm.recv(source=1), *[0], dest=1)


def what_a_socket_gives(sock: Comm) -> None:
    sock.recv(1024)


look = partial(Comm().look)
CALLS: dict[Callable[[Comm], object], str] = {
    one_call: "Allreduce",
    a_result_that_is_kept: "allreduce",
    a_call_after_another: "Recv",
    a_call_of_something_else: "",
    an_argument_that_is_read: "",
    an_argument_that_is_named: "",
    a_call_after_a_return: "",
    a_call_in_arguments: "Send",
    what_a_socket_gives: "",
}


@pytest.mark.promise("H01")
@pytest.mark.parametrize("function", CALLS)
def test_the_name_of_a_native_call_is_read_from_the_code_that_makes_it(
    function: Callable[[Comm], object],
) -> None:
    function(Comm())
    assert Comm.called == CALLS[function]
    assert native_call_of(function.__code__, 0) == ""
    assert native_call_of(function.__code__, 1 << 20) == ""
