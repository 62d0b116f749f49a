"""Trains a small MXNet network with Horovod on scikit-learn's digits, under the `mpi` option.

Horovod starts nothing: mpirun has started the ranks, and Horovod's MPI controller finds them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from sklearn.datasets import load_digits

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


def main() -> None:
    options = parse()
    hvd.init()
    digits, labels = load()
    network, loss = train(options, digits[:-HELD_OUT], labels[:-HELD_OUT])
    right = network(nd.array(digits[-HELD_OUT:])).asnumpy().argmax(1) == labels[-HELD_OUT:]
    accuracy = float(right.mean())
    print(
        f"final rank={hvd.rank()} size={hvd.size()} local_rank={hvd.local_rank()} "
        f"local_size={hvd.local_size()} cross_rank={hvd.cross_rank()} "
        f"cross_size={hvd.cross_size()} loss={loss:.4f} accuracy={accuracy:.4f}",
        flush=True,
    )
    if hvd.rank() == 0:
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        network.save_parameters(str(folder / "model.params"))
    hvd.shutdown()
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with Horovod and MXNet")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def train(
    options: argparse.Namespace, digits: np.ndarray, labels: np.ndarray
) -> tuple[gluon.Block, float]:
    """The network, and the mean loss of this rank's last 20 steps."""
    mx.random.seed(SEED + hvd.rank())  # other first weights on every rank,
    network = gluon.nn.Sequential()
    network.add(gluon.nn.Dense(64, activation="relu", in_units=64))
    network.add(gluon.nn.Dense(10, in_units=64))
    network.initialize(mx.init.Xavier())
    parameters = network.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)  # until all have those of the first
    trainer = hvd.DistributedTrainer(
        parameters, mx.optimizer.SGD(learning_rate=options.lr, momentum=0.9)
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    choose = np.random.RandomState(SEED + 1)  # the same on all ranks, which share each batch
    losses = []
    for _ in range(options.steps):
        batch = choose.randint(0, len(digits), options.batch_size)[hvd.rank() :: hvd.size()]
        with autograd.record():
            loss = loss_of(network(nd.array(digits[batch])), nd.array(labels[batch]))
        loss.backward()
        trainer.step(len(batch))  # Horovod averages over the ranks
        losses.append(float(loss.mean().asscalar()))
    return network, float(np.mean(losses[-20:]))


def load() -> tuple[np.ndarray, np.ndarray]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    found = load_digits()
    order = np.random.RandomState(SEED).permutation(len(found.data))
    return (found.data / 16).astype("float32")[order], found.target.astype("int64")[order]


if __name__ == "__main__":
    main()
