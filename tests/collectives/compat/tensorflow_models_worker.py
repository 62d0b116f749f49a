"""Models under Keras and graphs of TensorFlow 1 on two ranks; argument: which of the checks below.

Run by test_compat_tensorflow.py in TensorFlow's environment.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as dist

keras, v1 = tf.keras, tf.compat.v1


def equal(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-3, atol=1e-6)


def agree(values: Any) -> None:
    """All values are finite and the same on both ranks."""
    for value in values:
        own = tf.convert_to_tensor(value)
        assert np.isfinite(np.asarray(own)).all(), own
        np.testing.assert_array_equal(np.asarray(own), np.asarray(dist.broadcast(own, 0)))


def dense(**options: Any) -> Any:
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones", **options)])
    model.build((None, 3))
    return model


def an_overflow_is_skipped_by_all_ranks(rank: int) -> None:
    """Rank 1's second of four batches has no finite gradient."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    data = np.random.default_rng(rank).normal(scale=0.1, size=(16, 3)).astype(np.float32)
    if rank == 1:
        data[4:8] = 1e30
    for given in (keras.optimizers.SGD(0.05), scaled(keras.optimizers.SGD(0.05))):
        for eagerly in (False, True):
            model, optimizer = dense(), dist.DistributedOptimizer(given)
            model.compile(optimizer=optimizer, loss="mse", run_eagerly=eagerly)
            model.fit(data, np.zeros((16, 1)), batch_size=4, verbose=0, shuffle=False)
            agree([*model.variables, *model.optimizer.variables])
            equal(model.optimizer.dynamic_scale, 2.0**14)  # halved once, on both
            equal(model.optimizer.iterations, 3)  # four without the one
            assert model.optimizer is optimizer


def an_overflow_under_the_tape_is_seen_by_all_ranks(rank: int) -> None:
    """The tape reduces scaled gradients, so that the loss scale sees those of all ranks."""
    optimizer, weights = scaled(keras.optimizers.SGD(1.0)), keras.Variable([2.0, 4.0])

    def step(factor: Any) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weights.value * factor))
        found = dist.DistributedGradientTape(tape).gradient(loss, [weights.value])
        optimizer.apply_gradients(zip(found, [weights], strict=True))

    for way in (step, tf.function(step)):
        for factor in (1.0 + rank, float("inf") if rank else 1.0, -1.0 - rank):
            way(tf.constant(factor))
        agree([weights, *optimizer.variables])
        equal(weights, [2.0, 4.0])
    equal(optimizer.dynamic_scale, 2.0**13)


def scaled(optimizer: Any) -> Any:
    return keras.mixed_precision.LossScaleOptimizer(optimizer)


