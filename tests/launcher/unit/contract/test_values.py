"""Our NamedTuple is typing's, but for what a class of it costs."""

from __future__ import annotations

import pickle
import typing

from muster.types.values import NamedTuple


class Point(NamedTuple):
    """A place."""

    x: int
    y: int = 2
    name: str | None = None

    @property
    def total(self) -> int:
        return self.x + self.y

    @classmethod
    def origin(cls) -> Point:
        return cls(0, 0)


class Nothing(NamedTuple):
    """No field."""


def test_a_value_is_a_tuple_with_names_and_defaults() -> None:
    point = Point(1)
    plain: object = (1, 2, None)
    assert point == plain and point.x == 1 and point.total == 3
    assert Point.origin() == Point(x=0, y=0)
    assert point._replace(name="a") == (1, 2, "a")
    assert Point._fields == ("x", "y", "name")
    assert Point._field_defaults == {"y": 2, "name": None}
    assert Nothing() == () and repr(point) == "Point(x=1, y=2, name=None)"


def test_it_is_a_class_of_its_module() -> None:
    assert (Point.__doc__, Point.__module__, Point.__name__) == ("A place.", __name__, "Point")
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
    assert typing.get_type_hints(Point) == {"x": int, "y": int, "name": str | None}
