"""Trains a small convolutional network with Hugging Face accelerate on scikit-learn's digits.

`Accelerator` reads torchrun's variables, so `accelerate launch` and its configuration file are
not needed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


def main() -> None:
    options = parse()
    # without cpu=True each rank trains a model of its own on machines that have no GPU
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(SEED)
    training, held_out = load()
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10)
    )
    model, optimizer, batches, evaluation = accelerator.prepare(
        network,
        torch.optim.Adam(network.parameters(), lr=options.lr),
        DataLoader(training, options.batch_size, shuffle=True),  # prepare gives each rank a share
        DataLoader(held_out, options.batch_size),
    )
    accuracy = 0.0
    for epoch in range(options.epochs):
        if epoch == 1 and accelerator.process_index == options.fail_rank:
            raise ValueError("broken on purpose")
        for images, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
        accuracy = evaluate(accelerator, model, evaluation)
        if accelerator.is_main_process:
            print(f"epoch={epoch + 1}/{options.epochs} accuracy={accuracy:.4f}", flush=True)

    if accelerator.is_main_process:
        print(f"final ranks={accelerator.num_processes} accuracy={accuracy:.4f}", flush=True)
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(accelerator.unwrap_model(model).state_dict(), folder / "model.pt")
    accelerator.end_training()
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def evaluate(accelerator: Accelerator, model: nn.Module, batches: DataLoader) -> float:
    """The accuracy on the digits of all ranks."""
    right = []
    with torch.no_grad():
        for images, labels in batches:
            right.append(accelerator.gather_for_metrics(model(images).argmax(1) == labels))
    return torch.cat(right).float().mean().item()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with accelerate")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="on each rank")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--fail-rank", type=int, help="this rank raises in the second epoch")
    return parser.parse_args()


def load() -> list[TensorDataset]:
    """The digits to train on, and those held out."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    whole = TensorDataset(images, torch.tensor(found.target))
    sizes, seeded = [len(whole) - HELD_OUT, HELD_OUT], torch.Generator().manual_seed(SEED)
    return random_split(whole, sizes, seeded)


if __name__ == "__main__":
    main()
