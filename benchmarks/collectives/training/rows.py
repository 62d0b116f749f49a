"""Rows of training steps on one machine, or on two nodes that it plays: over our group and over
gloo's, in the same processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.collectives.gates import Gate, judged, settled
from benchmarks.collectives.links import placed
from benchmarks.collectives.nodes_job import run_ranks
from benchmarks.table import Row
from muster_collectives.tools.bench.cases import Case, Result, decode_result
from muster_collectives.tools.bench.launch import start

# our group, gloo's, a step without communication; our group with shards in registered memory;
# torch's own hook over our group; a step over gloo that sends float32
OURS, GLOO, ALONE = "muster", "gloo", "alone"
REGISTERED, STOCK, WIDE = "registered", "stock", "float32"
# DDP whose buckets go nowhere; and whose ranks wait for each other all the same, at each bucket
SILENT, MEETING = "no sums", "only waits"
# `Case.verb` of a step says what is trained how
DDP, DDP_NODES = "DDP", "DDP between 2 nodes of one rank,"
FSDP1, FSDP2, TENSOR = "FSDP1", "FSDP2", "DTensor"
FP16, BF16, INT8 = "DDP fp16 hook", "DDP bf16 hook", "DDP int8 hook"
MIB = 1 << 20
LARGE, LARGER = 12, 61  # MiB of gradients for which there are gates of their own
FASTER = 1.1

_FASTER = (Gate(GLOO, OURS, FASTER, "a step"),)
_STEPS = {
    LARGE: (Gate(GLOO, OURS, 1.8, "a step"), Gate(GLOO, OURS, 3, beyond=ALONE)),
    LARGER: (Gate(GLOO, OURS, 1.7, "a step"),),
}
_GRADIENTS = "{mib:.1f} MiB of gradients"
_MOST = "no sums: DDP's own work alone, which no backend can beat"
_MOST_BETWEEN = f"{_MOST}; only waits: the same, where ranks meet at each bucket"
_PARAMETERS = "{mib:.0f} MiB of parameters"


class Kind(NamedTuple):
    """What a row of this kind must do, how its size is said, whom it stands beside."""

    gates: tuple[Gate, ...]
    words: str
    detail: str = ""


_KINDS: Mapping[str, Kind] = {
    DDP: Kind((Gate(GLOO, OURS, 1, "a step"),), _GRADIENTS, _MOST),
    DDP_NODES: Kind((Gate(GLOO, OURS, 1.3, "a step"),), _GRADIENTS, _MOST_BETWEEN),
    FSDP1: Kind(_FASTER, _PARAMETERS),
    FSDP2: Kind((*_FASTER, Gate(GLOO, REGISTERED, FASTER, "a step")), _PARAMETERS),
    TENSOR: Kind(_FASTER, "MLPs split in columns and rows, {mib:.0f} MiB of activations"),
    FP16: Kind(
        _FASTER, _GRADIENTS, "gloo and stock: torch's own hook, over gloo and over our group"
    ),
    BF16: Kind(
        _FASTER,
        _GRADIENTS,
        "gloo and stock: torch's own hook, over gloo and over our group, under another name, "
        "for DDP refuses it on processors",
    ),
    INT8: Kind(
        _FASTER,
        _GRADIENTS,
        "gloo: our hook over gloo, for torch has none that runs on processors; float32: no hook, "
        "over gloo",
    ),
}


def ddp(rounds: int) -> Iterator[Row]:
    return _rows("ddp", rounds)


def between_nodes(rounds: int) -> Iterator[Row]:
    """Within `links` of 2 nodes."""
    return _rows("ddp-nodes", rounds)


def sharded(rounds: int) -> Iterator[Row]:
    """FSDP1, FSDP2 and tensor parallelism."""
    return _rows("sharded", rounds)


def hooks(rounds: int) -> Iterator[Row]:
    return _rows("hooks", rounds)


def gates_of(result: Result) -> tuple[Gate, ...]:
    case = result.case
    mib = round(case.size_bytes / MIB)
    if case.verb == DDP and mib in _STEPS:
        return _STEPS[mib]
    if case.verb == DDP_NODES and mib == LARGE:
        return (Gate(GLOO, OURS, 1.4, "a step"),)
    return _KINDS[case.verb].gates


def _rows(what: str, rounds: int) -> Iterator[Row]:
    def again(cases: Sequence[Case]) -> list[Result]:
        """All of the part, for its ranks do not take a choice."""
        more = {each.case: each for each in _run(what, rounds)}
        return [more[case] for case in cases]

    for result in settled(_run(what, rounds), gates_of, again, 1):
        case, kind = result.case, _KINDS[result.case.verb]
        words = kind.words.format(mib=case.size_bytes / MIB)
        name = f"{case.verb} step, {words}, {result.ranks} ranks"
        yield judged(result, OURS, gates_of(result), name, "ms", detail=kind.detail)


def _run(what: str, rounds: int) -> list[Result]:
    """Raises RunError, RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as name:
        folder = Path(name)
        output = folder / "results.jsonl"
        argv = ["-m", "benchmarks.collectives.training.rank", what, str(rounds), str(output)]
        if what == "ddp-nodes":
            run_ranks(placed(2, 1), argv)
        else:
            start(argv, 2, folder)
        return [decode_result(json.loads(line)) for line in output.read_text().splitlines()]
