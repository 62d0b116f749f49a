"""Hyperparameters as the script's arguments (contract.md 1.4)."""

from __future__ import annotations

from collections.abc import Mapping


def to_argv(hyperparameters: Mapping[str, object]) -> tuple[str, ...]:
    """`--name value` for each, names sorted, `-n value` for names of one character.

    Values keep Python's spelling, as existing scripts parse it: `True`, `[1, 'x']`, `k=v,...`
    for objects, empty text for null.
    """
    return tuple(
        text
        for name in sorted(hyperparameters)
        for text in (f"-{name}" if len(name) == 1 else f"--{name}", _value(hyperparameters[name]))
    )


def _value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return str(value)
