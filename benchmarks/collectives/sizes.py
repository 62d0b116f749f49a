"""Rows of single calls: sizes, types, gathers and scatters, and what a call costs by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.collectives.gates import Gate, row, settled
from benchmarks.table import Row, at_least_times, under
from muster_collectives.tools.bench.cases import (
    COPIES,
    CORE,
    DIRECT,
    GLOO,
    LIMIT,
    MPI,
    OURS,
    WIDE,
    Case,
    Result,
    Spec,
)
from muster_collectives.tools.bench.launch import find_mpirun, run

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 32 * MIB, 256 * MIB)
CROWDED = (8 * KIB, MIB, 32 * MIB)  # of more ranks than processors
ALL = (OURS, CORE, DIRECT, GLOO, MPI, LIMIT)
OVERHEAD_US = 6.0
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


def sizes(rounds: int) -> Iterator[Row]:
    """All-reduce of float32: two ranks at every size, four and eight at some."""
    cases = [Case("all_reduce", "float32", size, ALL) for size in SIZES]
    yield from _rows(cases, 2, rounds, lambda case: gates_of(case.size_bytes))
    crowded = [Case("all_reduce", "float32", size, ALL) for size in CROWDED]
    for ranks in (4, 8):
        yield from _rows(
            crowded, ranks, rounds, lambda _: (Gate(GLOO, OURS, 5), Gate(MPI, CORE, 2))
        )


def gates_of(size_bytes: int) -> tuple[Gate, ...]:
    """The least ratios of section 9 for one all-reduce of two ranks."""
    if size_bytes <= 8 * KIB:
        return (Gate(GLOO, OURS, 10), Gate(MPI, CORE, 1.3))
    if size_bytes <= 64 * KIB:
        return (Gate(GLOO, OURS, 8), Gate(MPI, CORE, 1.3))
    if size_bytes <= 4 * MIB:
        direct = (Gate(CORE, DIRECT, 2),) if size_bytes == 512 * KIB else ()
        return (Gate(GLOO, OURS, 8), Gate(MPI, CORE, 1.3), *direct)
    large = size_bytes > 32 * MIB
    return (
        Gate(GLOO, OURS, 4 if large else 5),
        Gate(MPI, CORE, 3),
        Gate(LIMIT, CORE, 0.5, "staged"),
        Gate(LIMIT, DIRECT, 0.7 if large else 0.85),
        Gate(LIMIT, OURS, 0.62 if large else 0.85, "default settings"),
    )


def huge_pages(rounds: int) -> Iterator[Row]:
    """The largest size again, in registered memory of huge pages, which are reserved meanwhile."""
    case = Case("all_reduce", "float32", SIZES[-1], (OURS, CORE, DIRECT, LIMIT))
    what = "all_reduce float32 256 MiB, 2 ranks, registered memory of huge pages"
    with reserved(2 * case.size_bytes) as refusal:
        if refusal:
            yield Row(what, "us", None, {}, (), f"not run: {refusal}")
            return
        gates = (Gate(LIMIT, DIRECT, 0.75),)
        found = settled(
            _run([case], 2, rounds, mpirun=False), lambda _: gates,
            lambda chosen: _run(chosen, 2, rounds, mpirun=False),
        )  # fmt: skip
        yield row(found[0], DIRECT, gates, what)


@contextmanager
def reserved(bytes_: int) -> Iterator[str]:
    """So many bytes in huge pages beside those that are reserved already, until the end; as root.
    Yields why not, or ""."""
    try:
        before = int(HUGE_PAGES.read_text(encoding="ascii"))
        due = before + bytes_ // (2 * MIB) + 8
        HUGE_PAGES.write_text(str(due), encoding="ascii")
        found = int(HUGE_PAGES.read_text(encoding="ascii"))
    except OSError as error:
        yield f"huge pages cannot be reserved: {error}"
        return
    try:
        yield "" if found >= due else f"of {due} huge pages the system could reserve {found}"
    finally:
        HUGE_PAGES.write_text(str(before), encoding="ascii")


def types(rounds: int) -> Iterator[Row]:
    """16-bit types: beside gloo, and beside our own float32 of the same number of elements."""
    names = (OURS, WIDE, GLOO, LIMIT)
    cases = [Case("all_reduce", dtype, 16 * MIB, names) for dtype in ("bfloat16", "float16")]
    yield from _rows(cases, 2, rounds, lambda _: (Gate(GLOO, OURS, 8), Gate(WIDE, OURS, 1.7)))


def shards(rounds: int) -> Iterator[Row]:
    """All-gather and reduce-scatter, as sharded data parallelism calls them. Beside the bound of
    one pass over the memory stands that of their copies and sums, which counts."""
    chosen = (16 * MIB, 64 * MIB)
    gates = {
        "all_gather": (
            Gate(GLOO, OURS, 4), Gate(MPI, CORE, 1.05),
            Gate(COPIES, CORE, 0.8, "copies and sums alone"),
        ),
        "reduce_scatter": (
            Gate(GLOO, OURS, 5), Gate(MPI, CORE, 2.5),
            Gate(COPIES, CORE, 0.8, "copies and sums alone"),
        ),
    }  # fmt: skip
    cases = [Case(verb, "float32", size, (*ALL, COPIES)) for verb in gates for size in chosen]
    yield from _rows(cases, 2, rounds, lambda case: gates[case.verb])


def calls(rounds: int) -> Iterator[Row]:
    """A call of one rank: nothing but the way into the core and back."""
    result = _run([Case("all_reduce", "float32", KIB, (OURS, GLOO))], 1, rounds, mpirun=False)[0]
    ours, gloo = (result.series[name] for name in (OURS, GLOO))
    best = min(ours.median, ours.best) * 1e6
    yield Row(
        "a call of torch.distributed.all_reduce, 1 rank", "us", ours.median * 1e6,
        {GLOO: gloo.median * 1e6},
        (under(best, OVERHEAD_US, "us"), at_least_times(1, gloo.median, ours.median)),
        f"best round {ours.best * 1e6:.1f} us, gloo {gloo.best * 1e6:.1f} us",
    )  # fmt: skip


def _rows(
    cases: Sequence[Case], ranks: int, rounds: int, gates: Callable[[Case], tuple[Gate, ...]]
) -> Iterator[Row]:
    def measured(chosen: Sequence[Case]) -> list[Result]:
        return _run(chosen, ranks, rounds)

    found = settled(measured(cases), lambda result: gates(result.case), measured)
    for result in found:
        yield row(result, OURS, gates(result.case))


def _run(cases: Sequence[Case], ranks: int, rounds: int, mpirun: bool = True) -> list[Result]:
    """Raises RunError. Where Open MPI cannot be had its figures are missing, and rows say so."""
    program = find_mpirun()[0] if mpirun else ""
    return run(Spec(tuple(cases), rounds), ranks, program)
