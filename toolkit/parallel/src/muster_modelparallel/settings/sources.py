"""Where parameters come from: the launcher's variable, the command line, and the script itself.

| Source | Form |
| SM_HP_MP_PARAMETERS | a JSON object; SageMaker makes it from the hyperparameter mp_parameters |
| --mp_parameters | `key=value,key=value`, as SageMaker passes the same on, or a JSON object |
| init(config) | a dictionary |

The first two are the launcher's; where both are there the variable counts: its values have types.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from muster_modelparallel.errors import SettingsError
from muster_modelparallel.settings.keys import key_of
from muster_modelparallel.settings.rules import canonical, short

VARIABLE = "SM_HP_MP_PARAMETERS"
OPTION = "--mp_parameters"
SCRIPT = "init(config)"
MOST_TEXT = 1 << 20  # characters
MOST_DEPTH = 8  # objects within objects; every known key's value is none
_OPTIONS = (OPTION, "--mp-parameters")  # argparse of transformers takes both
_EXAMPLE = 'send an object such as {"partitions": 2, "microbatches": 4}'


class Source(NamedTuple):
    """What one of them sent, by the names that it used."""

    name: str
    parameters: Mapping[str, object]


def from_launcher(environ: Mapping[str, str], arguments: Sequence[str]) -> tuple[Source, str]:
    """What the launcher sent, and a note where its two sources differ. Raises SettingsError for
    text that cannot be read; not for that of the command line when the variable is there."""
    option = _argument(arguments)
    if not environ.get(VARIABLE, "").strip():
        return Source(OPTION, _from_argument(option) if option else {}), ""
    source = Source(VARIABLE, _object(VARIABLE, environ[VARIABLE]))
    try:
        said = canonical(_from_argument(option)) if option else {}
    except SettingsError:  # a comma within a value: the variable has it whole
        return source, ""
    mine = canonical(source.parameters)
    other = [name for name, value in said.items() if key_of(name) and mine.get(name) != value]
    if not other:
        return source, ""
    name = other[0]
    what = f"{OPTION} says {name}={short(said[name])}, {VARIABLE} {short(mine.get(name))}"
    return source, f"{what}: the variable counts"


def from_script(given: object) -> Source:
    """The dictionary given to `init`. Raises SettingsError for what is none."""
    if given is None:
        return Source(SCRIPT, {})
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise SettingsError(f"{SCRIPT}: expected a dictionary, got {short(given)}", _EXAMPLE)
    return Source(SCRIPT, dict(given))


def _argument(arguments: Iterable[str]) -> str:
    """The option's text, as argparse takes it: the last one counts."""
    text, expected = "", False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if expected:
            text, expected = argument, False
        elif name in _OPTIONS:
            text, expected = (value, False) if equals else (text, True)
    return text.strip()


def _from_argument(text: str) -> dict[str, object]:
    """`k=v,...` with values of the kinds of their keys, or a JSON object."""
    if text.startswith("{"):
        return _object(OPTION, text)
    _check_length(OPTION, text)
    found: dict[str, object] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name:
            fix = "a value with commas needs a JSON object in place of key=value"
            raise SettingsError(f"{OPTION}: expected key=value, got {short(item)}", fix)
        if name in found:
            raise SettingsError(f"{OPTION}: {name} is given twice", "give it once")
        key = key_of(name)
        found[name] = key.from_text(value) if key else value
    return found


def _object(where: str, text: str) -> dict[str, object]:
    """A JSON object without anything that JSON lacks. Raises SettingsError."""
    _check_length(where, text)
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        what = f"{where}: expected a JSON object, got {short(text)}: {why}"
        raise SettingsError(what, _EXAMPLE) from None
    if not isinstance(found, dict):
        raise SettingsError(f"{where}: expected a JSON object, got {short(found)}", _EXAMPLE)
    if _depth(found) > MOST_DEPTH:
        raise SettingsError(f"{where}: values are nested more than {MOST_DEPTH} deep", _EXAMPLE)
    return found


def _check_length(where: str, text: str) -> None:
    if len(text) > MOST_TEXT:
        what = f"{where}: expected at most {MOST_TEXT:,} characters, got {len(text):,}"
        raise SettingsError(what, _EXAMPLE)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{short(twice)} is given twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _depth(value: object) -> int:
    """How many objects and lists lie within each other."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
    return depth
