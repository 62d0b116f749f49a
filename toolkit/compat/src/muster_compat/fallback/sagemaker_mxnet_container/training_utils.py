"""The first host, and how a Module's model is saved for serving."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any


def scheduler_host(hosts: Sequence[str]) -> str:
    """The host of the scheduler of parameter servers."""
    return hosts[0]


def save(
    model_dir: str, model: Any, current_host: str | None = None, hosts: Sequence[str] | None = None
) -> None:
    """Saves an MXNet Module as `model-symbol.json`, `model-0000.params` and `model-shapes.json`.

    With `current_host` and `hosts` on the scheduler's host only.
    """
    if current_host and hosts and current_host != scheduler_host(hosts):
        return
    model.symbol.save(os.path.join(model_dir, "model-symbol.json"))
    model.save_params(os.path.join(model_dir, "model-0000.params"))
    shapes = [{"name": one.name, "shape": list(one.shape)} for one in model.data_shapes]
    with open(os.path.join(model_dir, "model-shapes.json"), "w", encoding="utf-8") as file:
        json.dump(shapes, file)
