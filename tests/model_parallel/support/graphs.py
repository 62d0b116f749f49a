"""Models whose forward is a drawn program: units that behave well and badly, and glue between them.

A program is a list of steps (operation, number, number): the numbers choose a unit and a tensor
that is there already. So hypothesis can shrink it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 6
Step = tuple[str, int, int]


class Pair(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Returns two views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.linear(x).chunk(2, -1))


class Named(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Returns a dict with None, a number and the argument itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"none": None, "out": self.linear(x), "scale": 2.0, "same": x}


class Block(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A residual block with dropout, which is heavy enough to be opened."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.up(self.norm(x)))
        return x + self.drop(self.down(hidden))


class Side(nn.Linear):  # type: ignore[misc]  # torch is untyped here
    """Leaves a tensor as an attribute."""

    seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        self.seen = out.square().mean()
        return out


class Number(nn.Linear):  # type: ignore[misc]  # torch is untyped here
    """Leaves a number that follows from the data as an attribute."""

    number = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        self.number = float(out.detach().mean())
        return out


class Writer(nn.Linear):  # type: ignore[misc]  # torch is untyped here
    """Changes its argument in place, and returns something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return super().forward(x)


class View(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Returns its argument's memory as another tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape)


class Detached(nn.Linear):  # type: ignore[misc]  # torch is untyped here
    """Returns a tensor without gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


class Counting(nn.Linear):  # type: ignore[misc]  # torch is untyped here
    """Counts its calls in a buffer, and scales by them."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = super().forward(x) * self.calls
        return out


UNITS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "identity": nn.Identity,
    "relu": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.3),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "sequence": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(True), nn.Linear(WIDTH, WIDTH)
    ),
    "block": Block,
    "pair": Pair,
    "named": Named,
    "side": lambda: Side(WIDTH, WIDTH),
    "number": lambda: Number(WIDTH, WIDTH),
    "writer": lambda: Writer(WIDTH, WIDTH),
    "view": View,
    "detached": lambda: Detached(WIDTH, WIDTH),
    "counting": Counting,
}
GLUE = (
    "add", "scale", "drop", "in place", "slice", "tied", "branch", "number glue", "side value",
    "number value", "skip input", "reused", "checkpoint", "collected", "no grad", "buffer",
    "into buffer", "inner", "joined",
)  # fmt: skip
RETURNS = ("tensor", "dict", "tuple", "all")


class Program(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The model of a program. `units`: a kind for each unit; each is called by its first step."""

    def __init__(
        self, units: Sequence[str], steps: Sequence[Step], returns: str, tie: bool
    ) -> None:
        super().__init__()
        self.units = nn.ModuleList(UNITS[kind]() for kind in units)
        self.scale = nn.Parameter(torch.full((WIDTH,), 1.1))
        self.register_buffer("mean", torch.zeros(WIDTH))
        linears = [unit for unit in self.units if isinstance(unit, nn.Linear)]
        if tie and len(linears) > 1:
            linears[-1].weight = linears[0].weight
        self._steps = tuple(steps)
        self._returns = returns

    def forward(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> Any:
        live = [x * 1.0]
        collected: list[torch.Tensor] = []
        for operation, which, source in self._steps:
            unit = self.units[which % len(self.units)]
            value = live[-1 - source % min(3, len(live))]
            made = self._made(operation, unit, value, live, extra, collected)
            if made is not None:
                live.append(made)
        last = live[-1]
        if self._returns == "dict":
            return {"out": last, "none": None, "loss": last.square().mean()}
        if self._returns == "tuple":
            return last, None, last.mean()
        return live if self._returns == "all" else last

    def _made(  # noqa: PLR0911, PLR0912  # one arm for each operation
        self,
        operation: str,
        unit: nn.Module,
        value: torch.Tensor,
        live: list[torch.Tensor],
        extra: torch.Tensor | None,
        collected: list[torch.Tensor],
    ) -> torch.Tensor | None:
        linears = [one for one in self.units if isinstance(one, nn.Linear)]
        if operation in ("unit", "reused"):
            return _tensor(unit(value))
        if operation == "add":
            return live[0] + value
        if operation == "scale":
            return value * self.scale
        if operation == "drop":
            return functional.dropout(value, 0.3, self.training)
        if operation == "in place":
            value.add_(1.0)
        elif operation == "slice":
            value[:, :2] = live[-1][:, 2:4]
        elif operation == "tied" and linears:
            return functional.linear(value, linears[-1].weight)
        elif operation == "branch":
            return value * 2 if value.mean() > 0 else value - 1
        elif operation == "number glue":
            return value * float(value.detach().abs().mean())
        elif operation == "side value":
            sides = [one for one in self.units if isinstance(one, Side) and "seen" in vars(one)]
            return value + sum(one.seen for one in sides) if sides else None
        elif operation == "number value":
            return value + sum(one.number for one in self.units if isinstance(one, Number))
        elif operation == "skip input" and extra is not None:
            return value + extra
        elif operation == "checkpoint":
            return _tensor(checkpoint(unit, value, use_reentrant=False))
        elif operation == "collected":
            return self._collected(unit, value, collected)
        elif operation == "no grad":
            with torch.no_grad():
                return _tensor(unit(value))
        elif operation == "buffer":
            return value + self.mean
        elif operation == "into buffer":
            self.mean.mul_(0.9).add_(value.detach().mean(0))
        elif operation == "inner" and isinstance(unit, Block):
            return unit.up(value)[:, :WIDTH]  # a part of a unit, called from outside
        elif operation == "joined":
            return torch.cat([value, live[0]], -1)[:, 2 : 2 + WIDTH]
        return None

    def _collected(
        self, unit: nn.Module, value: torch.Tensor, collected: list[torch.Tensor]
    ) -> torch.Tensor:
        """A hook on a part collects, as those of router logits do."""
        part = list(unit.modules())[-1]
        handle = part.register_forward_hook(
            lambda module, args, out: collected.append(_tensor(out).square().mean())
        )
        try:
            out = _tensor(unit(value))
        finally:
            handle.remove()
        return out + sum(collected)


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, dict):
        found: torch.Tensor = value["out"] * value["scale"] + value["same"]
        return found
    if isinstance(value, tuple):
        return value[0] + value[1]
    assert isinstance(value, torch.Tensor)
    return value
