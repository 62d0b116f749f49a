"""One line of `muster doctor`, and how it is made."""

from __future__ import annotations

from muster.types.values import NamedTuple

OK, WARN, FAIL = "OK", "WARN", "FAIL"


class Finding(NamedTuple):
    """What was found, and unless all is well what it breaks and the command that fixes it. `name`:
    of the check, which `doctor.examine` puts in."""

    name: str
    level: str
    found: str
    breaks: str = ""
    fix: str = ""


def fine(found: str) -> Finding:
    return Finding("", OK, found)


def warn(found: str, breaks: str, fix: str) -> Finding:
    """Something that some jobs would run into."""
    return Finding("", WARN, found, breaks, fix)


def fail(found: str, breaks: str, fix: str) -> Finding:
    """Something that breaks jobs of a common kind."""
    return Finding("", FAIL, found, breaks, fix)
