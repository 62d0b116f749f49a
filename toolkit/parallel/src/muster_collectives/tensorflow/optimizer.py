"""A gradient tape whose gradients are those of all ranks, and optimizers that reduce over all ranks
what they apply.

A LossScaleOptimizer applies the gradients only where they are finite. So it must see the reduced
ones, which are the same on all ranks, and the reduction comes before it: if it came in it, a rank
whose own gradients overflow would leave the others alone in a collective.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from muster_collectives.runtime.types import ReduceOp
from muster_collectives.tensorflow.operations import Compression, reduce_all


class DistributedGradientTape:
    """Wraps a `tf.GradientTape`, recording or recorded; `gradient` reduces over all ranks.

    All gradients travel in one call, so every rank asks for those of the same sources. Sparse ones
    come back dense. `device_dense`, `device_sparse` and `sparse_as_dense` are accepted and ignored.
    """

    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = True,
        op: ReduceOp = ReduceOp.AVERAGE,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
    ) -> None:
        del device_dense, device_sparse, sparse_as_dense, persistent, watch_accessed_variables
        self._tape, self._compression, self._op = gradtape, compression, ReduceOp(op)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, **options: Any
    ) -> Any:
        """As of `tf.GradientTape`; a source without a gradient has none on all ranks."""
        local = self._tape.gradient(target, sources, output_gradients, **options)
        flat = tf.nest.flatten(local)
        return tf.nest.pack_sequence_as(sources, reduce_all(flat, self._compression, self._op))


Reduce = Callable[[list[Any]], list[Any]]
_KERAS = ("keras", "tf_keras")


def keras_optimizer(optimizer: Any, reduce: Reduce, name: str | None) -> Any:
    """A new optimizer of a class derived from that of `optimizer`, or from LossScaleOptimizer."""
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    scaler = _scaler_of(optimizer)
    if scaler is None:
        result: Any = _distributed(type(optimizer), reduce).from_config(config)
    else:
        inner = type(optimizer).from_config
        kind = type(scaler(inner(dict(config))))  # Keras 2 chooses one of its classes
        result = _distributed(kind, reduce)(inner(config))
        result._muster_scaled = False
    result._muster_complete = True
    return result


def _scaler_of(optimizer: Any) -> Any:
    """The LossScaleOptimizer that `compile` would put around this one; None if it would not."""
    roots = [each.__module__.partition(".")[0] for each in type(optimizer).__mro__]
    family = next((root for root in roots if root in _KERAS), None)
    if family is None:
        return None
    precision = importlib.import_module(family).mixed_precision
    mixed = precision.global_policy().name == "mixed_float16"
    scaler = precision.LossScaleOptimizer
    return scaler if mixed and not isinstance(optimizer, scaler) else None


def _distributed(base: Any, reduce: Reduce) -> Any:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        reduced = reduce(list(grads))
        if self._muster_scaled:
            return base.apply(self, reduced, trainable_variables)
        # a loop of one's own that does not scale its loss: there is nothing to scale back
        return self.inner_optimizer.apply(reduced, trainable_variables)

    def apply_pairs(self: Any, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        pairs = zip(reduce(list(gradients)), variables, strict=True)
        return base.apply_gradients(self, list(pairs), *arguments, **options)

    def scale_loss(self: Any, loss: Any) -> Any:
        self._muster_scaled = True
        return base.scale_loss(self, loss)

    def set_attribute(self: Any, name: str, value: Any) -> None:
        # all that a loss scale tells the optimizer that it is put around: of Keras 3, of Keras 2
        scaled = name == "loss_scale_factor" and value is None
        if self._muster_complete and (scaled or name == "_is_wrapped_by_loss_scale_optimizer"):
            raise ValueError(_OUTSIDE)
        base.__setattr__(self, name, value)

    # Keras 3 applies through `apply`, Keras 2 through `apply_gradients`
    own: dict[str, Any] = {"apply_gradients": apply_pairs}
    if hasattr(base, "apply"):
        own = {"apply": apply, "scale_loss": scale_loss}
    # the module too is the base's, so that a model that was saved finds the base when it is loaded
    place = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    state = {"_muster_scaled": True, "_muster_complete": False, "__setattr__": set_attribute}
    return type(base)(base.__name__, (base,), {**place, **state, **own})


_OUTSIDE = (
    "an optimizer was put around a DistributedOptimizer (compile does so for a model whose own "
    "policy is mixed_float16), and ranks would part where the gradients of one overflow: write "
    "DistributedOptimizer(LossScaleOptimizer(optimizer))"
)


def DistributedOptimizer(  # noqa: N802  # the name is the legacy API's
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = True,
    op: ReduceOp = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
) -> Any:
    """The optimizer, with gradients reduced over all ranks before they are applied.

    A Keras optimizer gives a new one of its class, made from its configuration, so wrap it before
    it is used, and compile the model with jit_compile=False on devices; one of `tf.compat.v1.train`
    is wrapped. Under the global policy mixed_float16 it comes back in a LossScaleOptimizer, which
    compile would put around it otherwise. Sparse gradients come back dense. `device_*` and
    `sparse_as_dense` are ignored. Raises ValueError for backward_passes_per_step other than 1, and
    later where a LossScaleOptimizer is put around the result; TypeError for another object.
    """
    del device_dense, device_sparse, sparse_as_dense
    if backward_passes_per_step != 1:
        raise ValueError(
            f"backward_passes_per_step is {backward_passes_per_step}: only 1 is supported; "
            "add gradients up in the script, or use gradient_accumulation_steps of Keras"
        )

    def reduce(gradients: list[Any]) -> list[Any]:
        return reduce_all(gradients, compression, ReduceOp(op))

    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _graph_optimizer(optimizer, reduce, name, use_locking)
    if hasattr(optimizer, "get_config") and hasattr(optimizer, "apply_gradients"):
        return keras_optimizer(optimizer, reduce, name)
    raise TypeError(f"{type(optimizer).__name__} is no optimizer of Keras or tf.compat.v1.train")


def _graph_optimizer(optimizer: Any, reduce: Reduce, name: str | None, use_locking: bool) -> Any:
    # the class is made here: without TensorFlow 1's API its base would not be there at import
    class Distributed(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # no types in it
        def compute_gradients(self, *arguments: Any, **options: Any) -> Any:
            pairs = optimizer.compute_gradients(*arguments, **options)
            gradients = reduce([gradient for gradient, _ in pairs])
            return [
                (gradient, variable)
                for gradient, (_, variable) in zip(gradients, pairs, strict=True)
            ]

        apply_gradients = staticmethod(optimizer.apply_gradients)
        get_slot = staticmethod(optimizer.get_slot)
        get_slot_names = staticmethod(optimizer.get_slot_names)
        variables = staticmethod(optimizer.variables)

    return Distributed(use_locking, name or f"Distributed{type(optimizer).__name__}")
