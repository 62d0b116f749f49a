"""Asynchronous calls while the main thread does not give up Python's lock; run by test_async.py.

The switch interval is so long that a thread of Python that waits for the lock never gets it from a
thread that runs Python: what an asynchronous call needs it for would happen at the limit only.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.runtime.errors import (
    AbortedError,
    ClosedError,
    CollectiveError,
    CollectiveTimeout,
)
from muster_collectives.torch import stats
from tests.collectives.support.interrupting import interrupted
from tests.collectives.support.torch_ranks import World, main
from tests.support.waiting import wait_until

warnings.filterwarnings("ignore")
LIMIT_S = 20.0
SHORT = timedelta(seconds=4)
COUNT = 1000
GROUPS = 20


class Sign:
    """A byte that both ranks see without a system call, which would give up the lock."""

    def __init__(self, world: World) -> None:
        path = world.folder / "sign"
        if world.rank == 0:
            path.write_bytes(bytes(mmap.PAGESIZE))
        dist.barrier()
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def give(self, value: int) -> None:
        self._page[0] = value

    def seen(self, value: int) -> bool:
        deadline = time.monotonic() + LIMIT_S
        while self._page[0] != value:
            if time.monotonic() > deadline:
                return False
        return True


@contextmanager
def holding_the_lock() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(10 * LIMIT_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _start(world: World) -> None:
    world.drop()  # of a check that has failed
    world.start()


def _warm_up() -> None:
    """The threads are there."""
    dist.all_reduce(torch.ones(1), async_op=True).wait()


def _goes_on(world: World, begin: Callable[[int], list[Any]], check: Callable[[], bool]) -> None:
    """Rank 0 begins and then computes in Python until the other rank has all of it."""
    _start(world)
    sign = Sign(world)
    _warm_up()
    if world.rank == 0:
        with holding_the_lock():
            works = begin(0)
            arrived = sign.seen(1)
        assert arrived, f"the other rank waited for Python's lock of this one for {LIMIT_S} s"
        for work in works:
            work.wait()
    else:
        for work in begin(1):
            work.wait()
        sign.give(1)
    assert check()
    dist.barrier()
    world.drop()


def a_sum_goes_on_while_the_main_thread_runs_python(world: World) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            x = torch.ones(COUNT, dtype=dtype)

            def begin(rank: int, x: torch.Tensor = x, op: Any = op) -> list[Any]:
                return [dist.all_reduce(x, op, async_op=True)]

            expected = world.size if op == dist.ReduceOp.SUM else 1
            _goes_on(world, begin, lambda x=x, e=expected: bool((x == e).all()))  # type: ignore[misc]


def calls_of_many_kinds_go_on_in_their_order(world: World) -> None:
    x = torch.full((COUNT,), world.rank + 1.0)
    copies = torch.zeros(COUNT * world.size)
    lists = [torch.zeros(COUNT) for _ in range(world.size)]
    part = torch.zeros(COUNT)
    out = torch.zeros(world.size + 1)
    takes = [1 + (each + world.rank) % 2 for each in range(world.size)]

    def begin(rank: int) -> list[Any]:
        return [
            dist.all_reduce(x, async_op=True),
            dist.all_gather_into_tensor(copies, x, async_op=True),
            dist.reduce_scatter_tensor(part, copies, async_op=True),
            dist.all_to_all_single(out, x[: sum(takes)], takes, takes, async_op=True),
            dist.broadcast(x, 1, async_op=True),
            dist.barrier(async_op=True),
            # the last: what comes after it waits until Python has copied the parts to their places
            dist.all_gather(lists, x, async_op=True),
        ]

    def check() -> bool:
        return (
            bool((copies == 3).all())
            and all(bool((each == 3).all()) for each in lists)
            and bool((part == 6).all())
            and bool((out == 3).all())
        )

    _goes_on(world, begin, check)


def a_tensor_with_gaps_goes_on_too(world: World) -> None:
    wide = torch.ones(COUNT, 2)
    view = wide[:, 0]

    def begin(rank: int) -> list[Any]:
        return [dist.all_reduce(view, async_op=True)]

    _goes_on(world, begin, lambda: bool((view == world.size).all() and (wide[:, 1] == 1).all()))


def what_needs_python_keeps_its_place(world: World) -> None:
    """Sums of a view and of the whole tensor: each uses what the one before it wrote."""
    _start(world)
    for _ in range(50):
        order = torch.ones(COUNT, 2)
        first = dist.all_reduce(order, async_op=True)
        second = dist.all_reduce(order[:, 0], async_op=True)
        third = dist.all_reduce(order, async_op=True)
        dist.all_reduce(order[:, 1])
        assert bool((order == 8).all()), order
        for work in (third, second, first):
            work.wait()
            assert work.is_success()
    assert stats().fallback == {}
    world.drop()


def a_signal_handler_runs_while_a_call_is_waited_for_and_the_call_goes_on(world: World) -> None:
    import signal

    _start(world)
    _warm_up()
    x = torch.ones(4)
    if world.rank == 0:
        rung: list[int] = []

        def ring(number: int, frame: object) -> None:
            rung.append(number)
            world.store.set("rung", "1")

        before = signal.signal(signal.SIGALRM, ring)
        work = dist.all_reduce(x, async_op=True)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        work.wait()
        signal.signal(signal.SIGALRM, before)
        assert rung == [signal.SIGALRM]
        world.store.delete_key("rung")
    else:
        world.store.wait(["rung"])
        dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4
    dist.barrier()
    world.drop()


def a_call_goes_on_where_a_signal_handler_raises_after_its_post(world: World) -> None:
    _start(world)
    _warm_up()
    x = torch.ones(COUNT)
    if world.rank == 0:
        alive = weakref.ref(x)
        with interrupted("return", "post"), suppress(KeyboardInterrupt):
            dist.all_reduce(x, async_op=True)
            raise AssertionError("no interrupt")
        del x
        kept = alive()
        assert kept is not None, "the core has memory that is let go"
        x = kept
        world.store.set("interrupted", "1")
    else:
        world.store.wait(["interrupted"])
        dist.all_reduce(x, async_op=True)
    last = torch.ones(COUNT)
    dist.all_reduce(last, async_op=True).wait()
    assert bool((x == world.size).all()) and bool((last == world.size).all())
    world.drop()


def errors_of_calls_in_a_row_come_with_their_waits(world: World) -> None:
    _start(world)
    group = dist.new_group(timeout=SHORT)
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    if world.rank == 0:
        works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(3)]
        found = [_end_of(work) for work in reversed(works)]
        assert all(isinstance(each, CollectiveTimeout) for each in found), found
        assert found[-1] is not None and found[-1].ranks == (1,) and found[-1].operation == 2
        assert not any(work.is_success() for work in works)
    dist.barrier()
    world.drop()


def _end_of(work: Any) -> CollectiveError | None:
    try:
        work.wait()
    except CollectiveError as error:
        return error
    return None


def an_abort_ends_calls_that_nobody_waits_for(world: World) -> None:
    _start(world)
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    if world.rank == 0:
        works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(3)]
        group.abort()
        for work in works:
            assert isinstance(_end_of(work), AbortedError)
        world.store.set("aborted", "1")
    else:
        world.store.wait(["aborted"])
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        assert isinstance(_end_of(work), AbortedError)
    dist.barrier()
    world.drop()


def a_core_that_is_closed_amid_a_call_ends_it(world: World) -> None:
    """Without the group's own end, which waits for what was begun."""
    _start(world)
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    if world.rank == 0:
        works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(3)]
        group.communicator.close()
        for work in works:
            assert isinstance(_end_of(work), (AbortedError, ClosedError))
    dist.barrier()
    world.drop()


