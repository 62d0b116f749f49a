"""Channels of inputdataconfig.json, names that become the same variable (B38), and folders that
should be there and be of use."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping

from muster.contract.findings import ENOUGH, Findings
from muster.types.job import Paths
from muster.types.plain import short

INPUTS = "inputdataconfig.json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


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
    """Channels whose folder below `data` should be there and is not.

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


def prepare_outputs(paths: Paths, checkpoints: str | None, findings: Findings) -> None:
    """Makes the folders in which a job leaves its work; one that cannot be written is a problem,
    since all that the job computes would be lost at its end.

    `checkpoints`: where the platform keeps them, when it says so. Without that the folder is
    looked at only where it is: a job that writes none needs none. A disk without room is a
    warning, since the job may make room. Blocks while a mount does not answer.
    """
    wanted = [paths.model, paths.output_data]
    if checkpoints is not None or os.path.lexists(paths.checkpoints):
        wanted.append(checkpoints or paths.checkpoints)
    for folder in wanted:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            what = f"cannot be made: {error.strerror}"
            if isinstance(error, FileExistsError):
                what = "is not a folder"
            if error.errno in _NO_ROOM:
                findings.warn(f"{folder} {what}")
                continue
        else:
            what = _why_not_writable(folder)
        if what:
            findings.problem(
                folder,
                f"{what}; what the job writes there would be lost",
                "mount a folder there that this user can write (no :ro, and chown it or change "
                "--user), or a temporary one (--tmpfs) for a job that leaves nothing there",
            )


def _why_not_writable(folder: str) -> str:
    """Why this user can make no file there, or ""."""
    if os.access(folder, os.W_OK | os.X_OK):
        return ""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "cannot be written: mounted read-only"
    about = os.stat(folder)
    owner = f"user {about.st_uid} owns it (mode {about.st_mode & 0o777:o})"
    return f"cannot be written by user {os.geteuid()}: {owner}"
