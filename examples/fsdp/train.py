"""Trains a small transformer with FSDP (fully_shard) on scikit-learn's bundled digits.

Each rank holds a part of every weight, gradient and optimizer state. The script knows torchrun's
variables only; it runs on gloo on CPUs and on NCCL on GPUs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


class Classifier(nn.Module):
    """A transformer that reads a digit as 8 rows of 8 pixels."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(torch.randn(8, width) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(8 * width, 10)

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        rows = self.embed(digits.view(-1, 8, 8)) + self.position
        for layer in self.layers:
            rows = layer(rows)
        return self.head(rows.flatten(1))


def main() -> None:
    options = parse()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else kind
    if kind == "cuda":
        torch.cuda.set_device(device)
    mesh = init_device_mesh(kind, (int(os.environ["WORLD_SIZE"]),))  # makes the process group
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(SEED)  # the same initial weights on every rank
    model = Classifier().to(device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)  # after sharding
    digits, labels = (part.to(device) for part in load())

    for epoch in range(options.epochs):
        if epoch == 1 and rank == options.fail_rank:
            raise ValueError("broken on purpose")
        order = torch.randperm(len(digits) - HELD_OUT)  # the same on every rank
        total = torch.zeros(2, device=device)  # this rank's summed loss and number of digits
        for batch in order.split(options.batch_size)[:-1]:  # the last one is smaller
            share = batch[rank::world_size]
            loss = nn.functional.cross_entropy(model(digits[share]), labels[share])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(share), len(share)], device=device)
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch={epoch + 1}/{options.epochs} loss={total[0] / total[1]:.4f}", flush=True)

    with torch.no_grad():  # all ranks take part: each forward pass gathers the weights
        right = model(digits[-HELD_OUT:]).argmax(1) == labels[-HELD_OUT:]
    accuracy = right.float().mean().item()
    whole = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if rank == 0:
        print(f"final ranks={world_size} accuracy={accuracy:.4f}", flush=True)
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(whole, folder / "model.pt")
    dist.barrier()
    dist.destroy_process_group()
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with FSDP")
    parser.add_argument("--epochs", type=int, default=6)
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
