"""Trains a small network with MXNet's parameter servers on scikit-learn's digits.

The launcher starts the scheduler and the servers and runs this script, a worker, on each host,
all with DMLC_*. `--kvstore dist_sync`: the servers wait for all workers' gradients in each step,
so any number of workers does what one would on the same batches. `dist_async`: they do not wait.
`local`: one process, no servers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from sklearn.datasets import load_digits

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


def main() -> None:
    options = parse()
    store = mx.kv.create(options.kvstore)
    loss, network = train(options, store)
    digits, labels = load()
    right = network(nd.array(digits[-HELD_OUT:])).asnumpy().argmax(1) == labels[-HELD_OUT:]
    weights = [parameter.data().asnumpy() for parameter in network.collect_params().values()]
    digest = hashlib.sha256(b"".join(one.tobytes() for one in weights)).hexdigest()[:16]
    accuracy = float(right.mean())
    print(
        f"final worker={store.rank} workers={store.num_workers} loss={loss:.4f} "
        f"accuracy={accuracy:.4f} weights={digest}",
        flush=True,
    )
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")
    folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"weights-worker{store.rank}.npz", *weights)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with MXNet's parameter servers")
    parser.add_argument("--kvstore", default="dist_sync", help="dist_sync, dist_async or local")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=64, help="over all workers")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--fail-host", help="the worker of this host raises in step 20")
    return parser.parse_args()


def train(options: argparse.Namespace, store: mx.kv.KVStore) -> tuple[float, gluon.Block]:
    """The mean loss of this worker's last 20 steps, and the network with the servers' weights."""
    digits, labels = load()
    mx.random.seed(SEED)
    network = gluon.nn.Sequential()
    network.add(gluon.nn.Dense(64, activation="relu", in_units=64))
    network.add(gluon.nn.Dense(10, in_units=64))
    network.initialize(mx.init.Xavier())
    parameters = list(network.collect_params().values())
    # the servers do the optimizer's work: workers push gradients and pull weights
    store.set_optimizer(
        mx.optimizer.SGD(
            learning_rate=options.lr, momentum=0.9, rescale_grad=1 / options.batch_size
        )
    )
    for key, parameter in enumerate(parameters):
        store.init(key, parameter.data())  # the first worker's count
        store.pull(key, out=parameter.data())
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    choose = np.random.RandomState(SEED + 1)  # the same on all workers, which share each batch
    losses = []
    for step in range(options.steps):
        if step == 20 and options.fail_host == os.environ.get("SM_CURRENT_HOST", ""):
            raise ValueError("broken on purpose")
        whole = choose.randint(0, len(digits) - HELD_OUT, options.batch_size)
        batch = whole[store.rank :: store.num_workers]
        with autograd.record():
            loss = loss_of(network(nd.array(digits[batch])), nd.array(labels[batch]))
        loss.backward()
        for key, parameter in enumerate(parameters):
            store.push(key, parameter.grad(), priority=-key)
        for key, parameter in enumerate(parameters):
            store.pull(key, out=parameter.data(), priority=-key)
        losses.append(float(loss.mean().asscalar()))
        if step % 50 == 49:
            mean = np.mean(losses[-50:])
            print(f"worker={store.rank} step={step + 1} loss={mean:.4f}", flush=True)
    nd.waitall()  # this worker's last gradients are on the servers,
    if store.num_workers > 1:
        store._barrier()  # and now everybody's are
    for key, parameter in enumerate(parameters):
        store.pull(key, out=parameter.data())
    return float(np.mean(losses[-20:])), network


def load() -> tuple[np.ndarray, np.ndarray]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    found = load_digits()
    order = np.random.RandomState(SEED).permutation(len(found.data))
    return (found.data / 16).astype("float32")[order], found.target.astype("int64")[order]


if __name__ == "__main__":
    main()
