"""Trains a small convolutional network with Lightning on scikit-learn's bundled digits.

Lightning reads torchrun's variables. It needs to hear how many hosts there are and how many
processes each has; the rest of the script is the same on one processor and on many hosts.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


class Classifier(lightning.LightningModule):
    """A convolution and a linear layer."""

    def __init__(self, lr: float, fail_rank: int | None) -> None:
        super().__init__()
        self.lr, self.fail_rank = lr, fail_rank
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10)
        )

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1 and self.global_rank == self.fail_rank:
            raise ValueError("broken on purpose")

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        right = self.network(batch[0]).argmax(1) == batch[1]
        self.log("accuracy", right.float().mean(), sync_dist=True)  # the mean over all ranks

    def on_validation_epoch_end(self) -> None:
        accuracy = self.trainer.callback_metrics["accuracy"]
        self.print(f"epoch={self.current_epoch + 1} accuracy={accuracy:.4f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main() -> None:
    options = parse()
    lightning.seed_everything(SEED)
    training, held_out = load()
    module = Classifier(options.lr, options.fail_rank)
    trainer = lightning.Trainer(
        accelerator="auto",
        strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=len(json.loads(os.environ.get("SM_HOSTS", "[0]"))),
        max_epochs=options.epochs,
        default_root_dir=os.environ.get("SM_OUTPUT_DATA_DIR", "output"),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        module,
        DataLoader(training, options.batch_size, shuffle=True),  # Lightning gives each rank a share
        DataLoader(held_out, HELD_OUT),
    )
    accuracy = trainer.callback_metrics["accuracy"].item()
    if trainer.is_global_zero:
        print(f"final ranks={trainer.world_size} accuracy={accuracy:.4f}", flush=True)
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(module.network.state_dict(), folder / "model.pt")
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with Lightning")
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
