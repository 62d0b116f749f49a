"""The files of a folder as values. A file that is none of ours is named and left out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_collectives.runtime.summary import VERSION

PATTERN = "collectives-*.json"
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class VerbFigures:
    """What one rank's summary says of one verb: elements' `bytes` as the call counts them,
    `time_s` in the calls."""

    calls: int
    bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One group on one rank; docs/reference/collectives.md has the fields. `nodes` may be empty
    where the core was not used. Times in seconds."""

    run: str
    layer: str
    group: str
    life: str
    rank: int
    size: int
    global_ranks: tuple[int, ...]
    host: str
    began_s: float
    lasted_s: float
    transport: str
    why: str
    nodes: tuple[int, ...]
    verbs: Mapping[str, VerbFigures]
    time_s: float
    wait_s: float
    waits_s: tuple[float, ...]
    sent_bytes: int
    received_bytes: int
    sends_bytes: int
    receives_bytes: int
    elsewhere: int

    @property
    def calls(self) -> int:
        return sum(verb.calls for verb in self.verbs.values())

    @property
    def bytes(self) -> int:
        return sum(verb.bytes for verb in self.verbs.values())


@dataclass(frozen=True, slots=True)
class Files:
    """The summaries of a folder. `found` in no order; `refused` has a line for each file that
    cannot be used."""

    found: tuple[RankSummary, ...]
    refused: tuple[str, ...]


def read_folders(folders: Iterable[Path]) -> Files:
    """All summaries in these folders (one for each host, say), each rank's once.

    Raises OSError for a folder that cannot be read.
    """
    found: dict[tuple[str, str, int], RankSummary] = {}
    refused = []
    for folder in folders:
        for path in sorted(each for each in folder.iterdir() if each.match(PATTERN)):
            try:
                with path.open("rb") as file:
                    one = read(file.read(_MOST_BYTES + 1))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                refused.append(f"{path}: {error if str(error) else type(error).__name__}")
                continue
            found[one.group, one.life, one.rank] = one
    return Files(tuple(found.values()), tuple(refused))


def read(text: bytes) -> RankSummary:
    """One file (pure). Raises ValueError, KeyError, TypeError, AttributeError for another file."""
    if len(text) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    said: Mapping[str, Any] = json.loads(text)
    if said["version"] != VERSION:
        raise ValueError(f"it has version {said['version']}, and {VERSION} is known")
    made = RankSummary(
        run=str(said["run"]), layer=str(said["layer"]), group=str(said["group"]),
        life=str(said["life"]), rank=int(said["rank"]), size=int(said["size"]),
        global_ranks=tuple(map(int, said["global_ranks"])), host=str(said["host"]),
        began_s=float(said["began_s"]), lasted_s=float(said["lasted_s"]),
        transport=str(said["transport"]), why=str(said["why"]),
        nodes=tuple(map(int, said["nodes"])),
        verbs={str(name): VerbFigures(int(verb["calls"]), int(verb["bytes"]), float(verb["time_s"]))
               for name, verb in said["verbs"].items()},
        time_s=float(said["time_s"]), wait_s=float(said["wait_s"]),
        waits_s=tuple(map(float, said["waits_s"])), sent_bytes=int(said["sent_bytes"]),
        received_bytes=int(said["received_bytes"]), sends_bytes=int(said["sends_bytes"]),
        receives_bytes=int(said["receives_bytes"]),
        elsewhere=sum(map(int, [*said["fallback"].values(), *said["device"].values()])),
    )  # fmt: skip
    seconds = (made.began_s, made.lasted_s, made.time_s, made.wait_s, *made.waits_s,
               *(verb.time_s for verb in made.verbs.values()))  # fmt: skip
    if not all(map(math.isfinite, seconds)):
        raise ValueError("a time is no number")
    if not 0 <= made.rank < made.size or len(made.global_ranks) != made.size:
        raise ValueError(f"rank {made.rank} of {made.size} cannot be")
    if len(made.nodes) not in (0, made.size) or len(made.waits_s) not in (0, made.size):
        raise ValueError(f"its lists are not of {made.size} ranks")
    return made
