"""Trains scikit-learn's bundled digits with a PyTorch parameter server: real data, no download.

The servers hold the parameters and apply the optimizer; every worker computes gradients of its own
part of each batch. The same script runs alone, without servers.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from muster_parameter_server import ServerOptimizer, sgd

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on


def main() -> None:
    options = parse()
    rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.manual_seed(SEED + rank)  # rank 0's first weights count, whatever the others have
    digits, labels = load()
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = make_optimizer(network, options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(options.epochs):
        order = torch.randperm(
            len(digits) - HELD_OUT, generator=torch.Generator().manual_seed(SEED + epoch)
        )
        # all workers take equally many steps: what does not fill a batch is left out
        for batch in order.split(options.batch_size)[: len(order) // options.batch_size]:
            mine = batch[rank::workers]
            optimizer.zero_grad()
            loss = loss_of(network(digits[mine]), labels[mine])
            loss.backward()
            optimizer.step()  # pushes gradients, waits for the others, pulls parameters
        schedule.step()
        if rank == 0:
            progress = f"epoch={epoch + 1}/{options.epochs} loss={loss.item():.4f}"
            accuracy = evaluate(network, digits, labels)
            print(f"{progress} accuracy={accuracy:.4f}", flush=True)

    save(network, options, rank, workers, evaluate(network, digits, labels))
    if isinstance(optimizer, ServerOptimizer):
        optimizer.close()  # servers end when all workers have said goodbye


def parse() -> argparse.Namespace:
    """Hyperparameters arrive as `--name value`, folders in SM_* variables."""
    parser = argparse.ArgumentParser(description="digits with a parameter server")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=64, help="over all workers")
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--staleness", type=int, default=2, help="of async mode, in steps")
    options = parser.parse_args()
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    if options.batch_size < 1 or options.batch_size % workers:
        parser.error(f"--batch-size {options.batch_size} cannot be shared by {workers} workers")
    return options


def make_optimizer(network: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    """On the servers where a launcher started some, else here."""
    if "PARAMETER_SERVER_ADDRESSES" not in os.environ:
        return torch.optim.SGD(network.parameters(), lr=options.lr, momentum=0.9)
    return ServerOptimizer(
        network.parameters(),
        sgd(lr=options.lr, momentum=0.9),
        mode=options.mode,
        staleness=options.staleness if options.mode == "async" else None,
    )


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    source = load_digits()
    digits = torch.tensor(source["data"], dtype=torch.float32) / 16
    labels = torch.tensor(source["target"], dtype=torch.int64)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SEED))
    return digits[order], labels[order]


def evaluate(network: nn.Module, digits: torch.Tensor, labels: torch.Tensor) -> float:
    """Accuracy on the held-out digits."""
    with torch.no_grad():
        right = network(digits[-HELD_OUT:]).argmax(1) == labels[-HELD_OUT:]
    return int(right.sum()) / HELD_OUT


def save(
    network: nn.Module, options: argparse.Namespace, rank: int, workers: int, accuracy: float
) -> None:
    """Every worker writes what it measured; the model is written by rank 0 alone."""
    metrics = {"rank": rank, "world_size": workers, "accuracy": accuracy, **vars(options)}
    output = Path(os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
    output.mkdir(parents=True, exist_ok=True)
    (output / f"metrics-rank{rank}.json").write_text(json.dumps(metrics, indent=2) + "\n")
    if rank == 0:
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), folder / "model.pt")


if __name__ == "__main__":
    main()
