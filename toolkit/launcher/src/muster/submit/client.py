"""An engine's own client, as a command that is asked and answers in time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from muster.arguments import UsageError
from muster.types.files import find_program
from muster.types.plain import printable, shortened

LIMIT_S = 60.0


def answer(
    argv: Sequence[str],
    given: str = "",
    limit_s: float = LIMIT_S,
    environ: Mapping[str, str] | None = None,
) -> str:
    """What the client printed. Raises UsageError with its own words where it fails, is not there,
    or does not end in time."""
    code, out, err = outcome(argv, given, limit_s, environ)
    if code:
        raise UsageError(f"{argv[0]} {argv[1]}: {in_a_sentence(err or out)}")
    return out


def outcome(
    argv: Sequence[str],
    given: str = "",
    limit_s: float = LIMIT_S,
    environ: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr). `environ`: in place of this process's. Raises UsageError for one
    that cannot be asked."""
    try:
        done = subprocess.run(
            argv,
            input=given.encode(),
            capture_output=True,
            timeout=limit_s,
            env=environ,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(missing(argv[0]), "submit from a machine that has it") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{argv[0]} {argv[1]} did not answer within {limit_s:.0f} s") from None
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error.strerror}") from None
    return (
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


def need(*programs: str) -> None:
    """Raises UsageError where one of the programs is not on the PATH."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    for name in programs:
        if not find_program(folders, name):
            raise UsageError(missing(name), "submit from a machine that has it; --dry-run prints")


def missing(program: str) -> str:
    return f"there is no {program} on this machine"


def in_a_sentence(text: str) -> str:
    """The first line that says something, without controls."""
    lines = (line.strip() for line in printable(text).splitlines())
    return shortened(next(filter(None, lines), "it failed and said nothing"))
