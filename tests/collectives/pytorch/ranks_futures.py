"""Futures of sends and receives; run by test_futures.py. No group is made before."""

from __future__ import annotations

import operator
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.runtime.errors import CollectiveTimeout
from tests.collectives.support.interrupting import interrupted
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
LIMIT_S = 60.0
MANY = 24


def _start(world: World) -> None:
    world.drop()  # of a check that has failed
    world.start()


def tasks() -> int:
    """Threads of this process, those of the core included."""
    return len(os.listdir("/proc/self/task"))


def settling() -> int:
    """Threads that settle futures: others, of torch and the core, begin when they like."""
    return sum(each.name == "muster-transfers" for each in threading.enumerate())


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {LIMIT_S:g} s"
        time.sleep(0.002)


def starts_threads(world: World, group: Any = None) -> None:
    """One message each way and one future: the first threads that transfers need are there."""
    other = 1 - world.rank
    got = dist.irecv(torch.zeros(1), other, tag=1000, group=group)
    future = got.get_future()
    dist.send(torch.ones(1), other, tag=1000, group=group)
    future.wait()


def error_of(future: Any) -> str:
    try:
        future.wait()
    except RuntimeError as error:
        return str(error)
    return ""


def pending(count: int, group: Any = None) -> list[Any]:
    """Futures of receives from the other rank, by tag; nobody waits for their works."""
    other = 1 - dist.get_rank()
    works = [dist.irecv(torch.zeros(4), other, tag=tag, group=group) for tag in range(count)]
    return [work.get_future() for work in works]


def two_threads_that_settle_futures_when_their_transfers_end_remain(world: World) -> None:
    _start(world)
    starts_threads(world)
    if world.rank == 0:
        futures = pending(MANY)
        ended: list[int] = []
        for tag, future in enumerate(futures):
            future.then(lambda done, tag=tag: ended.append(tag))
        for count in range(1, MANY + 1):
            dist.send(torch.ones(1), 1, tag=2000)
            until(lambda count=count: len(ended) == count, f"future {count}")  # type: ignore[misc]
        assert ended == list(reversed(range(MANY))), ended
        assert [future.value()[0][0].item() for future in futures] == list(range(MANY))
        until(lambda: 1 <= settling() <= 2, "the end of threads beyond two")
    else:
        for tag in reversed(range(MANY)):
            dist.recv(torch.zeros(1), 0, tag=2000)
            dist.isend(torch.full((4,), float(tag)), 0, tag=tag).get_future().wait()
    world.drop()


def a_callback_may_wait_for_the_future_of_another_transfer(world: World) -> None:
    _start(world)
    if world.rank == 0:

        def go_on(done: Any) -> float:
            later = dist.irecv(torch.zeros(4), 1, tag=1).get_future()
            dist.send(torch.ones(1), 1, tag=2000)
            return float(done.value()[0][0] + later.wait()[0][0])

        first, last = pending(1)[0], dist.irecv(torch.zeros(4), 1, tag=2).get_future()
        both = first.then(go_on)
        dist.send(torch.ones(1), 1, tag=2000)
        assert both.wait() == 3.0
        assert last.wait()[0][0].item() == 3.0
    else:
        for tag in range(2):
            dist.recv(torch.zeros(1), 0, tag=2000)
            dist.send(torch.full((4,), tag + 1.0), 0, tag=tag)
        dist.send(torch.full((4,), 3.0), 0, tag=2)
    world.drop()


def callbacks_may_wait_for_futures_that_were_asked_for_before(world: World) -> None:
    """Each for the next: all wait at once, and the last transfer ends last."""
    _start(world)
    if world.rank == 0:
        *others, last = pending(6)
        whole = last.then(lambda done: float(done.value()[0][0]))
        for future in reversed(others):
            whole = future.then(
                lambda done, later=whole: float(done.value()[0][0]) + float(later.wait())
            )
        dist.send(torch.ones(1), 1, tag=2000)
        until(whole.done, "the first callback")
        assert whole.value() == sum(range(6))
    else:
        dist.recv(torch.zeros(1), 0, tag=2000)
        for tag in range(6):
            dist.send(torch.full((4,), float(tag)), 0, tag=tag)
    world.drop()


