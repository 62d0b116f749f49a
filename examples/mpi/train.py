"""Trains softmax regression with numpy and mpi4py on scikit-learn's digits: no framework at all.

Every rank has its share of each batch; an all-reduce sums the gradients.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


def main() -> None:
    options = parse()
    world = MPI.COMM_WORLD
    digits, labels = load()
    weights, loss = train(options, world, digits[:-HELD_OUT], labels[:-HELD_OUT])
    accuracy = float(((digits[-HELD_OUT:] @ weights).argmax(1) == labels[-HELD_OUT:]).mean())
    if len(set(world.allgather(accuracy))) != 1:
        raise SystemExit("the accuracy differs between ranks")
    if world.rank == 0:
        print(f"final ranks={world.size} loss={loss:.4f} accuracy={accuracy:.4f}", flush=True)
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "weights.npy", weights)
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with numpy and mpi4py")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.5)
    return parser.parse_args()


def train(
    options: argparse.Namespace, world: MPI.Comm, digits: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, float]:
    """The weights, and the mean loss of the last 20 steps over all ranks."""
    weights = np.zeros((digits.shape[1], 10))
    choose = np.random.RandomState(SEED + 1)  # the same on all ranks, which share each batch
    losses = []
    for _ in range(options.steps):
        batch = choose.randint(0, len(digits), options.batch_size)[world.rank :: world.size]
        scores = digits[batch] @ weights
        likely = np.exp(scores - scores.max(1, keepdims=True))
        likely /= likely.sum(1, keepdims=True)
        mine = -np.log(likely[np.arange(len(batch)), labels[batch]]).sum()
        likely[np.arange(len(batch)), labels[batch]] -= 1
        gradient = digits[batch].T @ likely
        world.Allreduce(MPI.IN_PLACE, gradient)
        weights -= options.lr / options.batch_size * gradient
        losses.append(world.allreduce(mine) / options.batch_size)
    return weights, float(np.mean(losses[-20:]))


def load() -> tuple[np.ndarray, np.ndarray]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    found = load_digits()
    order = np.random.RandomState(SEED).permutation(len(found.data))
    digits = np.hstack([found.data / 16, np.ones((len(found.data), 1))])  # the last is the bias
    return digits[order], found.target[order]


if __name__ == "__main__":
    main()
