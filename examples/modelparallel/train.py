"""Trains a small GPT on the text of Python's own manual, with smdistributed.modelparallel's API.

The script is what such scripts look like: nothing in it is muster's. Batches are cut into the
microbatches that the job's parameters ask for; data-parallel ranks read different pieces of text.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from pydoc_data import topics

import torch
from torch import nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp

SEED = 7
CONTEXT = 64  # characters that the model sees
WIDTH, HEADS, BLOCKS = 96, 4, 3
HELD_OUT = 8192  # characters, never trained on


class Block(nn.Module):
    """Attention to what came before, then a small network, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen = self.norm1(x)
        x = x + self.attention(seen, seen, seen, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """From characters (batch, CONTEXT) to logits of the next ones (batch, CONTEXT, vocabulary)."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.full((CONTEXT, CONTEXT), float("-inf"), device=ids.device).triu(1)
        x = self.tokens(ids) + self.places
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


@smp.step
def train_step(model: nn.Module, ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    logits = model(ids)
    loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
    model.backward(loss)
    return loss


@smp.step
def evaluate_step(model: nn.Module, ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return (model(ids).argmax(-1) == following).float().mean()


def main() -> None:
    options = parse()
    smp.init()
    torch.manual_seed(SEED)
    ids, vocabulary = load()
    device = torch.device("cuda", smp.local_rank()) if torch.cuda.is_available() else "cpu"
    model = smp.DistributedModel(GPT(vocabulary).to(device))
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=options.lr))
    first, began = 1, time.monotonic()
    checkpoints = os.environ.get("SM_HP_CHECKPOINTS", "")
    begun = bool(checkpoints) and os.path.exists(os.path.join(checkpoints, "newest"))
    if any(smp.allgather(begun, smp.WORLD)):
        first = smp.resume_from_checkpoint(checkpoints)["step"] + 1
    for step in range(first, options.steps + 1):
        if step == options.fail_step and smp.rank() == 1:
            break_on_purpose(model, options.fail_in)
        batch = batch_of(ids, options.batch_size // smp.dp_size(), step).to(device)
        optimizer.zero_grad()
        loss = train_step(model, batch[:, :-1], batch[:, 1:])
        optimizer.step()
        if step % options.report_every == 0:
            if smp.rank() == 0:
                print(f"step={step}/{options.steps} loss={loss.reduce_mean():.4f}", flush=True)
            if checkpoints:
                smp.save_checkpoint(
                    checkpoints, f"step{step}", model=model, optimizer=optimizer,
                    user_content={"step": step}, num_kept_partial_checkpoints=2,
                )  # fmt: skip
    model.eval()
    with torch.no_grad():
        held_out = ids[-HELD_OUT:].unfold(0, CONTEXT + 1, CONTEXT + 1)[:96].to(device)
        right = evaluate_step(model, held_out[:, :-1], held_out[:, 1:])
    save(model, float(right.reduce_mean()), time.monotonic() - began)


def parse() -> argparse.Namespace:
    """Hyperparameters arrive as `--name value`; those of the library are its own business."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--batch-size", type=int, default=32, help="over all data-parallel ranks")
    parser.add_argument("--report-every", type=int, default=50, help="steps; and between saves")
    parser.add_argument("--fail-step", type=int, help="rank 1 raises before this step")
    parser.add_argument("--fail-in", help="in place of before it: in this module, such as head")
    return parser.parse_known_args()[0]


def break_on_purpose(model: smp.DistributedModel, module: str | None) -> None:
    """Raises at once, or has a module raise as soon as it is called."""

    def fail(*_: object) -> None:
        raise ValueError("broken on purpose")

    if module is None:
        fail()
    model.get_module().get_submodule(module).register_forward_pre_hook(fail)


def load() -> tuple[torch.Tensor, int]:
    """The manual's characters as numbers, and how many different ones there are."""
    text = "".join(topics.topics[name] for name in sorted(topics.topics)).encode()
    known = sorted(set(text))
    number = {character: index for index, character in enumerate(known)}
    return torch.tensor([number[character] for character in text]), len(known)


def batch_of(ids: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """Pieces of CONTEXT + 1 characters, others for each step and data-parallel rank."""
    seed = torch.Generator().manual_seed(SEED + step * smp.dp_size() + smp.dp_rank())
    starts = torch.randint(0, len(ids) - HELD_OUT - CONTEXT - 1, (size,), generator=seed)
    return torch.stack([ids[start : start + CONTEXT + 1] for start in starts])


def save(model: nn.Module, accuracy: float, seconds: float) -> None:
    """The whole model, by one rank, and what each rank measured."""
    state = model.state_dict()  # of which every rank may have a part
    if smp.rank() == 0:
        torch.save(state, Path(os.environ.get("SM_MODEL_DIR", "."), "model.pt"))
        print(f"accuracy={accuracy:.4f}", flush=True)
    found = {
        "rank": smp.rank(), "world_size": smp.size(), "accuracy": accuracy, "seconds": seconds,
        "backend": torch.distributed.get_backend(smp.get_dp_process_group()),
    }  # fmt: skip
    folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR", "."))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"metrics-rank{smp.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
