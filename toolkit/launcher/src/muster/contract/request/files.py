"""The base folder and the JSON files below it (B01, B40)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from muster.contract.findings import Findings
from muster.types.job import Paths
from muster.types.names import listed
from muster.types.plain import short

BASE_VARIABLE = "SAGEMAKER_BASE_DIR"
DEFAULT_BASE = "/opt/ml"
MAX_FILE_BYTES = 16 << 20
MAX_DEPTH = 100  # of nested lists and objects
_SEARCHED_BYTES = 1 << 20  # of a file that is searched for keys that stand twice

_KINDS = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


def find_paths(environ: Mapping[str, str], findings: Findings) -> Paths | None:
    """The layout below the base folder; None when the variable names no folder (B40)."""
    base = environ.get(BASE_VARIABLE, "")
    if not base:
        findings.origins["base"] = "default"
        return Paths.below(DEFAULT_BASE)
    findings.origins["base"] = f"variable {BASE_VARIABLE}"
    if os.path.isabs(base) and os.path.isdir(base):
        return Paths.below(base.rstrip("/") or "/")
    findings.problem(
        BASE_VARIABLE,
        f"base folder: {short(base)} is not an absolute directory",
        f"unset {BASE_VARIABLE} or name an existing folder by its absolute path",
    )
    return None


def load_object(folder: str, name: str, findings: Findings) -> dict[str, object] | None:
    """The JSON object in `folder/name`, or None after telling what is wrong with the file.

    A key that stands twice in one object is a warning: the last one counts.
    """
    text = _load_text(folder, name, findings)
    if text is None:
        return None
    twice: list[str] = []
    try:
        document = _parse(text, twice)
    except json.JSONDecodeError as error:
        hint = error.msg.replace("Expecting", "expected").replace(" delimiter", "")
        what = f"invalid JSON at line {error.lineno} column {error.colno} ({hint})"
        findings.problem(name, what, f"fix {folder}/{name}")
        return None
    except (RecursionError, ValueError):  # ValueError: an integer of over 4,300 digits
        what = "nested too deeply, or holds a number of thousands of digits"
        findings.problem(name, what, f"fix {folder}/{name}")
        return None
    if not isinstance(document, dict):
        kind = "null" if document is None else _KINDS.get(type(document), "something else")
        findings.problem(name, f"expected an object, got {kind}", f"fix {folder}/{name}")
        return None
    if too_deep(document, text):
        what = f"nested more than {MAX_DEPTH} levels deep"
        findings.problem(name, what, "pass deep structures as a file in a channel")
        return None
    if twice:
        keys = listed([short(key) for key in twice])
        findings.warn(f"{name}: keys that stand twice, the last one counts: {keys}")
    return document


def _parse(text: str, twice: list[str]) -> object:
    """The value of a JSON text; `twice` gets the repeated keys of one that is not large."""
    if len(text) > _SEARCHED_BYTES:
        return json.loads(text)

    def build(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            left = set(result)
            for key, _ in pairs:
                if key not in left:
                    twice.append(key)
                left.discard(key)
        return result

    return json.loads(text, object_pairs_hook=build)


def _load_text(folder: str, name: str, findings: Findings) -> str | None:
    try:
        with open(f"{folder}/{name}", "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        findings.problem(
            name,
            f"not found in {folder}",
            f"run it by SageMaker, local mode, muster local or muster run; or set {BASE_VARIABLE}",
        )
        return None
    except OSError as error:
        what = f"cannot be read in {folder}: {error.strerror}"
        findings.problem(name, what, "let this user read it")
        return None
    if len(data) > MAX_FILE_BYTES:
        what = f"larger than {MAX_FILE_BYTES >> 20} MiB"
        findings.problem(name, what, "pass large values as a file in a channel")
        return None
    try:
        text = data.decode("utf-8-sig")  # a byte-order mark is accepted
    except UnicodeDecodeError as error:
        findings.problem(name, f"not valid UTF-8 at byte {error.start}", "save it as UTF-8")
        return None
    if not text.strip():
        findings.problem(name, "file is empty", f"fix {folder}/{name}")
        return None
    return text


def too_deep(value: object, text: str) -> bool:
    """Whether `value`, decoded from `text`, is nested over 100 levels deep.

    What is deeper survives decoding but not the encoders and copies after it.
    """
    if not isinstance(value, dict | list) or text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        items = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True
