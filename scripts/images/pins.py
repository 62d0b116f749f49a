"""docker/versions.env: the only place of pins and public upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scripts.images.errors import ImageError

CHECKOUT = Path(__file__).resolve().parents[2]
PINS = CHECKOUT / "docker" / "versions.env"
VERSION = CHECKOUT / "toolkit" / "version.py"


def read_env(path: Path) -> dict[str, str]:
    """The NAME=value lines of a file, in order. Raises ImageError naming the line."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.isidentifier() or not name.isupper():
            raise ImageError(f"{path}:{number}: expected NAME=value, got {line!r}")
        found[name] = value
    return found


def pins() -> Mapping[str, str]:
    return read_env(PINS)


def version() -> str:
    """The version of the toolkit."""
    _, _, rest = VERSION.read_text().partition('__version__ = "')
    return rest.partition('"')[0]
