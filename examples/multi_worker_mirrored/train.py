"""Trains a small Keras model with MultiWorkerMirroredStrategy on scikit-learn's digits.

The launcher runs this script once on each host, with TF_CONFIG. Every worker has a copy of the
model and its share of each batch; Keras's optimizer sums the gradients of all workers.
"""

from __future__ import annotations

import argparse
import json
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
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # first of all: it connects the workers
    model, loss, accuracy = train(options, strategy)
    worker = strategy.cluster_resolver.task_id or 0
    size = float(sum(np.abs(weights).sum() for weights in model.get_weights()))
    print(
        f"final worker={worker} workers={strategy.num_replicas_in_sync} loss={loss:.4f} "
        f"accuracy={accuracy:.4f} weights={size:.4f}",
        flush=True,
    )
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")
    save(model, worker, {"accuracy": accuracy, "loss": loss, "weights": size})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with MultiWorkerMirroredStrategy")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64, help="over all workers")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--fail-rank", type=int, default=-1, help="this worker raises in the second epoch"
    )
    return parser.parse_args()


def train(
    options: argparse.Namespace, strategy: tf.distribute.Strategy
) -> tuple[tf.keras.Model, float, float]:
    """The model, the mean loss of the last epoch, the accuracy on digits that were held out."""
    tf.keras.utils.set_random_seed(SEED)
    digits, labels = load()
    with strategy.scope():
        model = tf.keras.Sequential([
            tf.keras.layers.Input((64,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ])  # fmt: skip
        optimizer = tf.keras.optimizers.SGD(options.lr, momentum=0.9)
        optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    batches = shares(strategy, digits[:-HELD_OUT], labels[:-HELD_OUT], options.batch_size)

    # Keras 3 cannot `fit` under this strategy: it takes a batch of replicas for a tensor.
    @tf.function
    def step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        def one(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(batch[1], model(batch[0], training=True)) / options.batch_size
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(one, args=(batch,)), axis=None
        )

    mean = 0.0
    for epoch in range(options.epochs):
        if epoch == 1 and strategy.cluster_resolver.task_id == options.fail_rank:
            raise ValueError("broken on purpose")
        mean = float(np.mean([float(step(batch)) for batch in batches]))
        if strategy.cluster_resolver.task_id in (None, 0):
            print(f"epoch={epoch + 1}/{options.epochs} loss={mean:.4f}", flush=True)
    right = model(digits[-HELD_OUT:]).numpy().argmax(1) == labels[-HELD_OUT:]
    return model, mean, float(right.mean())


def shares(
    strategy: tf.distribute.Strategy, digits: np.ndarray, labels: np.ndarray, batch_size: int
) -> tf.distribute.DistributedDataset:
    """Batches of which each worker gets its part."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    whole = tf.data.Dataset.from_tensor_slices((digits, labels)).shuffle(len(digits), seed=SEED)
    whole = whole.batch(batch_size, drop_remainder=True).with_options(options)
    return strategy.experimental_distribute_dataset(whole)


def load() -> tuple[np.ndarray, np.ndarray]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    found = load_digits()
    order = np.random.RandomState(SEED).permutation(len(found.data))
    return (found.data / 16).astype("float32")[order], found.target.astype("int64")[order]


def save(model: tf.keras.Model, worker: int, metrics: dict[str, float]) -> None:
    """Every worker writes what it measured; the model is written by the first one alone."""
    output = Path(os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
    output.mkdir(parents=True, exist_ok=True)
    (output / f"metrics-worker{worker}.json").write_text(json.dumps(metrics) + "\n")
    if worker == 0:
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "weights.npz", *model.get_weights())


if __name__ == "__main__":
    main()
