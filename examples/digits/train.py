"""Trains a small network on scikit-learn's bundled digits: 1,797 handwritten digits of 8 x 8.

The same script runs alone and, under torchrun or mpirun, with DistributedDataParallel over all
ranks.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch import nn

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on


def main() -> None:
    options = parse()
    rank, world_size, device = start(options)
    train(options, rank, world_size, device)
    leave()


def train(options: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> None:
    torch.manual_seed(SEED)  # the same first weights on every rank
    digits, labels = (part.to(device) for part in load())
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = nn.parallel.DistributedDataParallel(network) if dist.is_initialized() else network
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    loss_of = nn.CrossEntropyLoss()

    began, accuracy = time.monotonic(), 0.0
    for epoch in range(options.epochs):
        if epoch == 1 and rank == options.fail_rank:
            raise ValueError("broken on purpose")
        total = torch.zeros(2, device=device)  # of this rank: summed loss, number of digits
        for batch in batches(len(digits) - HELD_OUT, options.batch_size, rank, world_size, epoch):
            optimizer.zero_grad()
            loss = loss_of(model(digits[batch]), labels[batch])
            loss.backward()  # DDP averages the gradients of all ranks here
            optimizer.step()
            total += torch.tensor([loss.item() * len(batch), len(batch)], device=device)
        if dist.is_initialized():
            dist.all_reduce(total)
        loss_sum, seen = total.tolist()
        accuracy = evaluate(network, digits[-HELD_OUT:], labels[-HELD_OUT:])
        if rank == 0:
            progress = f"epoch={epoch + 1}/{options.epochs} loss={loss_sum / seen:.4f}"
            print(f"{progress} accuracy={accuracy:.4f}", flush=True)

    require_equal_on_all_ranks(accuracy, device)
    save(network, options, rank, world_size, accuracy, time.monotonic() - began)


def leave() -> None:
    """Ends the process group while Python still runs.

    DDP keeps it alive in reference cycles; left to the end of the interpreter, gloo now and then
    aborts with "terminate called without an active exception".
    """
    if dist.is_initialized():
        dist.barrier()  # nobody hangs up while another rank still talks
        gc.collect()
        dist.destroy_process_group()


def parse() -> argparse.Namespace:
    """Hyperparameters arrive as `--name value`, folders in SM_* variables."""
    parser = argparse.ArgumentParser(description="digits with PyTorch")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--backend", choices=("gloo", "nccl", "smddp"), help="else as the job asks")
    parser.add_argument("--fail-rank", type=int, help="this rank raises in the second epoch")
    return parser.parse_args()


def backend_of(options: argparse.Namespace) -> str:
    """smddp when the job's distribution is smdistributed.dataparallel; --backend comes first."""
    if options.backend:
        return str(options.backend)
    job = json.loads(os.environ.get("SM_FRAMEWORK_PARAMS", "{}"))
    if job.get("sagemaker_distributed_dataparallel_enabled"):
        return "smddp"
    return "nccl" if torch.cuda.is_available() else "gloo"


def start(options: argparse.Namespace) -> tuple[int, int, torch.device]:
    """Joins the process group when a launcher started several ranks: rank, world size, device."""
    if "RANK" not in os.environ:
        return 0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # torch computes with OMP_NUM_THREADS threads: muster sets it to each rank's share
    backend, device = backend_of(options), torch.device("cpu")
    if backend == "smddp":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - makes it known to torch
    if torch.cuda.is_available() and backend != "gloo":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
    if dist.get_rank() == 0:
        print(f"ranks={dist.get_world_size()} backend={dist.get_backend()}", flush=True)
    return dist.get_rank(), dist.get_world_size(), device


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation.

    A file `digits.npz` (arrays `data` and `target`) in the channel `training` replaces them.
    """
    given = Path(os.environ.get("SM_CHANNEL_TRAINING", ""), "digits.npz")
    source = np.load(given) if given.is_file() else load_digits()
    digits = torch.tensor(source["data"], dtype=torch.float32) / 16
    labels = torch.tensor(source["target"], dtype=torch.int64)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SEED))
    return digits[order], labels[order]


def batches(
    count: int, batch_size: int, rank: int, world_size: int, epoch: int
) -> Iterator[torch.Tensor]:
    """This rank's share of every batch; all ranks shuffle alike and take equally many steps."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED + 1 + epoch))
    for first in range(0, count - count % batch_size, batch_size):
        yield order[first : first + batch_size][rank::world_size]


def evaluate(network: nn.Module, digits: torch.Tensor, labels: torch.Tensor) -> float:
    """Accuracy on the held-out digits, all of them, with this rank's own copy of the network."""
    with torch.no_grad():
        right = network(digits).argmax(1) == labels
    return int(right.sum()) / len(digits)


def require_equal_on_all_ranks(accuracy: float, device: torch.device) -> None:
    """Raises RuntimeError when a rank measured another accuracy: the copies drifted apart."""
    if not dist.is_initialized():
        return
    measured = [
        torch.zeros(1, dtype=torch.float64, device=device) for _ in range(dist.get_world_size())
    ]
    dist.all_gather(measured, torch.tensor([accuracy], dtype=torch.float64, device=device))
    if len({value.item() for value in measured}) != 1:
        raise RuntimeError(
            f"accuracy differs between ranks: {[value.item() for value in measured]}"
        )


def save(
    network: nn.Module,
    options: argparse.Namespace,
    rank: int,
    world_size: int,
    accuracy: float,
    seconds: float,
) -> None:
    """Every rank writes what it measured; the model is written by rank 0 alone."""
    metrics = {
        "rank": rank,
        "world_size": world_size,
        "host": os.environ.get("SM_CURRENT_HOST", ""),
        "accuracy": accuracy,
        "seconds": round(seconds, 3),
        **vars(options),
        "backend": dist.get_backend() if dist.is_initialized() else None,
    }
    write_json(
        Path(os.environ.get("SM_OUTPUT_DATA_DIR", "output"), f"metrics-rank{rank}.json"), metrics
    )
    if rank == 0:
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), folder / "model.pt")
        write_json(folder / "metrics.json", metrics)


def write_json(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
