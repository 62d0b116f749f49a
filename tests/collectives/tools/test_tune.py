"""bench --tune from end to end: it measures, writes its file, and later groups go by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from muster_collectives.core import Tuning
from muster_collectives.tools.bench.tune import write
from tests.collectives.support.jobs import clean, job
from tests.collectives.tools.test_tools import tool

QUICK = ("--tune", "--ranks", "2", "--rounds", "1", "--budget-s", "0.002", "--sizes", "1M")
ONE_SHOT, STAGED, DIRECT = "ONE_SHOT", "STAGED", "DIRECT"
_NOTHING: Mapping[str, str] = {}


def ways(home: Path, *sizes: str, more: Mapping[str, str] = _NOTHING) -> tuple[list[str], str]:
    """How sums of these sizes went over two ranks, and what rank 0 said."""
    environ = {"XDG_CONFIG_HOME": str(home), **more}
    with job("tools.tuned_worker", 2, *sizes, environ=environ) as started:
        ends = started.ends()
    said = clean(ends)
    assert said[0]["ways"] == said[1]["ways"]
    return said[0]["ways"], ends[0].err


def file_of(home: Path) -> Path:
    return home / "muster" / "collectives.json"


def test_what_it_finds_is_written_and_later_groups_go_by_it(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    out = tool("bench", "--dry-run", *QUICK, environ=environ)
    assert "nothing written" in out and not file_of(tmp_path).exists()
    out = tool("bench", *QUICK, environ=environ)
    assert f"written to {file_of(tmp_path)}" in out
    found = json.loads(file_of(tmp_path).read_text())["tuning"]
    assert set(found) == {"one_shot_bytes", "chunk_bytes", "slot_bytes", "direct_bytes"}
    Tuning(**found)  # within all bounds
    most = found["one_shot_bytes"] // 2  # of each of two ranks
    went, said = ways(tmp_path, str(max(most, 4)), str(most + 64))
    assert went == [ONE_SHOT if most else STAGED, STAGED]
    assert "collectives.json" not in said
    assert f"tuned sizes: {file_of(tmp_path)}" in tool("doctor", environ=environ)


def test_a_file_changes_the_way_and_a_variable_comes_before_it(tmp_path: Path) -> None:
    sizes = ("2048", "2112", "+65536")
    assert ways(tmp_path, *sizes)[0] == [ONE_SHOT, ONE_SHOT, DIRECT]
    write(str(file_of(tmp_path)), {"one_shot_bytes": 4096, "direct_bytes": 1 << 62})
    assert ways(tmp_path, *sizes)[0] == [ONE_SHOT, STAGED, STAGED]
    small = {"one_shot_bytes": 1 << 19, "chunk_bytes": 1 << 16}  # a chunk may be less than one shot
    write(str(file_of(tmp_path)), small)
    assert ways(tmp_path, str(1 << 18), str((1 << 18) + 64))[0] == [ONE_SHOT, STAGED]
    write(str(file_of(tmp_path)), {"one_shot_bytes": 4096, "direct_bytes": 1 << 62})
    more = {"COLLECTIVES_ONE_SHOT_BYTES": "8K", "COLLECTIVES_DIRECT_BYTES": "0"}
    assert ways(tmp_path, *sizes, more=more)[0] == [ONE_SHOT, ONE_SHOT, DIRECT]


def test_a_file_that_cannot_be_used_changes_nothing_and_is_said_once(tmp_path: Path) -> None:
    write(str(file_of(tmp_path)), {"one_shot_bytes": -1})
    went, said = ways(tmp_path, "2112")
    assert went == [ONE_SHOT]
    assert said.count("cannot be used and is ignored") == 1
    assert "COLLECTIVES_ONE_SHOT_BYTES=-1 is out of bounds" in said


def test_the_command_that_it_was_names_its_successor(tmp_path: Path) -> None:
    said = tool("autotune", *QUICK, environ={"XDG_CONFIG_HOME": str(tmp_path)}, code=1)
    assert said == "autotune: this is `python -m muster_collectives.bench --tune` now\n"
    assert not file_of(tmp_path).exists()


def test_options_that_do_not_go_with_it_are_refused() -> None:
    for words, why in (
        (("--tune", "--json", "run.json"), "--tune goes with"),
        (("--dry-run",), "--dry-run goes with --tune"),
        (("--tune", "--sizes", "64K"), "1 MiB at least"),
    ):
        assert why in tool("bench", *words, code=2)
