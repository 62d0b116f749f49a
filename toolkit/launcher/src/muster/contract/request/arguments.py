"""Hyperparameters as the script's arguments."""

from __future__ import annotations

from collections.abc import Mapping


def to_argv(
    hyperparameters: Mapping[str, object], texts: Mapping[str, str] = {}
) -> tuple[str, ...]:
    """`--name value` for each, names sorted, `-n value` for names of one character.

    Values keep Python's spelling, as existing scripts parse it: `True`, `[1, 'x']`, `k=v,...`
    for objects, empty text for null. `texts`: names -> JSON as it arrived, whose
    numbers keep their spelling: `1.10`.
    """
    return tuple(
        text
        for name in sorted(hyperparameters)
        for text in (
            f"-{name}" if len(name) == 1 else f"--{name}",
            _value(hyperparameters[name], texts.get(name, "")),
        )
    )


def _value(value: object, text: str) -> str:
    if value is None:
        return ""
    if text and type(value) in (int, float):
        return text.strip()
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return str(value)
