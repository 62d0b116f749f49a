"""A gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from muster_collectives.runtime.types import ReduceOp
from muster_collectives.tensorflow.compression import Compression
from muster_collectives.tensorflow.operations import reduce_all


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
