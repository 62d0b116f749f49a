"""Words of a text as a shell would split it, without a shell: nothing is expanded."""

from __future__ import annotations

import shlex


def split_words(text: str) -> list[str]:
    """Raises ValueError, which says what is wrong and at which position (from 0): a quote that is
    never closed, a backslash at the end, or a character that no argument can hold."""
    odd = next((at for at, one in enumerate(text) if _is_odd(one)), None)
    if odd is not None:
        raise ValueError(f"{text[odd]!r} at position {odd} is not allowed in an option")
    try:
        return shlex.split(text)
    except ValueError:
        raise ValueError(_open_end(text)) from None


def _is_odd(character: str) -> bool:
    return (character < " " and character not in "\t\n\r") or "\ud800" <= character <= "\udfff"


def _open_end(text: str) -> str:
    """Where the quote stands that is never closed, or the backslash with nothing after it."""
    quote, start, at = "", 0, 0
    while at < len(text):
        one = text[at]
        if one == "\\" and quote != "'":
            if at + 1 == len(text) and not quote:
                return f"the backslash at position {at} has nothing after it"
            at += 1
        elif one == quote:
            quote = ""
        elif not quote and one in "\"'":
            quote, start = one, at
        at += 1
    return f"the quote {quote} at position {start} is not closed"
