"""Names in messages: the one that was probably meant, and a few of many."""

from __future__ import annotations

from collections.abc import Iterable

TYPED = 0.6  # likeness of what a person types at a command line, often the beginning of a name


def nearest(word: str, known: Iterable[str], prefix: str = "", likeness: float = 0.7) -> str:
    """The known name that `word` most likely means, or "" when none is close.

    `prefix`: what all names share, so that it does not count as likeness.
    """
    from difflib import get_close_matches  # only a mistake pays for it

    rests = {name.removeprefix(prefix): name for name in known}
    word = word.removeprefix(prefix)
    found = get_close_matches(word, rests, n=1, cutoff=likeness)
    if found:
        return rests[found[0]]
    folded = {rest.lower(): name for rest, name in rests.items()}
    found = get_close_matches(word.lower(), folded, n=1, cutoff=likeness)
    return folded[found[0]] if found else ""


def did_you_mean(word: str, known: Iterable[str], prefix: str = "", likeness: float = 0.7) -> str:
    """`, did you mean 'NAME'?`, or "" when nothing known is close."""
    close = nearest(word, known, prefix, likeness)
    return f", did you mean {close!r}?" if close else ""


def counted(number: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def listed(names: Iterable[str], most: int = 8) -> str:
    """`a, b, c and 5 more`: names for a line that must stay readable."""
    shown = tuple(names)
    rest = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {rest} more" if rest > 0 else "")


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of numbers that follow one another, in the order given."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def runs_in_words(found: Iterable[tuple[int, int]], separator: str = ",") -> str:
    """`0-3,6`."""
    return separator.join(f"{low}-{high}" if high > low else f"{low}" for low, high in found)
