"""`typing.NamedTuple` for a program whose start counts.

typing compiles each annotation of each class as it is made: 12 ms for the hundred classes on the
path of `train`. Here annotations stay as they are written, in `__annotations__`. What a class may
hold is for the type checker, which takes it for typing's.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import TYPE_CHECKING

__all__ = ["Bare", "NamedTuple"]

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
            if "check" in body:
                make = made.__new__

                def checked(cls, *values, **fields):
                    value = make(cls, *values, **fields)
                    value.check()
                    return value

                made.__new__ = staticmethod(checked)
            return made

    class NamedTuple(metaclass=_Made):
        """A class below it is a tuple with the fields that it annotates.

        Its method `check`, if it has one, is called for every new value and raises ValueError for
        one that cannot be.
        """


class Bare:
    """A value without fields, equal to values of its own class only.

    NamedTuples without fields would all be equal, as empty tuples are.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
