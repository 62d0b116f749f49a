"""What `python -m muster_collectives.autotune` has found for this machine, in one JSON file.

{"version": 1, "processors": 2, "machine": "x86_64", "tuning": {"chunk_bytes": 1048576, ...}}
It lies in $XDG_CONFIG_HOME/muster/collectives.json. A file for another machine is not used.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping

from muster_collectives.core.errors import CollectiveError
from muster_collectives.core.tuning import Tuning, decode, encode

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
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_BYTES)
    except OSError:
        return base, ()
    try:
        return read(text, base, processors, platform.machine())
    except (ValueError, TypeError, KeyError, AttributeError, CollectiveError) as error:
        return base, (f"{path} cannot be used and is ignored: {error}",)


def read(text: str, base: Tuning, processors: int, machine: str) -> tuple[Tuning, tuple[str, ...]]:
    """The same for the file's text (pure). Raises ValueError, TypeError, CollectiveError."""
    document = json.loads(text)
    if document["version"] != VERSION:
        raise ValueError(f"it has version {document['version']}, and {VERSION} is known")
    if document["processors"] != processors or document["machine"] != machine:
        found = f"{document['processors']} processors of {document['machine']}"
        return base, (f"the tuned sizes are for {found} and are not used here",)
    given = document["tuning"]
    known = encode(base)
    unknown = sorted(set(given) - set(known))
    notes = (f"the tuned sizes name {', '.join(unknown)}, which is not known",) if unknown else ()
    merged = {**known, **{name: given[name] for name in given if name in known}}
    return decode(merged), notes
