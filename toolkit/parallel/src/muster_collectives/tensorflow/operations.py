"""Collectives as TensorFlow operations, eagerly and in graphs, with gradients.

In a graph each is one stateful Python operation. TensorFlow keeps stateful operations of a
`tf.function` in the order of the program, so all ranks make the same calls in the same order; in a
graph of TensorFlow 1 explicit dependencies do (`ordering`).

Beside them, what gradients are cast to while they travel, and variables that begin with the same
values on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from muster_collectives.runtime.types import ReduceOp
from muster_collectives.tensorflow import context
from muster_collectives.tensorflow.ordering import GraphOrder
from muster_collectives.tensorflow.reductions import Array, broadcast_arrays, reduce_arrays


class Compressor:
    """No compression. Travels as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor that travels, and what `decompress` needs to know."""
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """The tensor in the type it had."""
        return tensor if tensor.dtype == context else tf.cast(tensor, context)


class HalfCompressor(Compressor):
    """Wider floats travel as fp16; beyond 65504 they become infinite on all ranks."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        wide = tensor.dtype in (tf.float32, tf.float64)
        return (tf.cast(tensor, tf.float16) if wide else tensor), tensor.dtype


class Compression:
    """The choices of `compression=`: `Compression.none` or `Compression.fp16`."""

    none = Compressor
    fp16 = HalfCompressor


def allreduce(
    tensor: Any,
    param_index: int = 0,
    num_params: int = 1,
    compression: Any = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
) -> Any:
    """The reduction of `tensor` over all ranks; IndexedSlices come back dense. Differentiable.

    `param_index` and `num_params` say which of how many tensors this is; each is reduced at once,
    so they change nothing. The gradient of a MIN or MAX is not defined: LookupError.
    """
    del param_index, num_params
    return _reduced(tensor, compression, ReduceOp(op), in_band=True)


def oob_allreduce(
    tensor: Any, compression: Any = Compression.none, op: ReduceOp = ReduceOp.AVERAGE
) -> Any:
    """As allreduce, out of band: for values that are no gradients, such as a loss to print.

    In a graph of TensorFlow 1 it runs without the other collectives, unless all that they are fed
    is needed for it too: one with inputs of its own wants a run, or a control dependency, of its
    own.
    """
    return _reduced(tensor, compression, ReduceOp(op), in_band=False)


def overlap(tensor: Any) -> Any:
    """The tensor as it is. Gradients are reduced when they are there in any case."""
    return tf.identity(tensor)


def broadcast(tensor: Any, root_rank: int = 0) -> Any:
    """The root's tensor on all ranks; shapes and types agree."""
    return broadcast_all([tf.convert_to_tensor(tensor)], root_rank)[0]


def reduce_all(
    tensors: Sequence[Any], compression: Any, op: ReduceOp, in_band: bool = True
) -> list[Any]:
    """Reductions of several tensors, some of which may be None; in as few calls as can be."""
    present = [index for index, tensor in enumerate(tensors) if tensor is not None]
    results: list[Any] = [None] * len(tensors)
    if not present:
        return results
    pairs = [compression.compress(tf.convert_to_tensor(tensors[index])) for index in present]
    reduced = _python(
        lambda arrays: context.with_world(lambda world: reduce_arrays(world, arrays, op)),
        [small for small, _ in pairs],
        "reductions",
        in_band,
    )
    for index, value, (_, before) in zip(present, reduced, pairs, strict=True):
        results[index] = compression.decompress(value, before)
    return results


def broadcast_all(tensors: Sequence[Any], root: int) -> list[Any]:
    """Of each tensor the root's."""
    return _python(
        lambda arrays: context.with_world(lambda world: broadcast_arrays(world, arrays, root)),
        list(tensors),
        "broadcasts",
    )


def _reduced(tensor: Any, compression: Any, op: ReduceOp, in_band: bool) -> Any:
    @tf.custom_gradient  # type: ignore[untyped-decorator]  # no types in it
    def reduced(value: Any) -> tuple[Any, Callable[[Any], Any]]:
        def gradient(upstream: Any) -> Any:
            if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
                raise LookupError(f"allreduce with {op} has no gradient: use SUM or AVERAGE")
            return reduce_all([upstream], Compression.none, op, in_band)[0]

        return reduce_all([value], Compression.none, op, in_band)[0], gradient

    small, before = compression.compress(tf.convert_to_tensor(tensor))
    return compression.decompress(reduced(small), before)


def _python(
    action: Callable[[list[Array]], list[Array]],
    tensors: list[Any],
    chain: str,
    in_band: bool = True,
) -> list[Any]:
    """`action` on the tensors' arrays: at once, or as an operation of the graph being built."""
    if tf.executing_eagerly():
        arrays = action([tensor.numpy() for tensor in tensors])
        return [tf.convert_to_tensor(array) for array in arrays]

    def made() -> list[Any]:
        types = [tensor.dtype for tensor in tensors]
        return list(tf.numpy_function(lambda *arrays: action(list(arrays)), tensors, types))

    if tf.inside_function():  # tf.function keeps the order itself
        results = made()
    else:
        order = GraphOrder.of(tf.compat.v1.get_default_graph())
        results = order.make(made, tensors, chain, optional=not in_band)
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return results


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> Any:
    """Assigns the root's values to the variables of every rank, eagerly or in a graph.

    All ranks name the same variables in the same order. An operation in a graph, else None.
    """
    listed = list(variables)
    if not listed:
        return None
    values = broadcast_all([tf.convert_to_tensor(each) for each in listed], root_rank)
    assigned = [each.assign(value) for each, value in zip(listed, values, strict=True)]
    # a variable of Keras is assigned in the order of the program and returns nothing
    made = [each for each in assigned if each is not None]
    return None if tf.executing_eagerly() else tf.group(*made)


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
