"""The user's own files that the code folders of hosts were copied from, as failures name them."""

from __future__ import annotations

import os
import re

from muster.local.paths import shown
from muster.run.base.evidence import frames
from muster.types.plain import printable
from muster.types.values import NamedTuple

_CODE = r"/opt/ml/code/"
_LINE = rf'(?m:^.*File "[^"\n]*{_CODE}([^"\n]+)", line (\d+)[^\n]*$)'


class Place(NamedTuple):
    """A line of a user's file. `path` is absolute."""

    path: str
    line: int


def with_own_paths(text: str, source: str) -> str:
    """A traceback whose lines also say where their files lie in the source folder."""

    def line(found: re.Match[str]) -> str:
        path = os.path.join(source, found[1])
        if not os.path.isfile(path):
            return found[0]
        return f"{found[0]}  ({printable(shown(path))}:{found[2]})"

    return re.sub(_LINE, line, text)


def failing_place(tail: str, source: str) -> Place | None:
    """The innermost line of the user's own in the last lines of a rank."""
    own = [
        Place(os.path.join(source, frame.path.rpartition(_CODE)[2]), frame.line)
        for frame in frames(tail)
        if _CODE in frame.path
    ]
    there = [place for place in own if os.path.isfile(place.path)]
    innermost = 0 if "Fatal Python error: " in tail else -1
    return there[innermost] if there else None
