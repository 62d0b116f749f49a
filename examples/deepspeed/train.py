"""Trains a small network with DeepSpeed (ZeRO stage 2) on scikit-learn's bundled digits.

DeepSpeed reads torchrun's variables, so its own launcher, ssh and hostfile are not needed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch import nn

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


def main() -> None:
    options = parse()
    deepspeed.init_distributed()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)  # the same initial weights and the same shuffling on every rank
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    engine, *_ = deepspeed.initialize(
        model=network,
        model_parameters=network.parameters(),
        config={
            "train_batch_size": options.batch_size,
            "zero_optimization": {"stage": 2},  # gradients and optimizer state are sharded
            "optimizer": {"type": "Adam", "params": {"lr": options.lr, "torch_adam": True}},
        },
    )
    digits, labels = (part.to(engine.device) for part in load())

    for epoch in range(options.epochs):
        if epoch == 1 and rank == options.fail_rank:
            raise ValueError("broken on purpose")
        for batch in torch.randperm(len(digits) - HELD_OUT).split(options.batch_size)[:-1]:
            share = batch[rank::world_size]
            loss = nn.functional.cross_entropy(engine(digits[share]), labels[share])
            engine.backward(loss)
            engine.step()
        if rank == 0:
            print(f"epoch={epoch + 1}/{options.epochs} loss={loss.item():.4f}", flush=True)

    with torch.no_grad():
        right = engine(digits[-HELD_OUT:]).argmax(1) == labels[-HELD_OUT:]
    accuracy = right.float().mean().item()
    if rank == 0:
        device = get_accelerator().device_name()
        print(f"final ranks={world_size} device={device} accuracy={accuracy:.4f}", flush=True)
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), folder / "model.pt")
    dist.barrier()
    dist.destroy_process_group()
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with DeepSpeed")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--fail-rank", type=int, help="this rank raises in the second epoch")
    return parser.parse_args()


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Digits and labels in one fixed random order; the last HELD_OUT are for evaluation."""
    found = load_digits()
    order = torch.randperm(len(found.data), generator=torch.Generator().manual_seed(SEED))
    digits = torch.tensor(found.data, dtype=torch.float32) / 16
    return digits[order], torch.tensor(found.target)[order]


if __name__ == "__main__":
    main()
