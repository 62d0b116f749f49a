"""A model with reentrant checkpoints, in which gradients are off until backward."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.model_parallel.support.graphs import WIDTH, Block


class Layer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """`within`: its own code calls the checkpoint, and ends it with code of its own."""

    def __init__(self, within: bool) -> None:
        super().__init__()
        self.within = within
        self.block, self.out = Block(), nn.Linear(WIDTH, WIDTH)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.out(self.block(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=True) if self.within else self.body(x)


class Reentrant(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """`kind`: what the checkpoints are of: "of modules", "of views" of what these return, or of it
    "changed in place"; "within modules", "of code", "of pieces" of a sequence, "of all" as code."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.tok = nn.Parameter(torch.eye(WIDTH)) if kind == "of all" else nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(kind == "within modules") for _ in range(3))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "of all":
            return checkpoint(self.body, x @ self.tok, use_reentrant=True)
        x = self.tok(x)
        if self.kind == "of pieces":
            return checkpoint_sequential(list(self.layers), 3, x, use_reentrant=True)
        for layer in self.layers:
            if self.kind == "of modules":
                x = checkpoint(layer, x, use_reentrant=True)
            elif self.kind == "of code":
                x = checkpoint(lambda x, layer=layer: x + layer(x), x, use_reentrant=True)
            elif self.kind == "of views":
                x = checkpoint(lambda x, layer=layer: layer(x).view(-1), x, use_reentrant=True)
                x = x.view(-1, WIDTH)
            elif self.kind == "changed in place":
                x = checkpoint(lambda x, layer=layer: layer(x).mul_(2), x, use_reentrant=True)
            else:
                x = layer(x)
        return x
