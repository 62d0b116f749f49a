"""A rank fails in a call while others still are in the one before it; with ranks_stock.py.

Between nodes who has done its part of a reduce or a broadcast goes on before the others. Whatever
it then fails with, the call before it ends well on the others or with what holds that call up.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.runtime.errors import (
    AbortedError,
    CollectiveError,
    CollectiveTimeout,
    MismatchError,
)
from tests.collectives.support.torch_ranks import World

warnings.filterwarnings("ignore")
LIMIT = timedelta(seconds=6)  # also for the making of the group
SHORT = timedelta(seconds=0.5)


class Case:
    """A group whose ranks lie on the nodes that were named, and words between its ranks."""

    def __init__(self, world: World, name: str) -> None:
        self.rank = world.rank
        self.group = dist.new_group(timeout=LIMIT)
        self._words = dist.PrefixStore(f"later {name}", world.store)
        dist.all_reduce(torch.ones(4), group=self.group)
        # it has ended on all: an abort would reach those who still are in it
        self.say(f"in {world.rank}")
        self.hear(*(f"in {rank}" for rank in range(world.size)))

    def say(self, word: str) -> None:
        self._words.set(word, "1")

    def hear(self, *words: str) -> None:
        self._words.wait(list(words), timedelta(seconds=20))

    def reduce_to_1(self) -> Any:
        """The call in which rank 1 is for as long as another has not come."""
        return dist.reduce(torch.ones(4), 1, group=self.group, async_op=True)


@contextmanager
def case(world: World, name: str, nodes: Sequence[str]) -> Iterator[Case]:
    os.environ["COLLECTIVES_ASYNC"] = "lane"
    os.environ["COLLECTIVES_NODE"] = nodes[world.rank]
    world.start()
    try:
        made = Case(world, name)
        try:
            yield made
        finally:  # whoever leaves early would be missed by those who are not done
            made.say(f"end {world.rank}")
            made.hear(*(f"end {rank}" for rank in range(world.size)))
    finally:
        world.drop()
        del os.environ["COLLECTIVES_ASYNC"], os.environ["COLLECTIVES_NODE"]


def end_of(work: Any) -> CollectiveError | None:
    """What it failed with."""
    try:
        work.wait()
    except CollectiveError as error:
        return error
    return None


def gives_up(world: World, name: str, nodes: Sequence[str]) -> None:
    """Rank 0 gives up operation 3; what holds operation 2 up is rank 2."""
    with case(world, name, nodes) as at:
        if at.rank == 0:
            assert at.reduce_to_1().wait()
            options = dist.AllreduceOptions()
            options.timeout = SHORT
            error = end_of(at.group.allreduce([torch.ones(4)], options))
            assert isinstance(error, CollectiveTimeout) and 1 in error.ranks, error
        elif at.rank == 1:
            earlier = at.reduce_to_1()
            later = dist.all_reduce(torch.ones(4), group=at.group, async_op=True)
            error = end_of(earlier)
            at.say("over")
            assert isinstance(error, CollectiveTimeout), error
            # whom its own call misses, or which call was given up, and for whom
            given_up = "rank 1 has not come to operation 3, all_reduce" in str(error)
            assert error.operation == 2 and (error.ranks == (2,) or given_up), error
            assert end_of(later) is not None  # the group is broken
        else:
            at.hear("over")
            assert end_of(at.reduce_to_1()) is not None


def a_rank_that_gives_up_a_later_call_does_not_end_an_earlier_one(world: World) -> None:
    gives_up(world, "far", ("a", "b", "c"))


def a_rank_of_the_same_node_that_gives_up_a_later_call_does_not_end_it(world: World) -> None:
    gives_up(world, "near", ("a", "a", "b"))


def an_abort_in_a_later_call_is_told_or_what_holds_the_earlier_one_up(world: World) -> None:
    for name, nodes in (("abort near", ("a", "a", "b")), ("abort far", ("a", "b", "c"))):
        with case(world, name, nodes) as at:
            if at.rank == 2:
                at.hear("over")
                assert end_of(at.reduce_to_1()) is not None
                continue
            earlier = at.reduce_to_1()
            if at.rank == 0:
                assert end_of(earlier) is None
                later = dist.all_reduce(torch.ones(4), group=at.group, async_op=True)
                at.group.abort()
                assert isinstance(end_of(later), AbortedError)
            else:
                error = end_of(earlier)
                at.say("over")
                late = isinstance(error, CollectiveTimeout) and error.ranks == (2,)
                assert late or isinstance(error, AbortedError), error


def ranks_that_differ_in_a_later_call_leave_an_earlier_one_its_data(world: World) -> None:
    """Ranks 0 and 2 share a node; rank 1 comes to the broadcast when they have failed."""
    with case(world, "differ", ("a", "b", "a")) as at:
        value = torch.full((100_000,), float(at.rank))
        if at.rank == 1:
            at.hear("failed 0", "failed 2")
            error = end_of(dist.broadcast(value, 0, group=at.group, async_op=True))
            if error is None:
                assert bool((value == 0).all())
            else:
                assert isinstance(error, MismatchError) and set(error.ranks) <= {0, 2}, error
        else:
            earlier = dist.broadcast(value, 0, group=at.group, async_op=True)
            kind = torch.float32 if at.rank == 0 else torch.float64
            later = dist.all_reduce(torch.ones(4, dtype=kind), group=at.group, async_op=True)
            assert end_of(earlier) is None and bool((value == 0).all())
            error = end_of(later)
            at.say(f"failed {at.rank}")
            assert isinstance(error, MismatchError) and error.ranks == (2 - at.rank,), error


def a_call_before_one_in_which_ranks_differ_ends_well(world: World) -> None:
    for nodes in (("a", "a", "a"), ("a", "a", "b"), ("a", "b", "c")):
        with case(world, f"next {''.join(nodes)}", nodes) as at:
            value = torch.full((300_000,), at.rank + 1.0)
            earlier = dist.all_reduce(value, group=at.group, async_op=True)
            count = 5 if at.rank == 0 else 4
            later = dist.all_reduce(torch.ones(count), group=at.group, async_op=True)
            assert end_of(earlier) is None and bool((value == 6).all())
            error = end_of(later)
            assert isinstance(error, MismatchError), error
            assert (0 in error.ranks) == (at.rank != 0), error


def a_wrong_call_of_one_rank_leaves_the_others_call_and_the_next_alone(world: World) -> None:
    for nodes in (("a", "a", "b"), ("a", "b", "c")):
        with case(world, f"wrong {''.join(nodes)}", nodes) as at:
            if at.rank == 2:
                at.hear("wrong")
            earlier = at.reduce_to_1()
            if at.rank == 0:
                try:
                    dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(4), group=at.group)
                except ValueError:
                    at.say("wrong")
            assert end_of(earlier) is None
            value = torch.ones(2)
            dist.all_reduce(value, group=at.group)
            assert value.tolist() == [3.0, 3.0]


CHECKS = (
    a_rank_that_gives_up_a_later_call_does_not_end_an_earlier_one,
    a_rank_of_the_same_node_that_gives_up_a_later_call_does_not_end_it,
    an_abort_in_a_later_call_is_told_or_what_holds_the_earlier_one_up,
    ranks_that_differ_in_a_later_call_leave_an_earlier_one_its_data,
    a_call_before_one_in_which_ranks_differ_ends_well,
    a_wrong_call_of_one_rank_leaves_the_others_call_and_the_next_alone,
)
