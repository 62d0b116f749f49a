"""An optimizer that applies the gradients of all ranks: of Keras, or of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from muster_collectives.runtime.types import ReduceOp
from muster_collectives.tensorflow.compression import Compression
from muster_collectives.tensorflow.keras_optimizer import Reduce, keras_optimizer
from muster_collectives.tensorflow.operations import reduce_all


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

        def apply_gradients(self, *arguments: Any, **options: Any) -> Any:
            return optimizer.apply_gradients(*arguments, **options)

        def get_slot(self, *arguments: Any, **options: Any) -> Any:
            return optimizer.get_slot(*arguments, **options)

        def get_slot_names(self, *arguments: Any, **options: Any) -> Any:
            return optimizer.get_slot_names(*arguments, **options)

        def variables(self) -> Any:
            return optimizer.variables()

    return Distributed(use_locking, name or f"Distributed{type(optimizer).__name__}")
