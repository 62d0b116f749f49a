"""What a sum within one node moves between its cache domains: NUMA nodes, or cores with a cache in
common. Counted over the schedule: `python -m benchmarks.simulated.domains` prints the table of
docs/internals/collectives.md.

A rank writes to memory of its own domain. What a rank reads of another domain crosses the border;
what a second rank of its domain reads again comes from the cache that they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.simulated.schedules import part


class Read(NamedTuple):
    """`reader` and `owner` are domains; `what` names what is read, `elements` of it."""

    reader: int
    owner: int
    what: tuple[object, ...]
    elements: int


def flat(ranks: int, domains: int, count: int) -> Iterator[Read]:
    """The core's: rank i sums part i of all ranks, and all read all parts."""
    places = [rank * domains // ranks for rank in range(ranks)]
    for reader, here in enumerate(places):
        for rank, there in enumerate(places):
            yield Read(here, there, ("input", rank, reader), part(count, ranks, reader)[1])
            yield Read(here, there, ("sum", rank), part(count, ranks, rank)[1])


def two_level(ranks: int, domains: int, count: int) -> Iterator[Read]:
    """Ranks ascending as in `flat`, so with the same bits: rank i of a domain adds part i of its
    domain's ranks to what the domain before has summed; all read the sums of the last."""
    each = ranks // domains
    for here in range(domains):
        for reader in range(each):
            length = part(count, each, reader)[1]
            for rank in range(each):
                yield Read(here, here, ("input", here, rank, reader), length)
            if here:
                yield Read(here, here - 1, ("until", here - 1, reader), length)
            for rank in range(each):
                yield Read(here, domains - 1, ("sum", rank), part(count, each, rank)[1])


def crossing(reads: Iterator[Read]) -> int:
    """Elements that cross a border, each once for a domain that reads them."""
    seen = {(each.reader, each.what): each.elements for each in reads if each.reader != each.owner}
    return sum(seen.values())


def main() -> None:
    count = 1 << 20
    for ranks, domains in ((8, 2), (16, 2), (32, 2), (64, 2), (64, 8)):
        found = (crossing(made(ranks, domains, count)) / count for made in (flat, two_level))
        print(f"{ranks} ranks, {domains} domains:", *(f"{each:.1f}" for each in found))


if __name__ == "__main__":
    main()
