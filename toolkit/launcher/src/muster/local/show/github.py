"""Commands to GitHub Actions in what it reads of a step: a folded group, an error at its line."""

from __future__ import annotations

import os
from collections.abc import Mapping

from muster.local.show.user_files import Place
from muster.types.plain import printable


def in_actions(environ: Mapping[str, str]) -> bool:
    return environ.get("GITHUB_ACTIONS") == "true"


def group(title: str) -> str:
    return f"::group::{_data(title)}"


END_GROUP = "::endgroup::"


def error(message: str, place: Place | None, environ: Mapping[str, str]) -> str:
    """The annotation of a failure, at a line of the workspace where one is known."""
    if place is None:
        return f"::error::{_data(message)}"
    workspace = environ.get("GITHUB_WORKSPACE", "")
    path = os.path.relpath(place.path, workspace) if workspace else place.path
    path = place.path if path.startswith("..") else path
    file = _data(path).replace(":", "%3A").replace(",", "%2C")
    return f"::error file={file},line={place.line}::{_data(message)}"


def _data(text: str) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return printable(text)
