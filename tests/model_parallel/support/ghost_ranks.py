"""The stages of a split on models of their own, as ranks have them: a judge beside the proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from muster_modelparallel.model.ghost import GhostStage
from muster_modelparallel.model.hollow import hollow
from muster_modelparallel.model.nests import map_tensors
from muster_modelparallel.model.random import Draw
from muster_modelparallel.model.split import Split
from muster_modelparallel.model.trace import tensors

Make = Callable[[], nn.Module]


class Ran(NamedTuple):
    """What one step gave: tensors of the output, and gradients of parameters by name."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]


def run_whole(
    make: Make, split: Split, args: Sequence[Any], kwargs: Mapping[str, Any], draw: Draw
) -> Ran:
    """One step of the whole model on one rank."""
    return run_stages(make, split.whole(), args, kwargs, draw)


def run_stages(
    make: Make, split: Split, args: Sequence[Any], kwargs: Mapping[str, Any], draw: Draw
) -> Ran:
    """One step, each stage with a model of its own that holds only what is the stage's."""
    models = [make() for _ in range(split.parts)]
    ends: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    installed: list[Any] = []  # one that nobody holds ends
    passed: list[torch.Tensor] = []
    for stage, model in enumerate(models):
        for name, parameter in model.named_parameters():
            if name not in split.parameters[stage]:
                parameter.data = hollow(parameter)
        received = [
            tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in passed
        ]
        ghost = GhostStage(model, split, stage)
        mine = map_tensors(lambda tensor: tensor.clone(), [list(args), dict(kwargs)])
        installed.append(ghost.installed())
        installed[-1].__enter__()  # as long as backward may call a unit again
        passed = tensors(ghost.run(mine[0], mine[1], received, draw))
        ends.append((received, passed))
    outputs = [tensor.detach().clone() for tensor in passed]
    _backward(ends)
    total: dict[str, torch.Tensor] = {}
    for stage, model in enumerate(models):
        for name, parameter in model.named_parameters():
            if name in split.parameters[stage] and parameter.grad is not None:
                total[name] = total.get(name, 0) + parameter.grad
    return Ran(outputs, total)


def _backward(ends: Sequence[tuple[list[torch.Tensor], list[torch.Tensor]]]) -> None:
    back: list[torch.Tensor | None] = [torch.ones_like(end) for end in ends[-1][1]]
    for received, sent in reversed(ends):
        pairs = [
            (end, grad)
            for end, grad in zip(sent, back, strict=True)
            if grad is not None and end.requires_grad
        ]
        if pairs:
            torch.autograd.backward([end for end, _ in pairs], [grad for _, grad in pairs])
        back = [tensor.grad for tensor in received]
