"""The simulator of benchmarks/simulated sends what the core sends, byte for byte."""

from __future__ import annotations

import pytest

from benchmarks.simulated.measured import of_ranks
from benchmarks.simulated.schedules import Shape, ours

KIB = 1 << 10
# one phase, two, the largest of leaders, the first in pieces, more than five nodes sum in rounds
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, 260 * KIB, 1024 * KIB, 1028 * KIB)


@pytest.mark.parametrize("shape", [Shape(2), Shape(4), Shape(5), Shape(7), Shape(17), Shape(5, 2)])
def test_the_schedules_of_the_simulator_send_the_bytes_that_a_group_counts(shape: Shape) -> None:
    nodes = [{"COLLECTIVES_NODE": f"n{rank // shape.locals}"} for rank in range(_ranks(shape))]
    found = {run.size_bytes: run.sent_bytes for run in of_ranks(nodes, SIZES, batches=1)}
    expected = {size: ours(shape, size) for size in SIZES}
    # rank 0 leads its node, and has a rail of as many bytes as each other
    assert found == {size: each.sent_bytes(0) // each.rails for size, each in expected.items()}


def _ranks(shape: Shape) -> int:
    return shape.nodes * shape.locals
