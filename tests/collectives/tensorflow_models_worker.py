"""Models under Keras and graphs of TensorFlow 1 on two ranks; argument: which of the checks below.

Run by test_compat_tensorflow.py in TensorFlow's environment.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as dist

v1 = tf.compat.v1


def equal(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-3, atol=1e-6)


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
    a_hook_runs_the_broadcast_alone,
    many_reductions_of_a_graph_keep_their_order,
)}  # fmt: skip


if __name__ == "__main__":
    dist.init()
    CHECKS[sys.argv[1]](dist.rank())
    dist.shutdown()
    print("done", flush=True)
