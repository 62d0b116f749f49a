"""Trains a small Keras model with TensorFlow's parameter servers on scikit-learn's digits.

The launcher runs this script once on each host and gives it TF_CONFIG. The first host's is the
`chief`: it hands out steps and measures. The others are workers, which do them; the variables lie
on the `ps` tasks, which the launcher starts itself. TensorFlow's servers never end by themselves:
the launcher ends workers and servers when the chief has ended well.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


def main() -> None:
    options = parse()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        serve(resolver)
    cluster = resolver.cluster_spec()
    workers, servers = cluster.num_tasks("worker"), cluster.num_tasks("ps")
    print(f"chief: {workers} workers, {servers} servers", flush=True)
    loss, accuracy = train(options, resolver)
    print(f"final loss={loss:.4f} accuracy={accuracy:.4f}", flush=True)
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with TensorFlow's parameter servers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of each epoch, over all workers")
    parser.add_argument("--batch-size", type=int, default=64, help="of one step")
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Does what the chief asks for, until the launcher ends this process."""
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    ).join()  # fmt: skip


def train(
    options: argparse.Namespace, resolver: tf.distribute.cluster_resolver.ClusterResolver
) -> tuple[float, float]:
    """The mean loss of the last epoch and the accuracy on digits that were held out."""
    tf.keras.utils.set_random_seed(SEED)
    digits, labels = load()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():  # variables are made on the servers, in turn
        model = tf.keras.Sequential([
            tf.keras.layers.Input((64,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ])  # fmt: skip
        optimizer = tf.keras.optimizers.SGD(options.lr, momentum=0.9)
        optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def batches() -> tf.data.Dataset:
        pairs = (digits[:-HELD_OUT], labels[:-HELD_OUT])
        made = tf.data.Dataset.from_tensor_slices(pairs).shuffle(len(pairs[0])).repeat()
        return made.batch(options.batch_size)

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        def one(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(batch[1], model(batch[0], training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        loss = strategy.run(one, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)

    mean = 0.0
    iterator = iter(coordinator.create_per_worker_dataset(batches))
    for epoch in range(options.epochs):
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(options.steps)]
        coordinator.join()  # steps run on any worker, in any order
        mean = float(np.mean([loss.fetch() for loss in losses]))
        print(f"epoch={epoch + 1}/{options.epochs} loss={mean:.4f}", flush=True)
    right = model(digits[-HELD_OUT:]).numpy().argmax(1) == labels[-HELD_OUT:]
    save(model)
    return mean, float(right.mean())


def load() -> tuple[np.ndarray, np.ndarray]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    found = load_digits()
    order = np.random.RandomState(SEED).permutation(len(found.data))
    return (found.data / 16).astype("float32")[order], found.target.astype("int64")[order]


def save(model: tf.keras.Model) -> None:
    folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "weights.npz", *model.get_weights())


if __name__ == "__main__":
    main()
