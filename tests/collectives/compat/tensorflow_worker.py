"""The TensorFlow API on two ranks; run by test_compat_tensorflow.py in TensorFlow's environment."""

from __future__ import annotations

import os
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as dist

v1 = tf.compat.v1


def equal(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-6)


def reductions(rank: int) -> None:
    for op, expected in (
        (dist.ReduceOp.AVERAGE, 1.5), (dist.ReduceOp.SUM, 3.0),
        (dist.ReduceOp.MIN, 1.0), (dist.ReduceOp.MAX, 2.0),
    ):  # fmt: skip
        for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
            tensor = tf.cast(tf.fill([3, 5], rank + 1.0), dtype)
            reduced = dist.allreduce(tensor, param_index=0, num_params=1, op=op)
            assert reduced.dtype == dtype and reduced.shape == (3, 5)
            equal(tf.cast(reduced, tf.float32), np.full((3, 5), expected))
    equal(dist.oob_allreduce(tf.constant([rank * 3, 5])), [1, 5])  # integers: rounded down
    for dtype in (tf.uint8, tf.int8, tf.int32):  # also where the type has no place for the sum
        ends = tf.constant([dtype.max, dtype.max - 100 * rank, dtype.min, 5 - rank], tf.int64)
        averaged = dist.allreduce(tf.cast(ends, dtype))
        assert averaged.dtype == dtype
        equal(averaged, [dtype.max, dtype.max - 50, dtype.min, 4])
    equal(dist.allreduce(tf.constant([2**53 + 1, -rank], tf.int64)) - 2**53, [1, -(2**53) - 1])
    equal(dist.allreduce(tf.constant([rank + 1.0]), 0, 1, dist.Compression.fp16), [1.5])
    sparse = tf.IndexedSlices(tf.fill([1, 2], rank + 1.0), tf.constant([rank]), (3, 2))
    equal(dist.allreduce(sparse, op=dist.ReduceOp.SUM), [[1, 1], [2, 2], [0, 0]])
    equal(dist.broadcast(tf.constant([rank, 7 - rank]), root_rank=1), [1, 6])
    equal(dist.broadcast(tf.constant([bool(rank)]), 0), [False])
    equal(dist.overlap(tf.constant([1.0])), [1.0])
    assert dist.allreduce(tf.zeros([0, 3])).shape == (0, 3)
    try:
        dist.allreduce(tf.constant(["text"]))
    except TypeError as error:
        assert "cannot be reduced" in str(error)
    else:
        raise AssertionError("text was reduced")


def gradients_of_reductions(rank: int) -> None:
    with tf.GradientTape() as tape:
        value = tf.Variable([rank + 1.0, 2.0])
        total = tf.reduce_sum(dist.allreduce(value, op=dist.ReduceOp.SUM) ** 2)
    equal(tape.gradient(total, value), [2 * 2 * 3.0, 2 * 2 * 4.0])


def order_in_functions(rank: int) -> None:
    """Many collectives of one function, which TensorFlow could run in any order."""

    @tf.function
    def many(value: Any) -> Any:
        results = [dist.allreduce(value * float(k), op=dist.ReduceOp.SUM) for k in range(12)]
        return tf.stack(results)

    for _ in range(3):
        equal(many(tf.constant(rank + 1.0)), [3.0 * k for k in range(12)])


def tape(rank: int) -> None:
    def loss_of(weights: Any, table: Any) -> Any:
        rows = tf.gather(table, [rank, 2])  # sparse gradient
        return tf.reduce_sum(weights * (rank + 1.0)) + tf.reduce_sum(rows)

    weights, table, idle = tf.Variable([1.0, 2.0]), tf.Variable(tf.ones([3, 2])), tf.Variable(1.0)

    def step() -> Any:
        with tf.GradientTape() as recorded:
            loss = loss_of(weights, table)
        distributed = dist.DistributedGradientTape(recorded)
        return distributed.gradient(loss, {"w": weights, "t": table, "idle": idle})

    for way in (step, tf.function(step)):
        found = way()
        equal(found["w"], [1.5, 1.5])
        equal(found["t"], [[0.5, 0.5], [0.5, 0.5], [1, 1]])
        assert found["idle"] is None
    with dist.DistributedGradientTape(tf.GradientTape(), op=dist.ReduceOp.SUM) as both:
        loss = loss_of(weights, table)
    equal(both.gradient(loss, weights), [3.0, 3.0])


def keras(rank: int) -> None:
    tf.keras.utils.set_random_seed(rank)  # other values on each rank, until they are broadcast
    model = tf.keras.Sequential([tf.keras.layers.Dense(4, activation="tanh"),
                                 tf.keras.layers.Dense(1)])  # fmt: skip
    data = np.random.default_rng(rank).normal(size=(32, 3)).astype(np.float32)
    target = data.sum(axis=1, keepdims=True)
    model.build((None, 3))
    dist.broadcast_variables(model.variables, root_rank=0)
    optimizer = dist.DistributedOptimizer(tf.keras.optimizers.SGD(0.05, momentum=0.9))
    assert isinstance(optimizer, tf.keras.optimizers.SGD)
    model.compile(optimizer=optimizer, loss="mse")
    history = model.fit(data, target, batch_size=8, epochs=3, verbose=0, shuffle=False)
    losses = history.history["loss"]
    assert losses[-1] < losses[0], losses
    for variable in model.trainable_variables:  # equal to that of the other rank
        value = tf.convert_to_tensor(variable)
        equal(value, dist.broadcast(value, 0))
    try:
        dist.DistributedOptimizer(tf.keras.optimizers.SGD(), backward_passes_per_step=2)
    except ValueError as error:
        assert "backward_passes_per_step" in str(error)
    else:
        raise AssertionError("2 passes were accepted")


def graphs_of_version_one(rank: int) -> None:
    with tf.Graph().as_default():
        weights = v1.get_variable("w", initializer=tf.constant([float(rank), 5.0 * rank]))
        loss = tf.reduce_sum(weights * (rank + 1.0))
        optimizer = dist.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(loss)
        hook = dist.BroadcastGlobalVariablesHook(1)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            equal(session.run(weights), [1.0, 5.0])
            session.run(train)
            equal(session.run(weights), [-0.5, 3.5])
    try:
        dist.broadcast_global_variables(0)
    except RuntimeError as error:
        assert "broadcast_variables" in str(error)
    else:
        raise AssertionError("there were global variables")


def main() -> None:
    try:
        dist.rank()
    except RuntimeError as error:
        assert "init()" in str(error)
    else:
        raise AssertionError("a rank without a group")
    for _ in range(2):
        dist.init()
    rank = dist.rank()
    assert (rank, dist.size()) == (int(os.environ["OMPI_COMM_WORLD_RANK"]), 2)
    assert (dist.local_rank(), dist.local_size()) == (rank, 2)
    for check in (reductions, gradients_of_reductions, order_in_functions, tape, keras,
                  graphs_of_version_one):  # fmt: skip
        check(rank)
        print("passed", check.__name__, flush=True)
    dist.shutdown()
    dist.shutdown()
    print("done", flush=True)


if __name__ == "__main__":
    main()
