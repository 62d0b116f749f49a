"""Trains a small Keras model under the `mpi` option on scikit-learn's digits.

TensorFlow computes, mpi4py sums the gradients of all ranks: no tf.distribute strategy at all.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import tensorflow as tf
from mpi4py import MPI
from sklearn.datasets import load_digits

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


def main() -> None:
    options = parse()
    world = MPI.COMM_WORLD
    digits, labels = load()
    model, loss = train(options, world, digits[:-HELD_OUT], labels[:-HELD_OUT])
    right = model(digits[-HELD_OUT:]).numpy().argmax(1) == labels[-HELD_OUT:]
    accuracy = float(right.mean())
    if len(set(world.allgather(accuracy))) != 1:
        raise SystemExit("the accuracy differs between ranks")
    if world.rank == 0:
        print(f"final ranks={world.size} loss={loss:.4f} accuracy={accuracy:.4f}", flush=True)
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "weights.npz", *model.get_weights())
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with TensorFlow and mpi4py")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def train(
    options: argparse.Namespace, world: MPI.Comm, digits: np.ndarray, labels: np.ndarray
) -> tuple[tf.keras.Model, float]:
    """The model, and the mean loss of the last 20 steps over all ranks."""
    tf.keras.utils.set_random_seed(SEED)  # the same first weights on every rank
    model = tf.keras.Sequential([
        tf.keras.layers.Input((64,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ])  # fmt: skip
    optimizer = tf.keras.optimizers.SGD(options.lr, momentum=0.9)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    @tf.function
    def gradients_of(inputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True)) / options.batch_size
        return loss, tape.gradient(loss, model.trainable_variables)

    choose = np.random.RandomState(SEED + 1)  # the same on all ranks, which share each batch
    losses = []
    for _ in range(options.steps):
        batch = choose.randint(0, len(digits), options.batch_size)[world.rank :: world.size]
        loss, gradients = gradients_of(tf.constant(digits[batch]), tf.constant(labels[batch]))
        flat = np.concatenate([gradient.numpy().ravel() for gradient in gradients])
        world.Allreduce(MPI.IN_PLACE, flat)  # one for all variables
        ends = np.cumsum([gradient.shape.num_elements() for gradient in gradients])[:-1]
        pieces = zip(np.split(flat, ends), gradients, strict=True)
        summed = [tf.constant(piece.reshape(gradient.shape)) for piece, gradient in pieces]
        optimizer.apply(summed, model.trainable_variables)
        losses.append(world.allreduce(float(loss)))
    return model, float(np.mean(losses[-20:]))


def load() -> tuple[np.ndarray, np.ndarray]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    found = load_digits()
    order = np.random.RandomState(SEED).permutation(len(found.data))
    return (found.data / 16).astype("float32")[order], found.target.astype("int64")[order]


if __name__ == "__main__":
    main()
