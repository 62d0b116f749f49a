"""Six models in small, as their libraries have them, each with what one step feeds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

BATCH, TOKENS, VOCABULARY = 8, 12, 64


class Case(NamedTuple):
    """A model, and what makes a batch. `loss`: from what the model returns and the batch.
    `outside`: what of a batch is for the loss alone, not for the model."""

    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, torch.Tensor]]
    loss: Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]
    outside: str = ""


def _text() -> dict[str, torch.Tensor]:
    ids = torch.randint(5, VOCABULARY, (BATCH, TOKENS))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _pictures() -> dict[str, torch.Tensor]:
    return {"pictures": torch.randn(BATCH, 3, 16, 16), "labels": torch.randint(0, 5, (BATCH,))}


def _images() -> dict[str, torch.Tensor]:
    return {"pictures": torch.randn(BATCH, 3, 16, 16), "wanted": torch.randn(BATCH, 3, 16, 16)}


def _own_loss(output: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = output.loss
    return loss


def _gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(  # its head is its embedding
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=TOKENS,
            n_embd=32,
            n_layer=4,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=1,
        )
    )


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=TOKENS,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=TOKENS,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=0,
        )
    )


class Residual(nn.Module):
    """Two convolutions, each normalised over the batch, added to their input."""

    def __init__(self, come: int, go: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(come, go, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(go, go, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(go), nn.BatchNorm2d(go)
        self.short = nn.Identity() if come == go else nn.Conv2d(come, go, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.norm2(self.two(functional.relu(self.norm1(self.one(x)))))
        return functional.relu(found + self.short(x))


class ResNet(nn.Module):
    """Of four residual blocks; the criterion is not in it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.blocks = nn.Sequential(
            Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1), Residual(16, 32, 2)
        )
        self.head = nn.Linear(32, 5)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(pictures)).mean((2, 3)))


class UNet(nn.Module):
    """Each half of the way down is added to the way up: tensors that travel over stages."""

    def __init__(self) -> None:
        super().__init__()
        self.come = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(8, 8, 3, 2, 1) for _ in range(2))
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ModuleList(nn.ConvTranspose2d(16, 8, 2, 2) for _ in range(2))
        self.go = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x, kept = torch.tanh(self.come(pictures)), []
        for layer in self.down:
            kept.append(x)
            x = torch.tanh(layer(x))
        kept.append(x)
        x = torch.tanh(self.middle(x))
        for layer in self.up:
            x = torch.tanh(layer(torch.cat([x, kept.pop()], 1)))
        return self.go(torch.cat([x, kept.pop()], 1))


CASES: dict[str, Case] = {
    "GPT": Case(_gpt, _text, _own_loss),
    "BERT": Case(_bert, _text, _own_loss),
    "T5": Case(_t5, _text, _own_loss),
    "Llama": Case(_llama, _text, _own_loss),
    "ResNet": Case(
        ResNet,
        _pictures,
        lambda out, batch: functional.cross_entropy(out, batch["labels"]),
        "labels",
    ),
    "U-Net": Case(
        UNet, _images, lambda out, batch: functional.mse_loss(out, batch["wanted"]), "wanted"
    ),
}
