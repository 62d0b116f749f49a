"""One tiny training by a library that makes its own process group; run by test_libraries.py.

`library_job.py --library trainer|accelerate|lightning --on gpu|cpu|stand-in`. Models are made from
a config or by hand, data from numbers, so nothing is fetched. Each rank prints its losses.

`--on cpu`: by the library's own option, without which Hugging Face's libraries make no group on a
machine without GPUs (`--on gpu`). `--on stand-in`: the CPU stands for the rank's GPU, for what they
refuse on CPUs: accelerate's own variable names the device, and DDP is not told of one.

`--stay S`: a training of four steps is over before anybody has looked at it; this one lives for S
seconds more, as a real one does.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

STEPS, BATCH, WORDS, LENGTH = 4, 4, 32, 16


def examples(count: int) -> list[list[int]]:
    return [[(7 * one + 3 * place) % WORDS for place in range(LENGTH)] for one in range(count)]


def by_trainer(cpu: bool) -> Iterator[float]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2)
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=BATCH,
        report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=cpu,
    )  # fmt: skip
    data = [{"input_ids": one, "labels": one} for one in examples(2 * STEPS * BATCH)]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    yield from (row["loss"] for row in trainer.state.log_history if "loss" in row)


def by_accelerate(cpu: bool) -> Iterator[float]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=cpu)
    model, optimizer, loader = accelerator.prepare(*parts())
    for given, wanted in loader:
        loss = nn.functional.mse_loss(model(given), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        yield accelerator.gather(loss.detach()).mean().item()


def by_lightning(cpu: bool) -> Iterator[float]:
    import lightning

    model, optimizer, loader = parts()
    losses: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
            losses.append(self.all_gather(loss.detach()).mean().item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), strategy="ddp",
        num_nodes=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tempfile.mkdtemp(),
    )  # fmt: skip
    trainer.fit(Module(), loader)
    yield from losses


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Iterable[list[torch.Tensor]]]:
    """Model, optimizer and data of a small regression."""
    torch.manual_seed(1)
    model = nn.Linear(LENGTH, 1)
    given = torch.tensor(examples(2 * STEPS * BATCH), dtype=torch.float32) / WORDS
    data = torch.utils.data.TensorDataset(given, given.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


def stand_in_for_a_gpu() -> None:
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    begin = nn.parallel.DistributedDataParallel.__init__

    def without_devices(self: object, *given: object, **options: object) -> None:
        begin(self, *given, **{**options, "device_ids": None, "output_device": None})  # type: ignore[arg-type]

    nn.parallel.DistributedDataParallel.__init__ = without_devices  # type: ignore[assignment]


LIBRARIES: dict[str, Callable[[bool], Iterator[float]]] = {
    "trainer": by_trainer, "accelerate": by_accelerate, "lightning": by_lightning,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=sorted(LIBRARIES), required=True)
    parser.add_argument("--on", choices=["gpu", "cpu", "stand-in"], required=True)
    parser.add_argument("--stay", type=float, default=0.0)
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.on == "stand-in":
        stand_in_for_a_gpu()
    losses = list(LIBRARIES[given.library](given.on == "cpu"))
    group = torch.distributed.is_initialized()
    said = {
        "rank": int(os.environ.get("RANK", "0")),
        "size": torch.distributed.get_world_size() if group else 1,
        "backend": torch.distributed.get_backend() if group else "",
        "losses": [round(loss, 4) for loss in losses],
    }
    os.write(
        1, f"trained {json.dumps(said)}\n".encode()
    )  # at once: torchrun's ranks share a stream
    time.sleep(given.stay)


if __name__ == "__main__":
    main()
