"""Elements of HTML and SVG as text, with everything escaped that comes from outside."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

STAGE_COLORS = 8
"""Stage k has the class `stage(k mod STAGE_COLORS)`; the style sheet gives each a color."""


class Markup(str):
    """Text that is markup, so that it is not escaped again."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """`<tag attributes>children</tag>`; `class_` is `class`, `_` in a name is `-`. Floats get two
    decimals. Children that are no Markup are escaped."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for name, value in attributes.items()
    )
    inner = "".join(one if isinstance(one, Markup) else escape(one) for one in children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>")


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(parts))


def bar(x: float, y: float, width: float, height: float, class_: str, title: str) -> Markup:
    """A rectangle that says `title` under the pointer."""
    place = {"x": x, "y": y, "width": max(width, 0.0), "height": height}
    return element("rect", element("title", title), class_=class_, **place)


def label(x: float, y: float, text: str, room: float, class_: str = "label") -> Markup:
    """Text that is cut where the room ends; no text where not even three letters fit."""
    letters = int(room / 6.5)
    if letters < 3:
        return Markup("")
    short = text if len(text) <= letters else f"{text[: letters - 1]}…"
    return element("text", short, x=x, y=y, class_=class_)


def drawing(width: float, height: float, title: str, parts: Iterable[str]) -> Markup:
    """An SVG as wide as its place on the page."""
    box = f"0 0 {_number(width)} {_number(height)}"
    named = element("title", title)
    return element("svg", named, joined(parts), viewBox=box, role="img", width="100%")


def seconds(value: float) -> str:
    """With a unit that suits."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def size(value: float) -> str:
    """With a unit that suits."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
