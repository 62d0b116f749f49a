"""Pages and traces in a real Chromium, driven by playwright in an environment of its own below
.cache/."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.venvs import CACHE, CHECKOUT, UnavailableError, locked_environment

MUST = "TEST_MUST_HAVE_BROWSER"
CHROMIUM = ("chromium-headless-shell", "chromium")
LOCK = CHECKOUT / "constraints" / "browser.txt"
LIMIT_S = 100


def look_at(page: Path, name: str) -> list[dict[str, Any]]:
    """What Chromium saw of the page, view by view (tests/support/browse.py); screenshots stay in
    .cache/pages/NAME. Skips the test with the reason where there is no Chromium."""
    _, chromium = _tools()
    folder = CACHE / "pages" / name
    folder.mkdir(parents=True, exist_ok=True)
    seen: list[dict[str, Any]] = _told("browse.py", page, folder, chromium)
    return seen


def ask_perfetto(trace: Path, name: str, *queries: str) -> list[list[list[Any]]]:
    """The rows that Perfetto's own engine answers each query with, in its page; a screenshot stays
    in .cache/pages/NAME.png. Skips as `look_at` does."""
    _, chromium = _tools()
    (CACHE / "pages").mkdir(parents=True, exist_ok=True)
    picture = CACHE / "pages" / f"{name}.png"
    rows: list[list[list[Any]]] = _told("perfetto.py", trace, picture, chromium, *queries)
    return rows


def _told(script: str, *arguments: object) -> Any:
    argv = [_tools()[0], str(Path(__file__).with_name(script)), *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _tools() -> tuple[str, str]:
    found = _find()
    if isinstance(found, str):
        if os.environ.get(MUST):  # set where the machine was prepared for them
            pytest.fail(f"no browser here, although {MUST} is set: {found}")
        pytest.skip(f"no browser here: {found}")
    return found


@functools.cache
def _find() -> tuple[str, str] | str:
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if chromium is None:
        return "no Chromium; Debian has it: apt install chromium-headless-shell"
    try:
        return str(locked_environment("browser", LOCK) / "bin" / "python"), chromium
    except UnavailableError as error:
        return f"playwright cannot be installed: {error}"
