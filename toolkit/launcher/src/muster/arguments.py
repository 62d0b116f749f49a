"""Argument parsing that answers a slip with the right spelling.

Long options take `-` and `_` alike, are never guessed from a beginning, and every usage error is
one line that names the option, with the nearest name or the fix in a second one.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from muster.types import plain
from muster.types.names import TYPED, did_you_mean

USAGE_EXIT_CODE = 2
MOST_BYTES = 1 << 50
_SIZE = r"(?i:([0-9]{1,18}(?:\.[0-9]{1,9})?) *([bkmgt]?)(?:i?b)?)"
_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def tell(text: str) -> None:
    """Writes to stderr; without a reader only the exit code says it."""
    try:
        if sys.stderr is not None:  # closed before this process began
            sys.stderr.write(text)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # for what Python still holds


class UsageError(Exception):
    """The command line cannot be obeyed: what is wrong and, in `fix`, what to write instead."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class HelpShown(Exception):  # noqa: N818 - nothing went wrong
    """`--help` has been answered; nothing else is to run."""


def one_of(*names: str) -> Callable[[str], str]:
    """An option's type: one of a few words."""

    def choose(text: str) -> str:
        if text in names:
            return text
        known = ", ".join(names)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {known}{did_you_mean(text, names, likeness=TYPED)}"
        )

    return choose


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """An option's type: a whole number in a range, both ends included."""

    def convert(text: str) -> int:
        found = plain.whole_number(text, low, high)
        if found is None:
            why = f"expected a whole number from {low} to {high}, got {text!r}"
            raise argparse.ArgumentTypeError(why)
        return found

    return convert


def number(rule: str, is_good: Callable[[float], bool]) -> Callable[[str], float]:
    """An option's type: a number that is good. `rule`: which ones are, for the error."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_good(value):
            raise argparse.ArgumentTypeError(f"expected {rule}, got {text!r}")
        return value

    return convert


seconds = number("a number of seconds above 0", lambda value: 0 < value < math.inf)


def size(least_bytes: int) -> Callable[[str], int]:
    """An option's type: a number of bytes as the docker command takes it; k, m, g are 1024's."""

    def convert(text: str) -> int:
        match = re.fullmatch(_SIZE, text.strip())
        if not match:
            raise argparse.ArgumentTypeError(
                f"expected a number and b, k, m, g or t, such as 512m or 1.5g, got {text!r}"
            )
        found = int(float(match[1]) * (1 << _UNITS[match[2].lower()]))
        if least_bytes <= found <= MOST_BYTES:
            return found
        least, most = size_in_words(least_bytes), size_in_words(MOST_BYTES)
        raise argparse.ArgumentTypeError(
            f"{text} is {found} bytes: not from {least} to {most}; units are k, m, g, t"
        )

    return convert


def size_in_words(size_bytes: int) -> str:
    """`512 MiB`, exact: the largest unit that divides it."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift} {unit}"
    return f"{size_bytes} bytes"


class Parser(argparse.ArgumentParser):
    """The parser of one command. `script_arguments`: it takes a `--` and what follows.

    `parse` raises UsageError or HelpShown and never exits the process.
    """

    def __init__(self, prog: str, script_arguments: bool = False) -> None:
        super().__init__(
            prog=prog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._script_arguments = script_arguments
        self.foreign: Mapping[str, str] = {}  # options of other launchers -> what to write here

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """All options; `script_arguments` holds what follows `--`."""
        cut = argv.index("--") if "--" in argv else len(argv)
        own, after = list(argv[:cut]), tuple(argv[cut + 1 :])
        if cut < len(argv) and not self._script_arguments:
            raise UsageError(f"{self.prog} starts no script: nothing may follow --")
        own = [self._dashed(token) for token in own]
        self._refuse_unknown(own)
        args, extra = self.parse_known_args(own)
        if extra:
            raise UsageError(f"one argument too many: {extra[0]!r}", self._behind(extra))
        args.script_arguments = after
        args.command_line = tuple(argv)
        return args

    @property
    def options(self) -> tuple[str, ...]:
        """Every long option, spelt with dashes."""
        return tuple(name for name in self._option_string_actions if name.startswith("--"))

    def _dashed(self, token: str) -> str:
        """`--source_dir=a_b` as `--source-dir=a_b`, if that is a known option."""
        if not token.startswith("--"):
            return token
        name, equals, value = token.partition("=")
        dashed = name.replace("_", "-")
        return dashed + equals + value if dashed in self._option_string_actions else token

    def _refuse_unknown(self, tokens: list[str]) -> None:
        """Says so before argparse takes the unknown option's value for SCRIPT."""
        for place, token in enumerate(tokens):
            name = token.partition("=")[0]
            is_option = token.startswith("-") and token != "-" and not _is_number(token)
            if not is_option or name in self._option_string_actions:
                continue
            dashed = name.replace("_", "-")
            if dashed in self.foreign:
                raise UsageError(f"unknown option {name}", self.foreign[dashed])
            if guess := did_you_mean(dashed, self.options, likeness=TYPED):
                raise UsageError(f"unknown option {name}{guess}")
            following = [text for text in tokens[place : place + 2] if text != ""]
            raise UsageError(f"unknown option {name}", self._behind(following))

    def _behind(self, tokens: Sequence[str]) -> str:
        if not self._script_arguments:
            return f"see {self.prog} --help"
        import shlex

        line = f"{self.prog} SCRIPT -- {shlex.join(tokens)}"
        return f"arguments for your script go after --: {line}"

    def error(self, message: str) -> NoReturn:
        """argparse's own complaint, with the option first."""
        message = message.removeprefix("argument ")
        missing = "the following arguments are required: "
        if message.startswith(missing):
            names = message.removeprefix(missing)
            raise UsageError(f"{names} is missing", f"see {self.prog} --help")
        raise UsageError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True