def two_threads_that_ask_for_the_future_of_one_transfer_get_the_same(world: World) -> None:
    _start(world)
    if world.rank == 0:
        works = [dist.irecv(torch.zeros(4), 1, tag=tag) for tag in range(MANY)]
        meeting = threading.Barrier(2)
        got: list[list[Any]] = [[], []]

        def ask(number: int) -> None:
            for work in works:
                meeting.wait(LIMIT_S)
                got[number].append(work.get_future())

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        asking = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for each in asking:
            each.start()
        for each in asking:
            each.join()
        sys.setswitchinterval(before)
        dist.send(torch.ones(1), 1, tag=2000)
        assert len(got[0]) == MANY and all(map(operator.is_, *got))
        until(lambda: all(each.done() for each in got[0]), "the futures")
        assert [each.value()[0][0].item() for each in got[1]] == list(range(MANY))
    else:
        dist.recv(torch.zeros(1), 0, tag=2000)
        for tag in range(MANY):
            dist.send(torch.full((4,), float(tag)), 0, tag=tag)
    world.drop()


def a_future_that_could_not_be_made_leaves_none_behind(world: World) -> None:
    """A signal handler raises before the thread has started, and once the core has the request."""
    _start(world)
    if world.rank == 0:
        some = [dist.irecv(torch.zeros(4), 1, tag=tag) for tag in range(2)]
        with interrupted("call", "start"):
            assert error_in(some[0].get_future) == "KeyboardInterrupt"
        with interrupted("return", "follow"):
            assert error_in(some[1].get_future) == "KeyboardInterrupt"
        futures = [work.get_future() for work in some]
        assert not any(future.done() for future in futures)
        dist.send(torch.ones(1), 1, tag=2000)
        until(lambda: all(future.done() for future in futures), "the futures")
        assert [future.value()[0][0].item() for future in futures] == [1.0, 2.0]
    else:
        dist.recv(torch.zeros(1), 0, tag=2000)
        for tag in range(2):
            dist.send(torch.full((4,), tag + 1.0), 0, tag=tag)
    world.drop()


def error_in(action: Callable[[], object]) -> str:
    try:
        action()
    except BaseException as error:
        return type(error).__name__
    return ""


def a_wait_with_a_limit_ends_beside_one_without(world: World) -> None:
    _start(world)
    if world.rank == 0:
        work = dist.irecv(torch.zeros(4), 1, tag=0)
        longer = threading.Thread(target=work.wait)
        longer.start()
        time.sleep(0.2)  # so that it waits by now
        said: list[BaseException] = []

        def shorter() -> None:
            try:
                work.wait(timedelta(milliseconds=10))
            except CollectiveTimeout as error:
                said.append(error)

        threading.Thread(target=shorter, daemon=True).start()
        try:
            until(lambda: bool(said), "the limit")
        finally:
            dist.send(torch.ones(1), 1, tag=2000)
            longer.join()
    else:
        dist.recv(torch.zeros(1), 0, tag=2000)
        dist.send(torch.ones(4), 0, tag=0)
    world.drop()


def memory_of_a_transfer_lives_where_a_signal_handler_raises_after_its_post(world: World) -> None:
    _start(world)
    if world.rank == 0:
        room = torch.zeros(4)
        alive = weakref.ref(room)
        with interrupted("return", "post_recv"):
            assert error_in(lambda: dist.irecv(room, 1, tag=0)) == "KeyboardInterrupt"
        del room
        kept = alive()
        assert kept is not None
        dist.send(torch.ones(1), 1, tag=2000)
        until(lambda: kept[0].item() == 1.0, "what was sent")
    else:
        dist.recv(torch.zeros(1), 0, tag=2000)
        dist.send(torch.ones(4), 0, tag=0)
    world.drop()


