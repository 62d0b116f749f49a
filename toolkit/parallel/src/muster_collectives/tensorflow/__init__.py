"""Distributed data parallel training with TensorFlow 2, over the collective core through numpy.

    import muster_collectives.tensorflow as dist
    dist.init()
    tape = dist.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    dist.broadcast_variables(model.variables, root_rank=0)   # after the first step

The names of the legacy `smdistributed.dataparallel.tensorflow`. Works eagerly, in `tf.function` and
in graphs of TensorFlow 1, not in functions that XLA compiles (jit_compile=True). Tensors on devices
go through host memory.
"""

from muster_collectives.runtime.types import ReduceOp
from muster_collectives.tensorflow.context import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from muster_collectives.tensorflow.operations import (
    BroadcastGlobalVariablesHook,
    Compression,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    oob_allreduce,
    overlap,
)
from muster_collectives.tensorflow.optimizer import DistributedGradientTape, DistributedOptimizer

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ReduceOp",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "overlap",
    "rank",
    "shutdown",
    "size",
]
