"""Two runs' facets against the differences that were meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.launcher.conformance.scenario import ABSENT, Intended

# what shows only when something happened: facet -> beginnings of its details' names
_DETAILS = {
    "script.runs": ("script.", "env.", "unset.", "rank"),
    "failure": ("failure.",),
    "calls.torchrun": ("torchrun.",),
    "calls.mpirun": ("mpirun.",),
}


class Difference(NamedTuple):
    key: str
    theirs: str
    ours: str

    def __str__(self) -> str:
        return f"{self.key}\n      incumbent: {self.theirs}\n      ours:      {self.ours}"


class Verdict(NamedTuple):
    """`unmeant`: differences that nobody intended. `gone`: intended ones that did not occur."""

    unmeant: tuple[Difference, ...]
    gone: tuple[Intended, ...]

    def __str__(self) -> str:
        lines = [f"  not intended: {one}" for one in self.unmeant]
        lines += [
            f"  intended but gone: {one.key} ({one.reason})\n"
            f"      incumbent: {one.theirs}\n      ours:      {one.ours}"
            for one in self.gone
        ]
        return "\n".join(lines)


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> tuple[Difference, ...]:
    """Every facet that is not equal, absent ones included, by name.

    Where only one side ran the script (wrote a failure, called a tool), that is the difference;
    what the other side could not show is not listed.
    """
    names = sorted(theirs.keys() | ours.keys())
    pairs = (Difference(name, theirs.get(name, ABSENT), ours.get(name, ABSENT)) for name in names)
    return tuple(
        pair
        for pair in pairs
        if pair.theirs != pair.ours and _on_both_sides(pair.key, theirs, ours)
    )


def _on_both_sides(key: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    host, slash, name = key.partition("/") if key.startswith("algo-") else ("", "", key)
    for whole, details in _DETAILS.items():
        if name != whole and name.startswith(details):
            present = [side.get(host + slash + whole, ABSENT) for side in (theirs, ours)]
            return all(value not in (ABSENT, "0") for value in present)
    return True


def judge(found: Sequence[Difference], intended: Sequence[Intended], oracle: str) -> Verdict:
    """Compares what differs with what was meant to differ."""
    meant = [one for one in intended if one.oracle in ("", oracle)]
    unmeant = tuple(one for one in found if not any(_covers(rule, one) for rule in meant))
    gone = tuple(rule for rule in meant if not any(_covers(rule, one) for one in found))
    return Verdict(unmeant, gone)


def _covers(rule: Intended, found: Difference) -> bool:
    return (
        _key_matches(rule.key, found.key)
        and _matches(rule.theirs, found.theirs)
        and _matches(rule.ours, found.ours)
    )


def _key_matches(pattern: str, key: str) -> bool:
    """A pattern without a prefix holds for every host and rank."""
    return fnmatchcase(key, pattern) or fnmatchcase(key.rsplit("/", 1)[-1], pattern)


def _matches(pattern: str, text: str) -> bool:
    """As in file names, but brackets stand for themselves: facets hold JSON."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))
