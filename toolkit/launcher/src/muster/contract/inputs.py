"""Channels of inputdataconfig.json, names that become the same variable (B38), and folders that
should be there and be of use (B39, B41)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from muster.contract.findings import ENOUGH, Findings, short

INPUTS = "inputdataconfig.json"


def check_channels(document: Mapping[str, object], findings: Findings) -> None:
    """Names that no folder or variable can have are problems; those that collide are warnings."""
    problems = len(findings.problems)
    spaced: list[str] = []
    for index, name in enumerate(document):
        if not name or name in (".", "..") or "=" in name or "/" in name or not name.isprintable():
            what = f"{short(name)} is not a channel name"
            findings.problem(f"{INPUTS}[{index}]", what, "use letters, digits, '.', '-' and '_'")
            if len(findings.problems) - problems >= ENOUGH:
                break
        elif any(character.isspace() for character in name):
            spaced.append(name)
    findings.warn_of_each(spaced, _say_spaced, "channels with a space in the name")
    findings.warn_of_each(collisions(document), _say_shared, "variables that channels share")


def _say_spaced(name: str) -> str:
    return f"channel {short(name)}: a name with a space; SM_CHANNEL_* has it with '_' too"


def _say_shared(names: list[str]) -> str:
    text = " and ".join(map(short, names[:ENOUGH]))
    return f"channels {text} share one SM_CHANNEL_* variable; each has its own name too"


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
        groups = settings.get("InstanceGroupNames")
        here = not isinstance(groups, list) or not groups or group in groups
        expected = settings.get("TrainingInputMode") != "Pipe" and here
        if expected and not os.path.isdir(f"{data}/{name}"):
            absent.append(name)
    return absent


def check_checkpoints(folder: str, findings: Findings) -> None:
    """Warns when checkpoints have a place and nothing can be written there (B41).

    A folder that is absent is made by whoever writes into it.
    """
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        findings.warn(f"checkpoint folder {folder} is not a folder: no checkpoint can be saved")
    elif not os.access(folder, os.W_OK | os.X_OK):
        findings.warn(
            f"checkpoint folder {folder} cannot be written: no checkpoint can be saved; "
            "mount it writable for this user"
        )
