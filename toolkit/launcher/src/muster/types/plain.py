"""Text of anybody's as a terminal may show it: what muster prints itself passes through here.

What ranks write is another matter: it is passed on byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

WIDTH = 200  # characters of a line
SHOWN = 60  # of a value in an error

# C0 but for line ends and tabs, DEL, C1; line and paragraph separators; what has no width or turns
# the direction of text; annotations, tags
_CONTROLS = (
    (0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x61C, 0x61C), (0x180E, 0x180E), (0x200B, 0x200F),
    (0x2028, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0xE0000, 0xE007F),
)  # fmt: skip
_SHOWN_AS: dict[int, str | None] = {
    code: "?" for low, high in _CONTROLS for code in range(low, high + 1) if chr(code) not in "\n\t"
}
_SHOWN_AS[0x0D] = None


def printable(text: str) -> str:
    """Text that UTF-8 can hold and that moves no cursor: `?` for lone surrogates, escapes and
    other controls. Lines end by `\\n` alone."""
    if not text.isascii():
        text = text.encode(errors="replace").decode()
    return text.translate(_SHOWN_AS)


def wrapped(text: str, width: int = WIDTH) -> str:
    """Lines of at most `width` characters, broken at a space where one is; what is left of a line
    is indented further."""
    return "\n".join(piece for line in text.split("\n") for piece in _pieces(line, width))


def shortened(line: str, width: int = WIDTH) -> str:
    """A line of at most `width` characters: of a longer one its beginning and its end."""
    if len(line) <= width:
        return line
    gap = " ... "
    end = width // 4
    return line[: width - len(gap) - end] + gap + line[-end:]


def short(value: object) -> str:
    """A value as an error shows it: on one line, at most 60 characters, with its last quote."""
    if isinstance(value, str):
        value = value[: 4 * SHOWN]  # repr of a huge text is work for nothing
    text = repr(value)
    if len(text) <= SHOWN:
        return text
    end = "" if text[-1].isalnum() else text[-1]
    return f"{text[: SHOWN - 4]}...{end}"


def size_text(count: float) -> str:
    """`812 MiB`, `1.5 GiB`, `97 bytes`."""
    if count < 1024:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
    return f"{count / 1024:.3g} TiB"


def whole_number(text: str, low: int = 0, high: int = 999_999_999) -> int | None:
    """The number that the text is, in plain digits; None for another text, or one out of range."""
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        return None
    return int(text) if low <= int(text) <= high else None


def _pieces(line: str, width: int) -> list[str]:
    pieces = []
    indent = line[: len(line) - len(line.lstrip())][: width // 2] + "    "
    while len(line) > width:
        cut = line.rfind(" ", len(indent) + width // 4, width + 1)
        cut = cut if cut > 0 else width
        pieces.append(line[:cut].rstrip())
        line = indent + line[cut:].lstrip()
    return [*pieces, line]


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Rows as lines with their texts below one another; columns of `right` end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.rjust if place in right else str.ljust for place in range(len(widths))]
    return [
        "  ".join(
            side(text, width) for side, text, width in zip(sides, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
