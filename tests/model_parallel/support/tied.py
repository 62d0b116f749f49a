"""A model whose both ends use one weight."""

from __future__ import annotations

import torch
from torch import nn


class Tied(nn.Module):  # type: ignore[misc]
    """`body`, in the middle, takes and gives rows of that width."""

    def __init__(self, width: int, body: nn.Module) -> None:
        super().__init__()
        self.come = nn.Linear(width, width, bias=False)
        self.body = body
        self.go = nn.Linear(width, width, bias=False)
        self.go.weight = self.come.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.go(self.body(self.come(x)))
        return made
