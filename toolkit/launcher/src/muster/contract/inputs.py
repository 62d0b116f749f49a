"""Channels of inputdataconfig.json, and names that become the same variable (B38)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from muster.contract.findings import Findings, short

INPUTS = "inputdataconfig.json"


def check_channels(document: Mapping[str, object], findings: Findings) -> None:
    """Names that no folder or variable can have are problems; those that collide are warnings."""
    for index, name in enumerate(document):
        if not name or name in (".", "..") or "=" in name or "/" in name or not name.isprintable():
            what = f"{short(name)} is not a channel name"
            findings.problem(f"{INPUTS}[{index}]", what, "use letters, digits, '.', '-' and '_'")
        elif any(character.isspace() for character in name):
            findings.warn(
                f"channel {name!r}: a name with a space; SM_CHANNEL_* has it with '_' too"
            )
    for names in collisions(document):
        text = " and ".join(map(repr, names))
        findings.warn(f"channels {text} share one SM_CHANNEL_* variable; each has its own name too")


def collisions(names: Iterable[str]) -> list[list[str]]:
    """Groups of names that are equal once they are upper-cased."""
    by_upper: dict[str, list[str]] = {}
    for name in names:
        by_upper.setdefault(name.upper(), []).append(name)
    return [group for group in by_upper.values() if len(group) > 1]


def absent_channels(document: Mapping[str, object], data: str, group: str) -> list[str]:
    """Channels whose folder below `data` should be there and is not (B39).

    A Pipe channel has no folder, nor has one that goes to other instance groups only.
    """
    absent = []
    for name, channel in document.items():
        settings = channel if isinstance(channel, dict) else {}
        groups = settings.get("InstanceGroupNames") or [group]
        expected = settings.get("TrainingInputMode") != "Pipe" and group in groups
        if expected and not os.path.isdir(f"{data}/{name}"):
            absent.append(name)
    return absent