def a_loss_that_is_not_scaled_is_not_unscaled(rank: int) -> None:
    """Loops of one's own under the policy that make no use of loss scaling."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    optimizer = dist.DistributedOptimizer(keras.optimizers.SGD(1.0))
    weights = keras.Variable([2.0, 4.0])
    optimizer.apply_gradients([(tf.constant([1.0 + rank, 1.0]), weights)])
    equal(weights, [0.5, 3.0])
    loss = optimizer.scale_loss(tf.constant(1.0))
    optimizer.apply_gradients([(tf.fill([2], loss * (1.0 + rank)), weights)])
    equal(weights, [-1.0, 1.5])


def a_loss_scale_around_is_refused(rank: int) -> None:
    """The policy of a model alone, which nobody knows when the optimizer is wrapped."""
    model = dense(dtype="mixed_float16")
    model.dtype_policy = keras.mixed_precision.Policy("mixed_float16")
    refused(lambda: model.compile(dist.DistributedOptimizer(keras.optimizers.SGD()), loss="mse"))
    refused(lambda: scaled(dist.DistributedOptimizer(keras.optimizers.SGD())))
    model.compile(dist.DistributedOptimizer(scaled(keras.optimizers.SGD(0.05))), loss="mse")
    data = np.full((8, 3), 1e30 if rank else 1.0, np.float32)
    model.fit(data, np.ones((8, 1)), batch_size=4, verbose=0)
    agree([*model.variables, *model.optimizer.variables])


def refused(action: Callable[[], Any]) -> None:
    try:
        action()
    except ValueError as error:
        assert "DistributedOptimizer(LossScaleOptimizer(" in str(error), error
    else:
        raise AssertionError("a loss scale around a distributed optimizer was accepted")


def a_saved_model_loads(rank: int) -> None:
    """With the optimizer's state; the optimizer that is loaded is the plain one."""
    for policy in ("float32", "mixed_float16"):
        keras.mixed_precision.set_global_policy(policy)
        model = dense()
        model.compile(dist.DistributedOptimizer(keras.optimizers.Adam(0.125)), loss="mse")
        model.fit(np.ones((4, 3)), np.full((4, 1), rank), verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            loaded = keras.models.load_model(f"{folder}/model.keras")
        plain = getattr(loaded.optimizer, "inner_optimizer", loaded.optimizer)
        assert type(plain) is keras.optimizers.Adam, type(plain)
        equal(plain.learning_rate, 0.125)
        for found, expected in zip(loaded.optimizer.variables, model.optimizer.variables,
                                   strict=True):  # fmt: skip
            equal(found, expected)
        again = dist.DistributedOptimizer(plain)
        loaded.compile(again, loss="mse")
        loaded.fit(np.ones((4, 3)), np.full((4, 1), rank), verbose=0)
        agree(loaded.variables)
        clone = type(again).from_config(again.get_config())
        weights = keras.Variable([0.0])
        clone.apply_gradients([(tf.constant([1.0 + rank]), weights)])
        agree([weights])


def a_hook_runs_the_broadcast_alone(rank: int) -> None:
    """It is built after the training graph, and uses up none of what that is fed."""
    with tf.Graph().as_default():
        fed = v1.placeholder(tf.float32, [])
        batch = v1.data.make_one_shot_iterator(tf.data.Dataset.range(1, 3)).get_next()
        weights = v1.get_variable("w", initializer=tf.constant(float(rank)))
        loss = weights * fed * tf.cast(batch, tf.float32) * (rank + 1.0)
        before = dist.oob_allreduce(loss)
        train = dist.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(loss)
        mean = dist.oob_allreduce(loss)
        other = v1.placeholder(tf.float32, [])
        check = dist.oob_allreduce(other)
        hook = dist.BroadcastGlobalVariablesHook(1)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            equal(session.run(weights), 1.0)
            equal(session.run(check, {other: rank}), 0.5)
            found = session.run([train, mean, before], {fed: 1.0})
            equal(found[1:], [1.5, 1.5])
            equal(session.run(weights), -0.5)  # of the first batch
            session.run(train, {fed: 1.0})
            equal(session.run(weights), -3.5)  # of the second


def many_reductions_of_a_graph_keep_their_order(rank: int) -> None:
    """Gradients and what is out of band beside them, which could run in any order."""
    with tf.Graph().as_default():
        fed = v1.placeholder(tf.float32, [])
        value = fed * (rank + 1.0)
        found = []
        for k in range(12):
            one = dist.allreduce if k % 3 else dist.oob_allreduce
            found.append(one(value * float(k), op=dist.ReduceOp.SUM))
        sent = [dist.broadcast(value * float(k), 1) for k in range(12)]
        with v1.Session() as session:
            for _ in range(20):
                equal(session.run(found, {fed: 1.0}), [3.0 * k for k in range(12)])
                equal(session.run(sent, {fed: 1.0}), [2.0 * k for k in range(12)])


CHECKS = {each.__name__: each for each in (
    an_overflow_is_skipped_by_all_ranks,
    an_overflow_under_the_tape_is_seen_by_all_ranks,
    a_loss_that_is_not_scaled_is_not_unscaled,
    a_loss_scale_around_is_refused,
    a_saved_model_loads,
    a_hook_runs_the_broadcast_alone,
    many_reductions_of_a_graph_keep_their_order,
)}  # fmt: skip


if __name__ == "__main__":
    dist.init()
    CHECKS[sys.argv[1]](dist.rank())
    dist.shutdown()
    print("done", flush=True)
