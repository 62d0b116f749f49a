"""What a group did, as values: the core's counters, and those of what went elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster_collectives.binding.communicator import Communicator
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.summary import Figures
from muster_collectives.runtime.types import Path, Stats, Verb

__all__ = ["GroupStats", "figures", "take"]


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


def figures(stats: GroupStats, nodes: Sequence[int]) -> Figures:
    """The same for the summary of the run."""
    return Figures(
        stats.transport, nodes, stats.core, stats.waits_s, stats.why, stats.fallback, stats.device
    )
