"""Futures of sends and receives; run by test_futures.py. No group is made before."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
LIMIT_S = 60.0
MANY = 24


def _start(world: World) -> None:
    world.drop()  # of a check that has failed
    world.start()


def tasks() -> int:
    """Threads of this process, those of the core included."""
    return len(os.listdir("/proc/self/task"))


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {LIMIT_S:g} s"
        time.sleep(0.002)


def starts_threads(world: World, group: Any = None) -> None:
    """One message each way and one future: all threads that transfers ever need are there."""
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


def one_thread_settles_futures_in_the_order_in_which_transfers_end(world: World) -> None:
    _start(world)
    starts_threads(world)
    if world.rank == 0:
        before = tasks()
        futures = pending(MANY)
        assert tasks() == before, (before, tasks())
        ended: list[int] = []
        for tag, future in enumerate(futures):
            future.then(lambda done, tag=tag: ended.append(tag))
        for count in range(1, MANY + 1):
            dist.send(torch.ones(1), 1, tag=2000)
            until(lambda count=count: len(ended) == count, f"future {count}")  # type: ignore[misc]
        assert ended == list(reversed(range(MANY))), ended
        assert [future.value()[0][0].item() for future in futures] == list(range(MANY))
        assert tasks() == before, (before, tasks())
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


def _end_with_futures(world: World, end: Callable[[Any], None], word: str) -> None:
    _start(world)
    before = tasks()
    group = dist.new_group()
    starts_threads(world, group)
    futures = pending(3, group)
    assert not any(future.done() for future in futures)
    world.store.set(f"{word} {world.rank}", "1")
    world.store.wait([f"{word} 0", f"{word} 1"])
    end(group)
    for future in futures:
        error = error_of(future)
        assert word in error, error
    until(lambda: "muster-transfers" not in [each.name for each in threading.enumerate()], "end")
    if word == "closed":
        until(lambda: tasks() <= before, "the end of all threads")
    world.drop()


def futures_of_a_destroyed_group_end_and_so_does_their_thread(world: World) -> None:
    _end_with_futures(world, dist.destroy_process_group, "closed")


def futures_of_an_aborted_group_end(world: World) -> None:
    def end(group: Any) -> None:
        if world.rank == 0:
            group.abort()
        until(lambda: all(future.done() for future in futures_of(group)), "the abort")
        dist.destroy_process_group(group)

    def futures_of(group: Any) -> list[Any]:
        return [each._future for each in list(group._transfers._kept.values()) if each._future]

    _end_with_futures(world, end, "aborted")


def a_child_of_the_process_has_no_such_thread(world: World) -> None:
    _start(world)
    starts_threads(world)
    other = 1 - world.rank
    work = dist.irecv(torch.zeros(1), other, tag=5)
    followed = work.get_future()
    second = dist.irecv(torch.zeros(1), other, tag=6)
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
    one_thread_settles_futures_in_the_order_in_which_transfers_end,
    a_callback_may_wait_for_the_future_of_another_transfer,
    the_future_of_a_transfer_that_was_waited_for_is_settled,
    futures_of_a_destroyed_group_end_and_so_does_their_thread,
    futures_of_an_aborted_group_end,
    a_child_of_the_process_has_no_such_thread,
)

if __name__ == "__main__":
    if os.environ.get("RANKS_APART"):
        os.environ["COLLECTIVES_NODE"] = f"node-{os.environ['RANK']}"
    main(CHECKS, start=False)
