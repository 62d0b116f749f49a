"""Trains a small network under the `mpi` option on scikit-learn's digits.

MXNet computes, mpi4py sums the gradients of all ranks: no kvstore and no servers.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import mxnet as mx
import numpy as np
from mpi4py import MPI
from mxnet import autograd, gluon, nd
from sklearn.datasets import load_digits

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


def main() -> None:
    options = parse()
    world = MPI.COMM_WORLD
    digits, labels = load()
    network, loss = train(options, world, digits[:-HELD_OUT], labels[:-HELD_OUT])
    right = network(nd.array(digits[-HELD_OUT:])).asnumpy().argmax(1) == labels[-HELD_OUT:]
    accuracy = float(right.mean())
    if len(set(world.allgather(accuracy))) != 1:
        raise SystemExit("the accuracy differs between ranks")
    if world.rank == 0:
        print(f"final ranks={world.size} loss={loss:.4f} accuracy={accuracy:.4f}", flush=True)
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        network.save_parameters(str(folder / "model.params"))
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with MXNet and mpi4py")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def train(
    options: argparse.Namespace, world: MPI.Comm, digits: np.ndarray, labels: np.ndarray
) -> tuple[gluon.Block, float]:
    """The network, and the mean loss of the last 20 steps over all ranks."""
    mx.random.seed(SEED)  # the same first weights on every rank
    network = gluon.nn.Sequential()
    network.add(gluon.nn.Dense(64, activation="relu", in_units=64))
    network.add(gluon.nn.Dense(10, in_units=64))
    network.initialize(mx.init.Xavier())
    parameters = network.collect_params()
    trainer = gluon.Trainer(
        parameters, "sgd", {"learning_rate": options.lr, "momentum": 0.9}, kvstore=None
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    choose = np.random.RandomState(SEED + 1)  # the same on all ranks, which share each batch
    losses = []
    for _ in range(options.steps):
        batch = choose.randint(0, len(digits), options.batch_size)[world.rank :: world.size]
        with autograd.record():
            loss = loss_of(network(nd.array(digits[batch])), nd.array(labels[batch]))
        loss.backward()
        for parameter in parameters.values():
            gradient = parameter.grad().asnumpy()
            world.Allreduce(MPI.IN_PLACE, gradient)
            parameter.grad()[:] = gradient
        trainer.step(options.batch_size)
        losses.append(world.allreduce(float(loss.sum().asscalar())) / options.batch_size)
    return network, float(np.mean(losses[-20:]))


def load() -> tuple[np.ndarray, np.ndarray]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    found = load_digits()
    order = np.random.RandomState(SEED).permutation(len(found.data))
    return (found.data / 16).astype("float32")[order], found.target.astype("int64")[order]


if __name__ == "__main__":
    main()
