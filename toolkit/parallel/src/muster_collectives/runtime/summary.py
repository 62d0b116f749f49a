"""What a group did on one rank, as a file for those who read runs later.

One JSON object in COLLECTIVES_SUMMARY_DIR for each group and rank, written when the group ends: at
its close, or at the latest when the interpreter ends. A rank that is killed leaves none; a kill in
the very moment of writing may leave a file `.collectives-*`, which no reader takes for a summary.
docs/reference/collectives.md lists the fields.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster_collectives.runtime.environment import run_of
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.flight import write_json
from muster_collectives.runtime.types import Path, Stats, Verb

VERSION = 1
FOLDER = "COLLECTIVES_SUMMARY_DIR"
_log = logging.getLogger("muster_collectives")


@dataclass(frozen=True)
class Identity:
    """Which group this is, on which rank. `global_ranks`: its members in the world. `life`: a word
    that all ranks of this making of the group have and no other. `layer`: core, torch or
    tensorflow, who calls."""

    name: str
    rank: int
    size: int
    global_ranks: tuple[int, ...]
    life: str
    layer: str = "core"


@dataclass(frozen=True)
class GroupStats:
    """Counters since the group was made. `core` None: the core was not used and `why` says why.
    `nodes` [size]. `waits_s` [size]: for how long this rank has waited for each rank last of all.
    `fallback` and `device`: calls that went to gloo and to the device's groups, by verb."""

    transport: str
    nodes: Sequence[int]
    core: Stats | None = None
    waits_s: Sequence[float] = ()
    why: str = ""
    fallback: Mapping[str, int] = field(default_factory=dict)
    device: Mapping[str, int] = field(default_factory=dict)

    def calls(self, verb: Verb) -> int:
        """How many calls of `verb` the core made."""
        return 0 if self.core is None else int(self.core.calls.get(verb, 0))

    def took(self, path: Path) -> int:
        """How many calls took `path` in the core."""
        return 0 if self.core is None else int(self.core.paths.get(path, 0))


class Summary:
    """One group on one rank, from its making on. `folder` "": none is written."""

    def __init__(self, identity: Identity, folder: str) -> None:
        self.identity = identity
        self.folder = folder
        self._began_s, self._began = time.time(), time.monotonic()
        self._pid = os.getpid()

    def write(self, figures: Callable[[], GroupStats]) -> None:
        """Never raises: a folder that cannot be used is one warning of this process, whatever the
        number of groups. Nothing in a forked child, whose parent writes."""
        if not self.folder or os.getpid() != self._pid:
            return
        try:
            found = figures()
        except CollectiveError:  # closed meanwhile, or a child of the process: nothing to read
            return
        try:
            write_json(os.path.join(self.folder, self._name()), self.document(found))
        except OSError as error:
            _warn_once(self.folder, error.strerror or str(error))

    def document(self, figures: GroupStats) -> dict[str, Any]:
        """As plain values; times in seconds, sizes in bytes."""
        identity = self.identity
        return {
            "version": VERSION,
            "run": run_of(os.environ),
            "layer": identity.layer,
            "group": identity.name,
            "life": identity.life,
            "rank": identity.rank,
            "size": identity.size,
            "global_ranks": list(identity.global_ranks),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "began_s": self._began_s,
            "ended_s": time.time(),
            "lasted_s": time.monotonic() - self._began,
            "transport": figures.transport,
            "why": figures.why,
            "nodes": list(figures.nodes),
            **_counters(figures.core or Stats({}, {}, {})),
            "waits_s": list(figures.waits_s),
            "fallback": dict(figures.fallback),
            "device": dict(figures.device),
        }

    def _name(self) -> str:
        safe = re.sub(r"[^A-Za-z0-9]+", "-", self.identity.name).strip("-")[:100] or "group"
        return f"collectives-{safe}-{self.identity.rank}-{self.identity.life}.json"


def _counters(stats: Stats) -> dict[str, Any]:
    names = ("time_s", "wait_s", "sent_bytes", "received_bytes", "sends", "receives",
             "sends_bytes", "receives_bytes")  # fmt: skip
    return {
        "verbs": {
            verb.name.lower(): {
                "calls": int(count), "bytes": int(stats.bytes.get(verb, 0)),
                "time_s": stats.times_s.get(verb, 0.0),
            }
            for verb, count in stats.calls.items() if count
        },
        "paths": {path.name.lower(): int(count) for path, count in stats.paths.items() if count},
        **{name: getattr(stats, name) for name in names},
    }  # fmt: skip


@functools.lru_cache(maxsize=64)
def _warn_once(folder: str, why: str) -> None:
    _log.warning(
        "%s=%s cannot be written, so there are no summaries of this process's groups: %s\n"
        "  Fix: a folder on every host that the ranks' user may write to", FOLDER, folder, why,
    )  # fmt: skip