def the_future_of_a_transfer_that_was_waited_for_is_settled(world: World) -> None:
    _start(world)
    if world.rank == 0:
        early = dist.irecv(torch.zeros(4), 1, tag=0)
        late = dist.irecv(torch.zeros(4), 1, tag=1)
        future = late.get_future()
        early.wait()
        late.wait()  # here or by the follower: the core says an end once
        assert early.get_future().wait()[0][0].item() == 1.0
        assert future.wait()[0][0].item() == 2.0
    else:
        for tag in range(2):
            dist.send(torch.full((4,), tag + 1.0), 0, tag=tag)
    world.drop()


def _end_with_futures(world: World, end: Callable[[Any, list[Any]], None], word: str) -> None:
    _start(world)
    before = tasks()
    group = dist.new_group()
    starts_threads(world, group)
    futures = pending(3, group)
    assert not any(future.done() for future in futures)
    world.store.set(f"{word} {world.rank}", "1")
    world.store.wait([f"{word} 0", f"{word} 1"])
    end(group, futures)
    for future in futures:
        error = error_of(future)
        assert word in error, error
    until(lambda: "muster-transfers" not in [each.name for each in threading.enumerate()], "end")
    if word == "closed":
        until(lambda: tasks() <= before, "the end of all threads")
    world.drop()


def futures_of_a_destroyed_group_end_and_so_does_their_thread(world: World) -> None:
    _end_with_futures(world, lambda group, _: dist.destroy_process_group(group), "closed")


def what_came_before_the_end_of_the_group_is_in_its_future(world: World) -> None:
    """Whoever is first, the thread that settles it or the end."""
    _start(world)
    for _ in range(MANY):
        _comes_before_the_end(world)
    world.drop()


def _comes_before_the_end(world: World) -> None:
    group = dist.new_group()
    room = torch.zeros(4)
    if world.rank == 0:
        future = dist.irecv(room, 1, tag=0, group=group).get_future()
        dist.send(torch.ones(1), 1, tag=2000)
        until(lambda: room[3].item() == 1.0, "what was sent")
    else:
        dist.recv(torch.zeros(1), 0, tag=2000)
        dist.send(torch.ones(4), 0, tag=0, group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    if world.rank == 0:
        assert future.wait()[0] is room


def futures_of_an_aborted_group_end(world: World) -> None:
    def end(group: Any, futures: list[Any]) -> None:
        if world.rank == 0:
            group.abort()
        until(lambda: all(future.done() for future in futures), "the abort")
        dist.destroy_process_group(group)

    _end_with_futures(world, end, "aborted")


def a_child_of_the_process_has_no_such_thread(world: World) -> None:
    _start(world)
    starts_threads(world)
    other = 1 - world.rank
    work = dist.irecv(torch.zeros(1), other, tag=5)
    followed = work.get_future()
    second = dist.irecv(torch.zeros(1), other, tag=6)
    dist.barrier()  # what is there before its receive is over with the post, for the child too
    child = os.fork()
    if not child:
        try:
            alone = tasks() == 1
            said = error_of(second.get_future())
            os._exit(0 if alone and "fork" in said else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for tag in (5, 6):
        dist.send(torch.ones(1), other, tag=tag)
    followed.wait()
    second.wait()
    world.drop()


CHECKS = (
    two_threads_that_settle_futures_when_their_transfers_end_remain,
    a_callback_may_wait_for_the_future_of_another_transfer,
    callbacks_may_wait_for_futures_that_were_asked_for_before,
    two_threads_that_ask_for_the_future_of_one_transfer_get_the_same,
    a_future_that_could_not_be_made_leaves_none_behind,
    a_wait_with_a_limit_ends_beside_one_without,
    memory_of_a_transfer_lives_where_a_signal_handler_raises_after_its_post,
    the_future_of_a_transfer_that_was_waited_for_is_settled,
    what_came_before_the_end_of_the_group_is_in_its_future,
    futures_of_a_destroyed_group_end_and_so_does_their_thread,
    futures_of_an_aborted_group_end,
    a_child_of_the_process_has_no_such_thread,
)

if __name__ == "__main__":
    if os.environ.get("RANKS_APART"):
        os.environ["COLLECTIVES_NODE"] = f"node-{os.environ['RANK']}"
    main(CHECKS, start=False)
