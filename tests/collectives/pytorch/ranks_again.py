"""Groups that end, fail and are made again; with ranks_stock.py. No group is made before."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.runtime.errors import (
    AbortedError,
    CollectiveError,
    CollectiveTimeout,
    MismatchError,
    UsageError,
)
from muster_collectives.torch import stats
from tests.collectives.support.torch_ranks import World

warnings.filterwarnings("ignore")
LIVES = 100
SHORT = timedelta(seconds=4)  # also for the making of the group


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return sum(
        "memfd" in line or "/dev/shm" in line
        for line in Path("/proc/self/maps").read_text().splitlines()
    )


def works(world: World, group: Any = None, size: int = 0) -> None:
    one = torch.ones(4)
    dist.all_reduce(one, group=group)
    assert one.tolist() == [float(size or world.size)] * 4


def a_hundred_lives_leave_nothing_behind(world: World) -> None:
    counts = []
    for life in range(LIVES):
        world.start()
        works(world)
        sub = dist.new_group([0, 1])
        work = dist.all_reduce(torch.ones(2), async_op=True)  # starts the lane's thread
        if world.rank < 2:
            works(world, sub, 2)
        work.wait()
        dist.destroy_process_group()
        del sub, work
        if life in (9, LIVES - 1):
            gc.collect()
            counts.append((descriptors(), mappings(), threading.active_count()))
    assert counts[0] == counts[1], counts


def a_name_that_comes_back_has_its_new_members(world: World) -> None:
    world.start()
    for ranks in ([0, 1], [1, 2], [0, 1, 2], [0, 2]):
        # as a job that was begun again in the same store: the counter of names begins anew
        dist.distributed_c10d._world.group_count = 1
        group = dist.new_group(ranks)
        if world.rank in ranks:
            works(world, group, len(ranks))
            dist.destroy_process_group(group)
    dist.distributed_c10d._world.group_count = 1
    world.drop()


def a_rank_that_does_not_come_is_named_by_all_who_wait(world: World) -> None:
    world.start()
    group = dist.new_group(timeout=SHORT)
    works(world, group)
    failure: CollectiveError | None = None
    if world.rank != 1:
        try:
            dist.all_reduce(torch.ones(1000), group=group)
        except CollectiveTimeout as error:
            failure = error
        assert failure is not None
        assert failure.ranks == (1,), failure
        text = str(failure)
        assert "all_reduce" in text, text
        assert "rank 1" in text, text
        assert "1000 float32" in text, text
    dist.barrier()
    # the group is broken on every rank, and says so at once
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(1000), group=group)
        except CollectiveError:
            continue
        raise AssertionError("a broken group went on")
    works(world)  # other groups are not
    dist.destroy_process_group(group)
    again = dist.new_group()
    works(world, again)
    world.drop()


def different_calls_are_an_error_on_every_rank(world: World) -> None:
    """And each rank's last calls are written down for whoever looks for the cause."""
    os.environ["COLLECTIVES_FLIGHT_DIR"] = str(world.folder / "flight")
    world.start()
    for ours, theirs in (
        (lambda group: dist.all_reduce(torch.ones(4), group=group),
         lambda group: dist.all_reduce(torch.ones(5), group=group)),
        (lambda group: dist.all_reduce(torch.ones(4), group=group),
         lambda group: dist.all_reduce(torch.ones(4, dtype=torch.float64), group=group)),
        (lambda group: dist.broadcast(torch.ones(4), 0, group=group),
         lambda group: dist.barrier(group=group)),
    ):  # fmt: skip
        group = dist.new_group()
        try:
            (ours if world.rank == 0 else theirs)(group)
        except MismatchError as error:
            assert "rank" in str(error)
        else:
            raise AssertionError("ranks that differ went on")
        dist.destroy_process_group(group)
    world.drop()
    del os.environ["COLLECTIVES_FLIGHT_DIR"]
    logs = [
        json.loads(path.read_text())
        for path in (world.folder / "flight").glob(f"*rank{world.rank}.json")
    ]
    assert [log["error"]["kind"] for log in logs] == ["MismatchError"] * 3, logs
    assert all(
        log["operations"][-1]["verb"] in ("all_reduce", "broadcast", "barrier") for log in logs
    )


def a_signal_handler_amid_a_call_is_refused_the_group_and_the_call_goes_on(world: World) -> None:
    """It interrupts whoever would have to give way to it."""
    told: list[str] = []

    def handle(number: int, frame: object) -> None:
        try:
            dist.all_reduce(torch.ones(1))
        except UsageError as error:
            told.append(str(error))
        world.store.set("handled", "1")

    for way in ("lazy", "lane"):
        os.environ["COLLECTIVES_ASYNC"] = way
        world.start()
        dist.all_reduce(torch.ones(1), async_op=True).wait()  # from now on through the lane
        if world.rank == 0:
            before = signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            dist.barrier()
            signal.signal(signal.SIGALRM, before)
            assert len(told) == 1 and "group 'world': a signal handler" in told.pop(), told
            world.store.delete_key("handled")
        else:
            world.store.wait(["handled"])
            dist.barrier()
        dist.barrier()
        world.drop()
    del os.environ["COLLECTIVES_ASYNC"]