def a_child_of_the_process_gets_errors(world: World) -> None:
    _start(world)
    _warm_up()
    child = os.fork()
    if not child:
        try:
            error = _end_of(dist.all_reduce(torch.ones(1), async_op=True))
            os._exit(0 if "fork" in str(error) and len(os.listdir("/proc/self/task")) <= 2 else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    _warm_up()
    world.drop()


def groups_at_rest_have_no_threads(world: World) -> None:
    """They end after a second without work, and what is begun later has new ones."""
    _start(world)
    before = _threads()
    ones = torch.ones(COUNT)
    for _ in range(2):
        groups, started = [dist.new_group() for _ in range(GROUPS)], False
        for group in groups:
            sent = dist.isend(ones, 1 - world.rank, group=group)
            dist.irecv(torch.empty(COUNT), 1 - world.rank, group=group).wait()
            sent.wait()
            total = torch.ones(COUNT)
            dist.all_reduce(total, group=group, async_op=True).wait()
            assert bool((total == 2).all())
            started = started or _threads() > before
        assert started, "it had no thread to end"
        wait_until(lambda: _threads() <= before, LIMIT_S, lambda: f"{_threads()} threads")
    world.drop()


def a_thread_that_cannot_be_had_is_tried_again(world: World) -> None:
    """Who waits does the work meanwhile."""
    _start(world)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("muster"):
            raise RuntimeError("can't start new thread")
        start(thread)

    total = torch.ones(COUNT)
    threading.Thread.start = refuse  # type: ignore[method-assign]
    try:
        dist.all_reduce(total, async_op=True).wait()
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
    assert bool((total == 2).all())
    later = dist.all_reduce(total, async_op=True).get_future()
    wait_until(later.done, LIMIT_S, lambda: "nobody ends it")
    assert bool((total == 4).all())
    world.drop()


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


CHECKS = (
    groups_at_rest_have_no_threads,
    a_thread_that_cannot_be_had_is_tried_again,
    a_sum_goes_on_while_the_main_thread_runs_python,
    calls_of_many_kinds_go_on_in_their_order,
    a_tensor_with_gaps_goes_on_too,
    what_needs_python_keeps_its_place,
    a_signal_handler_runs_while_a_call_is_waited_for_and_the_call_goes_on,
    a_call_goes_on_where_a_signal_handler_raises_after_its_post,
    errors_of_calls_in_a_row_come_with_their_waits,
    an_abort_ends_calls_that_nobody_waits_for,
    a_core_that_is_closed_amid_a_call_ends_it,
    a_child_of_the_process_gets_errors,
)

if __name__ == "__main__":
    if os.environ.get("RANKS_APART"):
        os.environ["COLLECTIVES_NODE"] = f"node-{os.environ['RANK']}"
    main(CHECKS, start=False)
