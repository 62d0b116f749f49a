"""What a build is asked for beside its target: Python, torch, the day of Debian's packages.

All of it are arguments of the Dockerfile, NAME=value; those of this module have a place of their
own in the tag.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scripts.images.errors import ImageError
from scripts.images.pins import CHECKOUT, pins

LOCKS = CHECKOUT / "docker" / "constraints"
REFRESHED = CHECKOUT / ".cache" / "images" / "refreshed"  # what REFRESH was last


class Choice(NamedTuple):
    """`base`: the pinned base of that Python. `torch`: "" for the pinned one. `refresh`: "" where
    none was asked for. `further`: the other arguments."""

    python: str
    suite: str
    base: str
    torch: str = ""
    refresh: str = ""
    further: tuple[str, ...] = ()

    def arguments(self) -> tuple[str, ...]:
        """Those of the Dockerfile, but for the base, which may be another."""
        named = {
            "PYTHON": self.python,
            "SUITE": self.suite,
            "TORCH_VERSION": self.torch,
            "REFRESH": self.refresh,
        }
        return (*(f"{name}={value}" for name, value in named.items() if value), *self.further)


def pythons() -> Mapping[str, tuple[str, str]]:
    """Suite and base of each Python that images can be made with."""
    known = pins()
    names = [name for name in known if name.startswith("BASE_IMAGE_")]
    versions = {name.removeprefix("BASE_IMAGE_"): name for name in names}
    return {
        version.replace("_", "."): (known[f"BASE_SUITE_{version}"], known[name])
        for version, name in versions.items()
    }


def choose(target: str, arguments: Sequence[str] = ()) -> Choice:
    """Raises ImageError for what cannot be had."""
    given = dict(one.split("=", 1) for one in arguments)
    python = given.pop("PYTHON", "") or pins()["IMAGE_PYTHON"]
    known = pythons()
    if python not in known:
        cure = f"PYTHON is one of {', '.join(known)}; more of them: docker/versions.env"
        raise ImageError(f"no base is pinned for Python {python}", cure)
    given.pop("SUITE", "")  # it is the Python's
    torch = given.pop("TORCH_VERSION", "")
    if torch:
        _locked(target, torch)
    refresh = _refresh(given.pop("REFRESH", ""))
    further = tuple(f"{name}={value}" for name, value in given.items())
    return Choice(python, *known[python], torch, refresh, further)


def _locked(target: str, torch: str) -> None:
    """Only the images with torch's CPU build have a lock for each torch."""
    plain = target.removesuffix("-test")
    if plain in ("cuda-efa", "neuron") and torch != pins()["TORCH_VERSION"]:
        cure = f"set the version in docker/constraints/{plain}.in and make lock"
        raise ImageError(f"{plain} has a lock for one torch only, not for {torch}", cure)
    if not (LOCKS / f"torch-{torch}.txt").is_file():
        there = sorted(path.stem.removeprefix("torch-") for path in LOCKS.glob("torch-*.txt"))
        raise ImageError(
            f"torch {torch} has no lock by hash; there are {', '.join(there)}",
            f"make lock-torch TORCH={torch}, on a machine that reaches torch's index",
        )


def _refresh(asked: str) -> str:
    """1 is today; later builds keep it, else they would find the older packages in the cache and
    take them. 0 is to have none again."""
    if asked in ("0", "no"):
        REFRESHED.unlink(missing_ok=True)
    elif asked:
        today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d")
        value = today if asked == "1" else asked
        if not re.fullmatch(r"\d{8}(\.\d{1,3})?", value):
            cure = "REFRESH=1 is today; a second one of a day: REFRESH=20261123.2"
            raise ImageError(f"REFRESH={asked} is no day", cure)
        REFRESHED.parent.mkdir(parents=True, exist_ok=True)
        REFRESHED.write_text(value)
    return REFRESHED.read_text().strip() if REFRESHED.is_file() else ""
