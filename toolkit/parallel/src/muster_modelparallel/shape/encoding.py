"""Frozen values to JSON and back: what the annotations of a dataclass say is what is accepted."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from muster_modelparallel.errors import PlanError

T = TypeVar("T")


def to_json(value: object) -> Any:
    """The value as dictionaries, lists and scalars. Fields that have their default stay away."""
    if dataclasses.is_dataclass(value):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field.name: to_json(held) for field, held in fields if held != field.default}
    if isinstance(value, tuple):
        return [to_json(one) for one in value]
    return value


def from_json(kind: type[T], data: object, where: str) -> T:
    """The dataclass `kind` that `to_json` wrote. Raises PlanError with the place, what was expected
    and what was found, also for what the constructor of a value refuses with ValueError."""
    made: T = _read(kind, data, where)
    return made


def _read(kind: Any, data: object, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise _unexpected("a list", data, where)
        if inner[-1] is not Ellipsis and len(inner) != len(data):
            raise _unexpected(f"{len(inner)} values", data, where)
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        pairs = enumerate(zip(kinds, data, strict=True))
        return tuple(_read(one, item, f"{where}[{index}]") for index, (one, item) in pairs)
    if origin in {Union, types.UnionType}:  # only `X | None`
        return None if data is None else _read(inner[0], data, where)
    if origin is Literal:
        if data not in inner:
            raise _unexpected(" or ".join(map(repr, inner)), data, where)
        return data
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if type(data) is not kind or (isinstance(data, float) and not math.isfinite(data)):
        raise _unexpected(
            {str: "a string", int: "an integer"}.get(kind, kind.__name__), data, where
        )
    return data


def _read_fields(kind: Any, data: object, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise _unexpected("an object", data, where)
    hints = get_type_hints(kind)
    required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    if missing := sorted(required - data.keys()):
        raise PlanError(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(data.keys() - hints.keys()):
        raise PlanError(f"{where} has unknown fields: {', '.join(map(str, unknown))}")
    fields = {name: _read(hints[name], data[name], f"{where}.{name}") for name in data}
    try:
        return kind(**fields)
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from error


def _unexpected(expected: str, found: object, where: str) -> PlanError:
    return PlanError(f"{where}: expected {expected}, found {str(found)[:60]!r}")
