"""Results as a table for people (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from muster_collectives.tools.bench.cases import CORE, GLOO, LIMIT, MPI, OURS, Result
from muster_collectives.tools.columns import columns

_KIB, _MIB = 1 << 10, 1 << 20


def table(results: Sequence[Result]) -> str:
    """A line per case: times of all contenders; how many times longer the peers take, by medians
    and by best rounds; which share of the in-place limit the core reaches."""
    names = list(dict.fromkeys(name for result in results for name in result.series))
    lines = [["call", "size", *(f"{name} us" for name in names), "gloo/muster", "mpi/core",
              "of limit", "bus GB/s"]]  # fmt: skip
    for result in results:
        times = [f"{result.series[name].median * 1e6:.1f}" if name in result.series else "-"
                 for name in names]  # fmt: skip
        best = OURS if OURS in result.series else CORE
        bus = f"{result.bus_bytes_per_s(best) / 1e9:.2f}" if best in result.series else "-"
        lines.append([f"{result.case.verb} {result.case.dtype}", size_text(result.case.size_bytes),
                      *times, ratio(result, GLOO, OURS), ratio(result, MPI, CORE), share(result),
                      bus])  # fmt: skip
    text = columns(lines, left=(0,))
    for name, reason in sorted({pair for each in results for pair in each.absent.items()}):
        text.append(f"not measured: {name}: {reason}")
    return "\n".join(text)


def ratio(result: Result, slower: str, faster: str) -> str:
    times = result.times(slower, faster)
    return "-" if times is None else f"{times[0]:.1f}x / {times[1]:.1f}x"


def share(result: Result) -> str:
    times = result.times(LIMIT, CORE)
    return "-" if times is None else f"{times[0] * 100:.0f} %"


def size_text(bytes_: int) -> str:
    if bytes_ >= _MIB and bytes_ % _MIB == 0:
        return f"{bytes_ // _MIB} MiB"
    return f"{bytes_ // _KIB} KiB" if bytes_ >= _KIB and bytes_ % _KIB == 0 else f"{bytes_} B"
