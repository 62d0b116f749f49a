"""Ranks that flood their output: lines stay whole, no host is lost, a stop is as prompt as ever."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]
RANKS_PER_HOST, LINES = 3, 60_000
PATIENT = {"MUSTER_LOST_AFTER_S": "15"}  # a busy machine is no lost host

# pieces that end anywhere in a line, as the buffers of a C library do
COUNTS = """
import os, sys
rank, count = os.environ["RANK"], int(sys.argv[2])
data = b"".join(f"rank {rank} line {i} {'x' * (i % 120)}\\n".encode() for i in range(count))
size = 4093 + 512 * int(rank)
for begin in range(0, len(data), size):
    piece = data[begin : begin + size]
    while piece:
        piece = piece[os.write(1, piece) :]
"""

# writes for ever; notes when it was told to stop
ENDLESS = """
import os, signal, sys, time
def stop(number, frame):
    with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/told", "w") as file:
        file.write(str(time.monotonic()))
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
block = b"step 1 loss 0.5 Error: none\\n" * 2000
print("floods", file=sys.stderr, flush=True)
while True:
    os.write(1, block)
"""


@pytest.mark.torch
@pytest.mark.promise("F58")
def test_lines_of_ranks_that_flood_at_once_stay_whole_and_in_order(cluster: Make) -> None:
    request = {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": str(RANKS_PER_HOST),
        "lines": str(LINES),
    }
    job = cluster(COUNTS, hyperparameters=request, environ={"MUSTER_START_S": "60", **PATIENT})
    results = job.run(limit_s=120)
    assert {r.code for r in results.values()} == {0}, results["algo-1"].err
    for host, result in enumerate(results.values()):
        seen: dict[int, int] = {}
        for line in result.out.splitlines():
            match = re.fullmatch(r"rank (\d+) line (\d+) (x*)", line)
            assert match, f"a broken line: {line[:200]!r}"
            rank, number = int(match[1]), int(match[2])
            assert (number, len(match[3])) == (seen.get(rank, 0), number % 120)
            seen[rank] = number + 1
        first = host * RANKS_PER_HOST
        assert seen == dict.fromkeys(range(first, first + RANKS_PER_HOST), LINES)


@pytest.mark.promise("F01", "F58")
def test_a_stop_reaches_ranks_that_flood_within_two_seconds(cluster: Make) -> None:
    job = cluster(ENDLESS, hosts=3, environ=PATIENT)
    job.start()
    for name in job.names:
        job.wait_for(name, "floods", "err")
    wait_until(lambda: all(written(job, name) > 20_000_000 for name in job.names), 30)  # the fault
    at = time.monotonic()
    job.signal("algo-2")
    results = job.wait(20)
    for name, result in results.items():
        assert result.code == 143, result.err[-2000:]
        told = float((job.base(name) / "output" / "data" / "told").read_text())
        assert told - at < 2.0, f"{name} was told after {told - at:.2f} s"
        assert "nothing heard" not in result.err  # no heartbeat was late
        assert set(result.out.splitlines()[:-1]) == {"step 1 loss 0.5 Error: none"}


def written(job: Cluster, name: str) -> int:
    """Bytes of the host's ranks that have arrived so far."""
    return (job.folder / name / "out").stat().st_size
