"""What collectives left of their waits: read within bounds, whatever else lies there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from muster.run.observe import waits
from muster.run.observe.waits import waits_in


def summary(rank: int = 0, wait_s: Any = 1.5, **more: object) -> str:
    return json.dumps({"global_ranks": [4, 5], "rank": rank, "wait_s": wait_s, **more})


def test_the_waits_of_all_groups_are_summed_by_rank_of_the_world(tmp_path: Path) -> None:
    for name, text in (
        ("collectives-world-0-a.json", summary(0)),
        ("collectives-world-1-a.json", summary(1, 0.25)),
        ("collectives-rows-0-b.json", summary(0, 2.0)),
        ("flight-world-rank0.json", summary(0, 100.0)),
        (".collectives-half.json", summary(0, 100.0)),
    ):
        (tmp_path / name).write_text(text)
    assert waits_in(str(tmp_path), 0.0) == {4: 3.5, 5: 0.25}
    assert waits_in(str(tmp_path), time.time() + 60) == {}  # of an earlier start


@pytest.mark.promise("S18")
def test_odd_files_are_passed_over_and_no_link_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    secret.write_text(summary())
    folder = tmp_path / "collectives"
    folder.mkdir()
    odd: tuple[str, ...] = (
        "", "{", "[" * 100_000, "[1]", "3", "{}", summary(7), summary(0, -1.0), summary(0, True),
        summary(0, "1"), summary(0, float("inf")), '{"global_ranks": 3, "rank": 0, "wait_s": 1.5}',
        '{"global_ranks": ["x"], "rank": 0, "wait_s": 1.5}', summary(more="x" * waits.FILE_BYTES),
    )  # fmt: skip
    for number, text in enumerate(odd):
        (folder / f"collectives-{number}.json").write_text(text)
    (folder / "collectives-link.json").symlink_to(secret)
    (folder / "collectives-folder.json").mkdir()
    os.mkfifo(folder / "collectives-pipe.json")
    assert waits_in(str(folder), 0.0) == {}
    assert waits_in(str(folder / "none"), 0.0) == {}
