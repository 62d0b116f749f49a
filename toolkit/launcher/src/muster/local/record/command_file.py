"""The command line of a run, kept in its folder, so that it can be shown and run again.

What looks like a secret is not kept: a value of `--env` comes from the environment when the run is
run again, and anything else has to be typed anew.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence

from muster.arguments import UsageError
from muster.local.record.layout import COMMAND
from muster.local.record.runfolder import RunFolder
from muster.types.masking import MASK, Masker, is_secret_name
from muster.types.values import NamedTuple

SCHEMA = 1
LOCAL, SUBMIT = "local", "submit"
MOST_S = 1e11  # since 1970: a later time is invalid
_PAIRS = ("--env", "--hyperparameter", "--channel")  # their values are NAME=VALUE


class CommandLine(NamedTuple):
    """A command line as the run folder keeps it.

    `argv`: what followed `muster COMMAND`, with `***` for secrets. `cwd`: where it was typed.
    """

    argv: tuple[str, ...]
    cwd: str
    started: float  # seconds since 1970
    command: str = LOCAL


def write_command(folder: RunFolder, argv: Sequence[str], command: str = LOCAL) -> None:
    """Raises OSError."""
    document = {
        "schema": SCHEMA,
        "command": command,
        "argv": without_secrets(argv),
        "cwd": os.getcwd(),
        "started": round(time.time(), 3),
    }
    path = os.path.join(folder.path, COMMAND)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file, indent=1)


def read_command(path: str) -> CommandLine | None:
    """Of the run in that folder; None where it has none that can be read."""
    try:
        with open(os.path.join(path, COMMAND), encoding="utf-8") as file:
            document = json.load(file)
        argv, cwd, started = document["argv"], document["cwd"], float(document["started"])
        command = document.get("command", LOCAL)
        if not 0 <= started < MOST_S or command not in (LOCAL, SUBMIT):
            return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    words = [*argv, cwd] if isinstance(argv, list) else [None]
    valid = all(isinstance(w, str) for w in words)
    return CommandLine(tuple(argv), cwd, started, command) if valid else None


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Values that a telling name stands before, and addresses with a password, are lost whole."""
    return [_without_secret(before, word) for before, word in zip(("", *argv), argv, strict=False)]


def _without_secret(before: str, word: str) -> str:
    if before.startswith("-") and "=" not in before and is_secret_name(before.lstrip("-")):
        return MASK
    option = next((f"{option}=" for option in _PAIRS if word.startswith(f"{option}=")), "")
    name, _, value = word.removeprefix(option).partition("=")
    mask = Masker().mask
    if mask(name) != name:
        return MASK
    names = [name, *value.split("=")[:-1]]  # NAME=--password=x, too
    is_secret = mask(word) != word or any(is_secret_name(one.lstrip("-")) for one in names)
    return f"{option}{name}={MASK}" if value and is_secret else word


def with_secrets(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The words with the values of --env that the environment has.

    Raises UsageError for a secret that is nowhere.
    """
    found: list[str] = []
    for before, word in zip(("", *argv), argv, strict=False):
        if not word.endswith(MASK):
            found.append(word)
            continue
        name = word.removesuffix(f"={MASK}").rpartition("=")[2]
        of_env = before == "--env" or word.startswith("--env=")
        if not of_env or name not in environ:
            what = name if word != MASK else f"the argument after {before}"
            fix = f"export {name} and try again" if of_env else "type the command anew"
            raise UsageError(f"the value of {what} is a secret, which a run does not keep", fix)
        found.append(word.removesuffix(MASK) + environ[name])
    return found


def for_a_new_run(argv: Sequence[str]) -> list[str]:
    """The words without those that name the folder of the earlier run."""
    cut = argv.index("--") if "--" in argv else len(argv)
    kept: list[str] = []
    skip = False
    for word in argv[:cut]:
        if skip:
            skip = False
        elif word == "--output":
            skip = True
        elif word != "--overwrite" and not word.startswith("--output="):
            kept.append(word)
    return [*kept, *argv[cut:]]
