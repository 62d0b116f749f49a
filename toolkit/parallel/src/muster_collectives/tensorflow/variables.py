"""Variables that begin with the same values on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from muster_collectives.tensorflow.operations import broadcast_all


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> Any:
    """Assigns the root's values to the variables of every rank, eagerly or in a graph.

    All ranks name the same variables in the same order. An operation in a graph, else None.
    """
    listed = list(variables)
    if not listed:
        return None
    values = broadcast_all([tf.convert_to_tensor(each) for each in listed], root_rank)
    assigned = [each.assign(value) for each, value in zip(listed, values, strict=True)]
    return None if tf.executing_eagerly() else tf.group(*_operations(assigned))


def broadcast_global_variables(root_rank: int = 0) -> Any:
    """An operation that assigns the root's values to all global variables of the graph.

    Raises RuntimeError outside of graphs of TensorFlow 1, which alone have global variables.
    """
    if tf.executing_eagerly() or tf.inside_function():
        raise RuntimeError(
            "there are no global variables here: use broadcast_variables(model.variables)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts all global variables once a session is made, for `tf.estimator` and monitored
    sessions of TensorFlow 1. `device` is accepted and ignored."""

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()
        del device
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self._operation is None or self._operation.graph is not graph:
            self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        del coord
        session.run(self._operation)


def _operations(assigned: list[Any]) -> list[Any]:
    # a variable of Keras is assigned in the order of the program and returns nothing
    return [each for each in assigned if each is not None]
