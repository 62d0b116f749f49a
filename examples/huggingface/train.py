"""Trains a small Vision Transformer with Hugging Face's Trainer on scikit-learn's bundled digits.

Nothing in it is about ranks, hosts or muster but --fail-rank: the Trainer reads torchrun's
variables, makes the process group and wraps the model.
"""

from __future__ import annotations

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

SEED = 7
HELD_OUT = 360  # of 1,797 digits; never trained on
ENOUGH = 0.9


class Digits(Dataset):
    """1,797 images of 8 x 8 pixels in one fixed random order; the last HELD_OUT are held out."""

    def __init__(self, training: bool) -> None:
        found = load_digits()
        order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(SEED))
        order = order[:-HELD_OUT] if training else order[-HELD_OUT:]
        self.images = torch.tensor(found.images, dtype=torch.float32)[order, None] / 16
        self.labels = torch.tensor(found.target)[order]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


class FailInSecondEpoch(TrainerCallback):
    """Raises on one rank."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if (state.epoch or 0) >= 1 and args.process_index == self.rank:
            raise ValueError("broken on purpose")


def main() -> None:
    options = parse()
    set_seed(SEED)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=8, patch_size=2, num_channels=1, hidden_size=48, num_hidden_layers=2,
            num_attention_heads=4, intermediate_size=96, num_labels=10, initializer_range=0.1,
        )
    )  # fmt: skip
    model_dir = os.environ.get("SM_MODEL_DIR", "model")
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=os.environ.get("SM_OUTPUT_DATA_DIR", "output"),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.lr,
            logging_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,  # progress bars do not belong in a log
            ddp_find_unused_parameters=False,
            seed=SEED,
            # without it the Trainer trains one model per rank on machines that have no GPU
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Digits(training=True),
        eval_dataset=Digits(training=False),
        compute_metrics=lambda found: {
            "accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())
        },
        callbacks=[FailInSecondEpoch(options.fail_rank)],
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    trainer.save_model(model_dir)  # every rank calls it, the first one writes
    if trainer.is_world_process_zero():
        print(f"final ranks={trainer.args.world_size} accuracy={accuracy:.4f}", flush=True)
    if accuracy < ENOUGH:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {ENOUGH}: it did not learn")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with Hugging Face's Trainer")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16, help="on each rank")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--fail-rank", type=int, help="this rank raises in the second epoch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
