"""`typing.NamedTuple` for a program whose start counts.

typing compiles each annotation of each class as it is made: 12 ms for the hundred classes on the
path of `train`. Here annotations stay as they are written, in `__annotations__`. What a class may
hold is for the type checker, which takes it for typing's.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING

__all__ = ["NamedTuple"]

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Made(type):
        def __new__(meta, name, bases, body):
            if not bases:  # NamedTuple itself
                return super().__new__(meta, name, bases, body)
            fields = body.get("__annotations__", {})
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for attribute, value in body.items():
                setattr(made, attribute, value)
            return made

    class NamedTuple(metaclass=_Made):
        """A class below it is a tuple with the fields that it annotates."""
