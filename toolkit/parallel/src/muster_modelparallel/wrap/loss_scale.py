"""The factor that keeps small gradients of half precision from becoming zeros.

Gradients that overflow make the dynamic one smaller, a while without makes it larger. Source of the
arguments: the public documentation of DistributedOptimizer; of their meaning: apex and Megatron-LM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from muster_modelparallel.errors import SettingsError, nearest


@dataclass(frozen=True, slots=True)
class DynamicScaleRules:
    """How a dynamic loss scale moves.

    init_scale: the first value. scale_factor: what it is divided or multiplied by. scale_window:
    steps in a row without overflow after which it grows. min_scale: the least value. delayed_shift:
    the overflow which makes it smaller (1: the first one, 2: the second one, ...).
    consecutive_hysteresis: whether any step without overflow starts that count again, and not only
    growing.
    """

    init_scale: float = 2.0**32
    scale_factor: float = 2.0
    scale_window: int = 1000
    min_scale: float = 1.0
    delayed_shift: int = 1
    consecutive_hysteresis: bool = False

    def __post_init__(self) -> None:
        """Raises SettingsError for a value that cannot be used."""
        lowest = {"init_scale": 0, "min_scale": 0, "scale_factor": 1}
        for name, low in lowest.items():
            if not _is_number(getattr(self, name)) or getattr(self, name) <= low:
                raise SettingsError(f"{name} is {getattr(self, name)!r}", f"use more than {low}")
        for name in ("scale_window", "delayed_shift"):
            if not _is_number(getattr(self, name)) or getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)!r}", "use 1 or more")


@dataclass(frozen=True, slots=True)
class LossScale:
    """A loss scale as it is now. `rules` None: it never moves. `good`: steps in a row without
    overflow; `patience`: overflows that remain until it becomes smaller."""

    value: float
    rules: DynamicScaleRules | None = None
    good: int = 0
    patience: int = 1

    def after(self, overflow: bool) -> LossScale:
        """The one after a step with or without overflow."""
        rules = self.rules
        if rules is None:
            return self
        if overflow and self.patience > 1:
            return replace(self, good=0, patience=self.patience - 1)
        if overflow:
            smaller = max(self.value / rules.scale_factor, rules.min_scale)
            return replace(self, value=smaller, good=0)
        good, patience, value = self.good + 1, self.patience, self.value
        if rules.consecutive_hysteresis:
            patience = rules.delayed_shift
        if good >= rules.scale_window:
            good, patience, value = 0, rules.delayed_shift, value * rules.scale_factor
        return replace(self, value=value, good=good, patience=patience)

    def saved(self) -> dict[str, float]:
        """What a checkpoint keeps of it."""
        return {"value": self.value, "good": self.good, "patience": self.patience}

    def loaded(self, saved: Mapping[str, float]) -> LossScale:
        """The same rules where the checkpoint was."""
        return replace(
            self, value=float(saved["value"]), good=int(saved["good"]),
            patience=int(saved["patience"]),
        )  # fmt: skip


def make_loss_scale(static: float | None, dynamic: bool, arguments: Mapping[str, Any]) -> LossScale:
    """As DistributedOptimizer's arguments. Raises SettingsError for what cannot be used."""
    # the documentation's signature has them one by one, its example in a dictionary
    given = {key: value for key, value in arguments.items() if key != "dynamic_loss_args"}
    given |= dict(arguments.get("dynamic_loss_args") or {})
    known = [each.name for each in fields(DynamicScaleRules)]
    for name in given:
        if name not in known:
            near = nearest(name, known) or ", ".join(known)
            raise SettingsError(f"{name!r} is no dynamic_loss_args", f"known: {near}")
    rules = DynamicScaleRules(**given)
    if dynamic:
        return LossScale(float(rules.init_scale), rules, patience=rules.delayed_shift)
    value = 1.0 if static is None else static
    if not _is_number(value) or value <= 0:
        raise SettingsError(f"static_loss_scale is {static!r}", "use a number above 0, such as 1.0")
    return LossScale(float(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and not isinstance(value, bool)
