"""What `python -m muster_collectives.bench --tune` has found for this machine, in one JSON file.

{"version": 1, "processors": 2, "machine": "x86_64", "tuning": {"chunk_bytes": 1048576, ...}}
It lies in $XDG_CONFIG_HOME/muster/collectives.json. A file for another machine is not used.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping

from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.tuning import Tuning, decode, encode

VERSION = 1
_MAX_BYTES = 1 << 16


def path_of(environ: Mapping[str, str]) -> str:
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".config"
    )
    return os.path.join(home, "muster", "collectives.json")


def apply(path: str, base: Tuning, processors: int) -> tuple[Tuning, tuple[str, ...]]:
    """`base` with what the file says, and what is to be said of it. Never raises."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return base, ()
    except OSError as error:
        return base, (f"{path} cannot be read and is ignored: {error.strerror}",)
    try:
        return read(content, path, base, processors, platform.machine())
    except SettingsError as error:
        return base, (f"{path} cannot be used and is ignored: {error.message}",)
    except (ValueError, RecursionError) as error:
        return base, (f"{path} cannot be used and is ignored: {error}",)


def read(
    content: bytes, path: str, base: Tuning, processors: int, machine: str
) -> tuple[Tuning, tuple[str, ...]]:
    """The same for the file's content (pure). Raises ValueError, RecursionError, SettingsError."""
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    document = json.loads(content)
    if not isinstance(document, dict) or not isinstance(document.get("tuning"), dict):
        raise ValueError("it is none that bench --tune wrote")
    if document.get("version") != VERSION:
        raise ValueError(f"it has version {document.get('version')}, and {VERSION} is known")
    if (document.get("processors"), document.get("machine")) != (processors, machine):
        found = f"{document.get('processors')} processors of {document.get('machine')}"
        return base, (f"{path}: the tuned sizes are for {found} and are not used here",)
    given, known = document["tuning"], encode(base)
    unknown = sorted(set(given) - set(known))
    notes = (f"{path}: the tuned sizes name {', '.join(unknown)}, which is not known",)
    merged = {**known, **{name: _number(name, given[name]) for name in given if name in known}}
    return decode(merged), notes if unknown else ()


def _number(name: str, value: object) -> object:
    """Sizes are whole numbers, switches true or false, spin_s seconds."""
    kinds = {"spin_s": (int, float), "checked": (bool,)}
    if type(value) not in kinds.get(name, (int,)):
        raise ValueError(f"{name} is {json.dumps(value)}")
    return value
