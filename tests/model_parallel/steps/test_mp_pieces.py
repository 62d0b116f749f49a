"""Checkpoints in pieces: any layout of ranks resumes from any other's, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_parallel.support.ranks import results, run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("ranks_pieces.py")
LIMIT_S = 240  # no promise: ranks that import torch beside other work take their time

STAGES: dict[str, object] = {"pipeline_parallel_degree": 2, "skip_tracing": True, "ddp": True}
CUT: dict[str, object] = {
    "ddp": True, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 16,
}  # fmt: skip
LAYOUTS: dict[str, tuple[int, dict[str, object]]] = {
    "one": (1, {}),
    "stages": (2, STAGES),
    "cut": (2, CUT),
    "cut stages": (4, {**STAGES, **CUT}),
    "shares": (2, {"ddp": True, "shard_optimizer_state": True}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]]]:
    """A folder with a checkpoint of each layout, and what each had when it was saved."""
    folder = tmp_path_factory.mktemp("pieces")
    had = {}
    for tag, (count, parameters) in LAYOUTS.items():
        ends = run_ranks(
            SCRIPT, count, arguments=[folder, "save", tag], parameters=parameters, limit_s=LIMIT_S
        )
        had[tag] = results(ends)[0]
    return folder, had


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_resumes_from_all_layouts(
    saved: tuple[Path, dict[str, dict[str, str]]], layout: str
) -> None:
    """Parameters and states of the optimizer have the bits that were saved, whether the model had
    been cut by then or not."""
    folder, had = saved
    count, parameters = LAYOUTS[layout]
    ends = run_ranks(
        SCRIPT, count, arguments=[folder, "resume", *LAYOUTS], parameters=parameters,
        limit_s=LIMIT_S,
    )  # fmt: skip
    for found in results(ends):
        for tag in LAYOUTS:
            for when in (True, False):
                assert found[f"{tag} {when}"] == had[tag], (tag, when)
