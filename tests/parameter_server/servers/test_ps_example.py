"""The example of the parameter server learns with servers, in both modes, and alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.parameter_server.support.servers import Maker, servers_fixture

pytestmark = pytest.mark.torch
__all__ = ["servers_fixture"]

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/parameter_server_pytorch/train.py"


@pytest.mark.parametrize(
    ("servers_count", "workers", "more"),
    [(2, 2, ["--mode", "sync"]), (1, 2, ["--mode", "async"]), (0, 1, [])],
)
def test_the_example_learns_its_digits(
    servers_count: int, workers: int, more: list[str], servers: Maker, tmp_path: Path
) -> None:
    made = servers(servers_count, workers=workers)
    folders = {"SM_MODEL_DIR": str(tmp_path / "model"), "SM_OUTPUT_DATA_DIR": str(tmp_path / "out")}
    if not servers_count:
        del made.variables["PARAMETER_SERVER_ADDRESSES"]
    argv = [sys.executable, str(EXAMPLE), "--epochs", "12", *more]
    running = [made.start(argv, RANK=str(rank), **folders) for rank in range(workers)]
    ended = [made.ended(worker) for worker in running]
    assert [one.code for one in ended] == [0] * workers, ended
    assert ended[0].output.count("epoch=") == 12
    assert made.codes() == [0] * servers_count
    accuracies = [json.loads(path.read_text())["accuracy"] for path in tmp_path.glob("out/*")]
    assert len(accuracies) == workers
    assert min(accuracies) >= 0.95
    assert "sync" not in more or len(set(accuracies)) == 1
    assert (tmp_path / "model" / "model.pt").is_file()


def test_a_batch_that_workers_cannot_share_is_refused(servers: Maker) -> None:
    made = servers(0, workers=3)
    ended = made.ended(made.start([sys.executable, str(EXAMPLE), "--batch-size", "64"], RANK="0"))
    assert ended.code == 2
    assert "--batch-size 64 cannot be shared by 3 workers" in ended.output