def an_error_of_an_asynchronous_call_comes_with_its_wait(world: World) -> None:
    for way in ("lazy", "lane"):
        os.environ["COLLECTIVES_ASYNC"] = way
        world.start()
        group = dist.new_group(timeout=SHORT)
        if world.rank == 0:
            work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
            future = work.get_future() if way == "lane" else None
            try:
                work.wait()
            except CollectiveTimeout as error:
                assert error.ranks == tuple(range(1, world.size)), error
            else:
                raise AssertionError("nobody came and the wait ended well")
            assert work.is_completed()
            assert not work.is_success()
            assert work.exception() is not None
            if future is not None:
                try:
                    future.wait()
                except RuntimeError as error:
                    assert "rank" in str(error)
                else:
                    raise AssertionError("the future ended well")
        dist.barrier()
        world.drop()
    del os.environ["COLLECTIVES_ASYNC"]


def an_abort_ends_what_is_under_way(world: World) -> None:
    world.start()
    group = dist.new_group()
    works(world, group)
    if world.rank == 0:
        timer = threading.Timer(0.3, group.abort)
        timer.start()
        try:
            dist.all_reduce(torch.ones(3), group=group)
        except AbortedError:
            pass
        else:
            raise AssertionError("an aborted call ended well")
        timer.join()
        try:
            dist.all_reduce(torch.ones(3), group=group)
        except AbortedError:
            pass
    dist.barrier()
    if world.rank:
        try:
            dist.all_reduce(torch.ones(3), group=group)
        except CollectiveError:
            pass
        else:
            raise AssertionError("the others did not learn of the abort")
    dist.destroy_process_group(group)
    again = dist.new_group()
    works(world, again)
    world.drop()


def timeouts_of_groups_and_calls_are_kept(world: World) -> None:
    world.start(timeout_s=30)
    group = dist.new_group(timeout=timedelta(seconds=30))
    if world.rank == 0:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.7)
        try:
            group.allreduce([torch.ones(2)], options).wait()
        except CollectiveTimeout as error:
            assert "0.7" in str(error), error
        else:
            raise AssertionError("the timeout of the call was not kept")
    dist.barrier()
    world.drop()


def a_summary_is_written_when_a_group_ends(world: World) -> None:
    folder = world.folder / f"summaries-{world.rank}"  # the other rank may be writing its own still
    os.environ["COLLECTIVES_SUMMARY_DIR"] = str(folder)
    world.start()
    for _ in range(5):
        dist.all_reduce(torch.ones(256))
    group = dist.new_group([0, 1])
    world.drop()
    del group
    del os.environ["COLLECTIVES_SUMMARY_DIR"]
    mine = [
        json.loads(path.read_text()) for path in folder.glob(f"collectives-world-{world.rank}-*")
    ]
    assert len(mine) == 1
    found = mine[0]
    assert (found["rank"], found["size"], found["group"]) == (world.rank, world.size, "world")
    assert (found["layer"], found["global_ranks"]) == ("torch", list(range(world.size)))
    sums = found["verbs"]["all_reduce"]
    assert (sums["calls"], sums["bytes"]) == (5, 5 * 1024)
    assert 0 < sums["time_s"] <= found["time_s"]
    assert len(found["waits_s"]) == world.size
    assert 0 <= found["wait_s"] <= found["time_s"] + 1e-3
    assert found["ended_s"] >= found["began_s"]
    assert not list(folder.glob(".collectives-*"))


def a_destroyed_group_says_so(world: World) -> None:
    world.start()
    group = dist.new_group()
    works(world, group)
    dist.destroy_process_group(group)
    try:
        group.allreduce([torch.ones(1)])
    except RuntimeError as error:
        assert "destroyed" in str(error)
    else:
        raise AssertionError("a destroyed group went on")
    assert stats().core is not None
    world.drop()


CHECKS = (
    a_hundred_lives_leave_nothing_behind,
    a_name_that_comes_back_has_its_new_members,
    a_rank_that_does_not_come_is_named_by_all_who_wait,
    different_calls_are_an_error_on_every_rank,
    a_signal_handler_amid_a_call_is_refused_the_group_and_the_call_goes_on,
    an_error_of_an_asynchronous_call_comes_with_its_wait,
    an_abort_ends_what_is_under_way,
    timeouts_of_groups_and_calls_are_kept,
    a_summary_is_written_when_a_group_ends,
    a_destroyed_group_says_so,
)
