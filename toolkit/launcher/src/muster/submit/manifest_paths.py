"""`--set PATH=VALUE`: changes of an object of Kubernetes, or of a request to AWS. Pure.

Whether a field exists is for the engine to judge, which knows its own version's: only a path that
is none, or that leads through something of another kind, is refused here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from muster.arguments import UsageError
from muster.types.names import listed
from muster.types.plain import short

Roots = dict[str, Any]  # the first name of a path -> the object that has it
_PART = re.compile(r"\.?([A-Za-z][\w-]*)|\[([^\[\]]+)\]")
_PATH = re.compile(r"[A-Za-z][\w-]*(\.[A-Za-z][\w-]*|\[[^\[\]]+\])*")
# maps of texts alone, wherever they are: a label of true would be refused as a boolean
_TEXTS = ("annotations", "labels", "matchLabels", "nodeSelector")
EXAMPLE = "such as container.NAME=VALUE, container.NAME[KEY]=VALUE or container.NAME[0].NAME=VALUE"


def change(roots: Roots, path: str, text: str) -> None:
    """Sets what `path` names to `text`, which is JSON or else a text; null takes it away. A label
    and the like are texts whatever they look like. What is missing on the way is made; an index may
    be the next one after a list's end.

    Raises UsageError for a path that is no path, or leads through something else.
    """
    parts = _parts(path)
    if parts[0] not in roots:
        what = f"--set {path}: it begins with {parts[0]}"
        raise UsageError(what, f"begin with {listed(roots)}, {EXAMPLE}")
    if len(parts) == 1:
        raise UsageError(f"--set {path}: all of it cannot be replaced", EXAMPLE)
    place: Any = roots[str(parts[0])]
    for at, part in enumerate(parts[:-1]):
        following = parts[at + 1]
        place = _entered(place, part, path, [] if isinstance(following, int) else {})
    value = _value(text)
    if parts[-2] in _TEXTS and value is not None and not isinstance(value, str):
        value = text
    _put(place, parts[-1], value, path)


def change_all(roots: Roots, settings: Mapping[str, str], own: Mapping[str, str]) -> None:
    """All of them in turn. `own`: where muster has entries that the job cannot do without -> the
    field that tells them apart, "" for names with values.

    Raises UsageError as `change` does, and for one that takes such an entry away, as an index does
    that is one of ours.
    """
    made = {at: _entries(roots, at, field) for at, field in own.items()}
    for path, text in settings.items():
        change(roots, path, text)
        for at, field in own.items():
            for lost in made[at]:
                if lost not in _entries(roots, at, field):
                    free = len(made[at]) if field else "NAME"
                    what = f"--set {path}: it takes muster's own {lost} out of {at}"
                    raise UsageError(what, f"add yours as {at}[{free}]")


def _entries(roots: Roots, at: str, field: str) -> list[str]:
    place: Any = roots
    for part in _parts(at):
        inside = place.get(part) if isinstance(place, dict) and isinstance(part, str) else None
        if isinstance(place, list) and isinstance(part, int) and part < len(place):
            inside = place[part]
        # the first name of a path is its root's and its object's
        place = inside[part] if place is roots and isinstance(inside, dict) else inside
    if isinstance(place, dict):
        return [f"{name}={value}" for name, value in place.items()]
    entries = place if isinstance(place, list) else []
    return [str(one[field]) for one in entries if isinstance(one, dict) and field in one]


def _parts(path: str) -> list[str | int]:
    """Names and keys as texts, indices as numbers. Keys in brackets may have dots and slashes."""
    if not _PATH.fullmatch(path):
        raise UsageError(f"--set {short(path)}: that is no path", f"names and [index], {EXAMPLE}")
    found: list[str | int] = []
    for name, bracket in _PART.findall(path):
        found.append(
            name or (int(bracket) if bracket.isascii() and bracket.isdecimal() else bracket)
        )
    return found


def _value(text: str) -> object:
    """JSON, else the text itself, so that names need no quotes. NaN and the like are texts, too:
    they are no JSON, although Python reads them."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _entered(place: Any, part: str | int, path: str, missing: object) -> Any:
    """What `part` names, which becomes `missing` where there is nothing."""
    if _at(place, part, path) is None:
        _put(place, part, missing, path)
    return place[_key(place, part)]


def _at(place: Any, part: str | int, path: str) -> Any:
    if isinstance(place, dict):
        return place.get(_key(place, part))
    if isinstance(place, list):
        if not isinstance(part, int):
            raise UsageError(f"--set {path}: {part} stands where a list is", "write [index]")
        if part > len(place):
            what = f"--set {path}: the list before [{part}] has {len(place)} entries"
            raise UsageError(what, f"the next one is [{len(place)}]")
        return place[part] if part < len(place) else None
    raise UsageError(f"--set {path}: {part} would be in a value, {short(str(place))}", EXAMPLE)


def _put(place: Any, part: str | int, value: object, path: str) -> None:
    there, key = _at(place, part, path), _key(place, part)
    if value is None:
        if there is not None:
            del place[key]
    elif isinstance(place, list) and key == len(place):
        place.append(value)
    else:
        place[key] = value


def _key(place: Any, part: str | int) -> Any:
    return str(part) if isinstance(place, dict) else part
