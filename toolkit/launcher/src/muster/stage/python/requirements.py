"""Reads requirements files as far as the launcher must understand them (B42)."""

from __future__ import annotations

import codecs
import os
import re

from muster.types.errors import InstallError

_INDEX_OPTION = re.compile(r"(-i|--index-url|--extra-index-url|-f|--find-links)\b[\s=]*(.*)")
_CARRIED = re.compile(
    r"(-i|-f|--(index-url|extra-index-url|find-links|no-index|trusted-host|pre|prefer-binary|"
    r"only-binary|no-binary|use-feature))\b"
)
_NESTED = re.compile(r"(?:-r|--requirement)[\s=]+(\S.*)")
_DEPTH = 8
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def lines_of(path: str) -> list[tuple[int, str]]:
    """(number, text) of every line that is not blank and not a comment; continued ones joined.

    Raises InstallError for a file that is not text, OSError for one that cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise _not_text(path, data, error.start) from error
    if "\0" in text:
        raise _not_text(path, data, data.find(b"\0"))
    found: list[tuple[int, str]] = []
    begun = ""
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = begun + re.sub(r"(^|\s)#.*$", "", raw).strip()
        if line.endswith("\\"):
            begun = line[:-1]
            continue
        begun = ""
        if line.strip():
            found.append((number, line))
    return found


def check(path: str, lines: list[tuple[int, str]], network_isolation: bool) -> None:
    """Raises InstallError for a line that asks for an index where there is no network."""
    for number, line in lines if network_isolation else ():
        option = _INDEX_OPTION.match(line)
        if option and "://" in option[2] and not option[2].startswith("file:"):
            from muster.types.masking import Masker

            raise InstallError(
                f"{path} line {number} names a package index, but this job has no network:"
                f" {Masker().mask(line)}",
                "build the packages into the image, or switch network isolation off",
            )


def options_of(path: str, depth: int = 0) -> list[str]:
    """The lines, nested files included, that say where packages come from and which are good.

    Folders in them are made absolute, so that the lines mean the same in another file.
    """
    folder = os.path.dirname(path)
    found = []
    for _, line in lines_of(path):
        nested = _NESTED.match(line)
        if nested and depth < _DEPTH and "://" not in nested[1]:
            found += options_of(os.path.join(folder, nested[1]), depth + 1)
        elif _CARRIED.match(line):
            place = _INDEX_OPTION.match(line)
            local = os.path.join(folder, place[2]) if place and "://" not in place[2] else ""
            found.append(f"{place[1]} {local}" if place and os.path.exists(local) else line)
    return found


def _not_text(path: str, data: bytes, place: int) -> InstallError:
    line = data.count(b"\n", 0, place) + 1
    return InstallError(
        f"{path} is not text: byte 0x{data[place]:02x} in line {line}",
        "save it as UTF-8, one requirement a line",
    )
