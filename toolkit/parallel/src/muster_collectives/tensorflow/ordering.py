"""The order of collectives in a graph of TensorFlow 1, the same on all ranks.

A control dependency on the collective before is the only order that such a graph has, and it also
makes that one run. So broadcasts, which begin a training, and reductions, which are in its steps,
have a chain each. What is out of band is in the chain of reductions only where that costs no feed
and no batch: where it depends itself on all that the collective before it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

# Operations that a session must feed, or that use something up.
_FED = frozenset({"Placeholder", "PlaceholderV2"})
_USED_UP = ("GetNext", "Dequeue", "ReaderRead", "Unstage")


class _Member(NamedTuple):
    operation: Any
    given: int
    optional: bool


class GraphOrder:
    """What is known of one graph: kept in its collections, and forgotten together with it."""

    _KEY = ("muster_collectives", "order")  # no string, or a Saver would try to write it down

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._chains: dict[str, list[_Member]] = {}  # each runs after all before it
        self._given: dict[Any, int] = {}  # by operation, a bit for each of those it depends on
        self._bits = 0

    @classmethod
    def of(cls, graph: Any) -> GraphOrder:
        kept: list[GraphOrder] = graph.get_collection_ref(cls._KEY)
        if not kept:
            kept.append(cls(graph))
        return kept[0]

    def make(
        self, collective: Callable[[], list[Any]], tensors: list[Any], chain: str, optional: bool
    ) -> list[Any]:
        """What `collective` makes of the tensors, after those of its chain that it can follow.

        An optional one neither follows nor precedes what is given other things than it.
        """
        members = self._chains.setdefault(chain, [])
        given = self._given_to(tensors)
        place = len(members)
        while place:
            last = members[place - 1]
            if not (optional or last.optional) or not last.given & ~given:
                break
            place -= 1
        with tf.control_dependencies([each.operation for each in members[:place][-1:]]):
            results = collective()
        if place == len(members) or not optional:  # else it is not in the chain
            members[place:] = [_Member(results[0].op, given, optional)]
        return results

    def _given_to(self, tensors: list[Any]) -> int:
        """As bits: what the tensors depend on that is fed or used up."""
        operations = self._graph.get_operations()  # in the order in which they were made
        for operation in operations[len(self._given) :]:
            self._given[operation] = self._given_of(operation)
        found = 0
        for tensor in tensors:
            found |= self._given[tensor.op]
        return found

    def _given_of(self, operation: Any) -> int:
        found = 0
        for one in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            found |= self._given.get(one, 0)  # a loop goes back to what is not made yet
        if operation.type in _FED or any(word in operation.type for word in _USED_UP):
            found |= 1 << self._bits
            self._bits += 1
        return found
