"""Values of foreign JSON, each only where it is of the type it should be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from muster.types.masking import Masker
from muster.types.plain import printable

MOST_TEXT = 8 << 10  # characters of one text on the page
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf,
          "-infinity": -math.inf}  # fmt: skip


def number(value: object) -> float | None:
    """A number that is finite."""
    if type(value) is float and math.isfinite(value):
        return value  # most are: a report reads millions
    found = any_number(value)
    return found if found is not None and math.isfinite(found) else None


def any_number(value: object) -> float | None:
    """A number; NaN and infinity as they are, or in words."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return _WORDS.get(value.lower()) if isinstance(value, str) else None


def whole(value: object) -> int | None:
    """A whole number as an int; None for anything else, bool too."""
    return value if type(value) is int and abs(value) < 1 << 53 else None


def text(value: object) -> str:
    """The value if it is a text, else ""."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[object]:
    """The value if it is a list of JSON, else an empty one."""
    return value if isinstance(value, list) else []


class Cleaner:
    """Makes foreign texts fit to be shown: no secrets, escapes or controls, a bounded length."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker

    def text(self, value: object, most: int = MOST_TEXT) -> str:
        """ "" for what is no text. Of one that is too long the end, where errors stand."""
        if not isinstance(value, str):
            return ""
        text = printable(_ESCAPES.sub("", self._masker.mask(value)))
        return text if len(text) <= most else f"... {text[-most:]}"

    def all(self, value: object, depth: int = 6) -> object:
        """The JSON value with every text in it made so."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            pairs = value.items() if depth else ()
            return {self.text(str(key), 200): self.all(one, depth - 1) for key, one in pairs}
        if isinstance(value, list):
            return [self.all(one, depth - 1) for one in value] if depth else []
        return value
