"""How readers of engines take values out of the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.types.engine import Engine
from muster.types.errors import ConfigError
from muster.types.plain import short, whole_number

Files = Callable[[str], str]  # path -> text of the file, "" where there is none
SECRET_FILE = "MUSTER_JOB_SECRET_FILE"
MAX_COUNT = 100_000


class Values:
    """Reads variables, and keeps where each value came from in `origins`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.origins: dict[str, str] = {}
        self._environ = environ

    def text(self, what: str, *names: str) -> str:
        """The first variable that is set and not empty, or ""."""
        for name in names:
            if self._environ.get(name):
                self.origins[what] = f"variable {name}"
                return self._environ[name]
        return ""

    def number(self, what: str, *names: str, least: int = 0) -> int | None:
        """A whole number, None where no variable is set. Raises ConfigError for another text."""
        text = self.text(what, *names).strip()
        if not text:
            return None
        found = whole_number(text, least, 1 << 40)
        if found is None:
            where = self.origins[what].removeprefix("variable ")
            raise ConfigError.of(where, f"expected a whole number from {least}, got {short(text)}")
        return found

    def needed(self, what: str, *names: str, fix: str, least: int = 0) -> int:
        """As `number`; raises ConfigError where no variable is set."""
        found = self.number(what, *names, least=least)
        if found is None:
            raise ConfigError.of(names[0], f"not set, and nothing else says the {what}", fix)
        return found

    def engine(self, name: str, index: int, count: int, **more: Any) -> Engine:
        """The engine. Raises ConfigError when the index is not one of the hosts."""
        if not 1 <= count <= MAX_COUNT or not 0 <= index < count:
            where = self.origins.get("index", name).removeprefix("variable ")
            hosts = self.origins.get("count", name)
            what = f"index {index} is not one of {count} hosts ({hosts}), which begin with 0"
            raise ConfigError.of(where, what, "give every host an index of its own, from 0")
        secret_file = self.text("secret", SECRET_FILE)
        more.setdefault("secret_file", secret_file)
        return Engine(name, index, count, origins=self.origins, **more)


def each_once(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The names. Raises ConfigError when one of them is there twice."""
    for place, name in enumerate(names):
        if name in names[:place]:
            what = f"host {short(name)} appears twice"
            raise ConfigError.of(where, what, "name every host once, on one line or with commas")
    return names
