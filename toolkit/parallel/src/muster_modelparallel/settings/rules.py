"""What is wrong with parameters: values that no key can have, and keys that exclude each other.

The launcher says the same, with the same words, before a job starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from muster_modelparallel.errors import SettingsError
from muster_modelparallel.settings.keys import ALIASES, KEYS, key_of

_SHOWN = 60  # characters of a value in an error


class Problem(NamedTuple):
    """What is wrong, where, and what to do about it ("": `what` says it)."""

    where: str
    what: str
    fix: str = ""


def problems_of(parameters: Mapping[str, object], where: str) -> list[Problem]:
    """All that is wrong with the parameters of one source, which `where` names."""
    found = [*wrong_values(parameters, where), *both_names(parameters, where)]
    return found + clashes(canonical(parameters), where)


def wrong_values(parameters: Mapping[str, object], where: str) -> list[Problem]:
    """The values that are not what their key wants. None stands for the default."""
    return [
        Problem(f"{where}.{name}", f"expected {key.expected}, got {short(value)}")
        for name, value in parameters.items()
        if (key := key_of(str(name))) is not None and value is not None and not key.fits(value)
    ]


def both_names(parameters: Mapping[str, object], where: str) -> list[Problem]:
    """Keys that were given by both of their names, with two values."""
    found = []
    for alias, name in ALIASES.items():
        old, new = parameters.get(alias), parameters.get(name)
        if old is not None and new is not None and old != new:
            what = f"{alias} is {short(old)} and {name} {short(new)}: both name one thing"
            found.append(Problem(where, what, "send one of them"))
    return found


def canonical(parameters: Mapping[str, object]) -> dict[str, object]:
    """The same without aliases, and without keys whose value is their default, None. A key that was
    given by both of its names has the value of the newer one."""
    named = {name: value for name, value in parameters.items() if value is not None}
    return {
        (own := ALIASES.get(name, name)): named.get(own, value) for name, value in named.items()
    }


def clashes(given: Mapping[str, object], where: str) -> list[Problem]:
    """Keys that exclude each other. `given`: without aliases."""
    found = []
    half = [name for name in ("fp16", "fp16_params") if given.get(name) is True]
    if half and given.get("bf16") is True:
        found.append(Problem(where, f"{half[0]} and bf16 are both true", "choose one"))
    found += outside(given, _number(given, "pipeline_parallel_degree"), where)
    sharded = _number(given, "sharded_data_parallel_degree", 1)
    if sharded > 1 and given.get("shard_optimizer_state") is True:
        what = f"sharded_data_parallel_degree {sharded} shards the optimizer's state already"
        found.append(Problem(where, what, "leave out shard_optimizer_state"))
    hybrid, context = _number(given, "hybrid_shard_degree"), _number(given, _CONTEXT, 1)
    if 0 < hybrid < context:
        what = f"{_CONTEXT} {context} is more than hybrid_shard_degree {hybrid}"
        found.append(Problem(where, what, f"use at most {hybrid}"))
    second = _of_version(given, 2)
    if second and _of_version(given, 1):
        what = f"{second[0]} is a key of version 2 of the library, beside keys of version 1"
        found.append(Problem(where, what, "send the keys of one of them"))
    return found


def outside(given: Mapping[str, object], degree: int, where: str) -> list[Problem]:
    """A default partition that is none of `degree` partitions; 0: nobody said how many."""
    default = _number(given, "default_partition")
    if not default >= degree > 0:
        return []
    what = f"default_partition {default} is none of the {degree} partitions, which begin at 0"
    return [Problem(where, what, f"use at most {degree - 1}")]


def is_version_2(given: Mapping[str, object]) -> bool:
    """Whether keys were sent that only version 2 of the library has."""
    return bool(_of_version(given, 2))


def refuse(problems: Iterable[Problem]) -> None:
    """Raises SettingsError with all of them; without any, nothing."""
    listed = list(problems)
    if not listed:
        return
    if len(listed) == 1:
        where, what, fix = listed[0]
        raise SettingsError(f"{where}: {what}", fix)
    texts = (f"{where}: {what}" + (f"; {fix}" if fix else "") for where, what, fix in listed)
    raise SettingsError(f"{len(listed)} problems:\n  " + "\n  ".join(texts))


def short(value: object) -> str:
    """A value as an error shows it: on one line, at most 60 characters."""
    text = repr(value[: 4 * _SHOWN] if isinstance(value, str) else value)
    if len(text) <= _SHOWN:
        return text
    end = "" if text[-1].isalnum() else text[-1]
    return f"{text[: _SHOWN - 4]}...{end}"


_CONTEXT = "context_parallel_degree"


def _of_version(given: Mapping[str, object], version: int) -> list[str]:
    """The keys that this version alone has."""
    return [name for name in given if name in KEYS and KEYS[name].version == version]


def _number(given: Mapping[str, object], name: str, default: int = 0) -> int:
    value = given.get(name)
    return value if isinstance(value, int) else default
