"""The collective backend, seen from inside an image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

TARGET = os.environ["MUSTER_TEST_TARGET"]
HAS_TORCH = TARGET in ("cpu", "cpu-devel", "cuda-efa")
CORE = """\
import array
from muster_collectives import core
with core.init(timeout_s=30) as group:
    values = array.array("f", [group.rank + 1.0] * 1000)
    group.all_reduce(values)
    print("sum", values[0], group.transport, group.nodes)
"""
TORCH = """\
import torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group("smddp")
value = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(value)
print("sum", value[0].item(), dist.get_backend())
dist.destroy_process_group()
"""


def two_ranks(program: str, port: int) -> list[str]:
    """What both ranks printed, all of it; both have to end well within a minute."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return said


def test_two_ranks_reduce_in_the_compiled_core_without_a_framework() -> None:
    assert two_ranks(CORE, 29611) == ["sum 3.0 native (0, 0)\n"] * 2


@pytest.mark.skipif(not HAS_TORCH, reason=f"{TARGET} has no torch of its own")
def test_scripts_that_ask_for_smddp_get_it() -> None:
    assert all("sum 3.0 smddp" in said for said in two_ranks(TORCH, 29612))


def test_the_vendor_s_launchers_are_there_by_name() -> None:
    for name in ("smddprun", "smddpmprun"):
        assert shutil.which(name) == f"/opt/venv/bin/{name}"
