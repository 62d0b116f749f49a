"""What a group did, as values and as a file for those who read runs later."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muster_collectives.core.communicator import Communicator
from muster_collectives.core.errors import CollectiveError
from muster_collectives.core.types import Path, Stats, Verb

__all__ = ["GroupStats", "Identity", "summary", "take", "write"]

VERSION = 1
FOLDER = "COLLECTIVES_SUMMARY_DIR"


@dataclass(frozen=True)
class Identity:
    """Which group this is, on which rank. `global_ranks`: its members in the world."""

    name: str
    rank: int
    size: int
    global_ranks: tuple[int, ...]
    life: str


@dataclass(frozen=True)
class GroupStats:
    """Counters since the group was made. `core` None: all CPU tensors go to gloo, `why` says why.
    `fallback` and `device`: calls that went to gloo and to the device's groups, by verb. `waits_s`
    [size]: for how long this rank has waited for each rank last of all."""

    transport: str
    why: str
    core: Stats | None
    waits_s: tuple[float, ...] = ()
    fallback: Mapping[str, int] = field(default_factory=dict)
    device: Mapping[str, int] = field(default_factory=dict)

    def calls(self, verb: Verb) -> int:
        """How many calls of `verb` the core made."""
        return 0 if self.core is None else int(self.core.calls.get(verb, 0))

    def took(self, path: Path) -> int:
        """How many calls took `path` in the core."""
        return 0 if self.core is None else int(self.core.paths.get(path, 0))


def take(
    communicator: Communicator | None,
    why: str,
    fallback: Mapping[str, int],
    device: Mapping[str, int],
) -> GroupStats:
    """The counters now."""
    core: Stats | None = None
    waits: tuple[float, ...] = ()
    transport = "gloo"
    if communicator is not None:
        transport = communicator.transport
        with contextlib.suppress(CollectiveError):  # closed or in a child: nothing to read
            core, waits = communicator.stats(), communicator.waits_s()
    return GroupStats(transport, why, core, waits, dict(fallback), dict(device))


def summary(
    identity: Identity, stats: GroupStats, nodes: tuple[int, ...], began_s: float
) -> dict[str, Any]:
    """One group on one rank as plain values; times in seconds, sizes in bytes."""
    core = stats.core
    return {
        "version": VERSION,
        "group": identity.name,
        "rank": identity.rank,
        "size": identity.size,
        "global_ranks": list(identity.global_ranks),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began_s": began_s,
        "ended_s": time.time(),
        "transport": stats.transport,
        "why": stats.why,
        "nodes": list(nodes),
        "verbs": {} if core is None else _verbs(core),
        "paths": {} if core is None else {
            path.name.lower(): int(count) for path, count in core.paths.items() if count
        },
        "time_s": 0.0 if core is None else core.time_s,
        "wait_s": 0.0 if core is None else core.wait_s,
        "waits_s": list(stats.waits_s),
        "sent_bytes": 0 if core is None else core.sent_bytes,
        "received_bytes": 0 if core is None else core.received_bytes,
        "sends": 0 if core is None else core.sends,
        "receives": 0 if core is None else core.receives,
        "fallback": dict(stats.fallback),
        "device": dict(stats.device),
    }  # fmt: skip


def _verbs(core: Stats) -> dict[str, dict[str, int]]:
    return {
        verb.name.lower(): {"calls": int(count), "bytes": int(core.bytes.get(verb, 0))}
        for verb, count in core.calls.items()
        if count
    }


def write(folder: str, identity: Identity, content: Mapping[str, Any]) -> str:
    """The path of the new file, whole or not there at all. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", identity.name).strip("-") or "group"
    path = os.path.join(folder, f"collectives-{name}-{identity.rank}-{identity.life}.json")
    handle, temporary = tempfile.mkstemp(prefix=".collectives-", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path
