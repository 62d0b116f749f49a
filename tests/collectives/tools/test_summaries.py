"""Summaries of groups without torch: what is in them, when they are there, what is read in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster_collectives.summary import read_folders, runs_of
from tests.collectives.faults.test_faults import names
from tests.collectives.support.jobs import clean, job
from tests.collectives.tools.summary_worker import FLOATS, LATE_S, SENT_BYTES, STEPS
from tests.collectives.tools.test_tools import tool


def given(folder: Path) -> dict[str, str]:
    return {"COLLECTIVES_SUMMARY_DIR": str(folder), "TRAINING_JOB_NAME": "job-7"}


def documents(folder: Path) -> list[dict[str, Any]]:
    """All that is there, hidden or not."""
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def test_every_group_leaves_one_summary_on_each_rank_closed_or_not(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    environ = given(folder)
    with job("tools.summary_worker", 3, "counts", nodes=names("aab"), environ=environ) as started:
        clean(started.ends())
    found = documents(folder)
    world = [each for each in found if each["group"] == "world"]
    assert [each["rank"] for each in world] == [0, 1, 2]
    assert len({each["life"] for each in world}) == 1
    for each in world:
        assert (each["version"], each["run"], each["layer"]) == (1, "job-7", "core")
        sums = each["verbs"]["all_reduce"]
        assert (sums["calls"], sums["bytes"]) == (5, 5 * 4 * FLOATS)
        assert 0 < sums["time_s"] <= each["time_s"] + 1e-9 <= each["lasted_s"]
        assert (each["sends"], each["receives"]) == (len(SENT_BYTES), len(SENT_BYTES))
        assert (each["sends_bytes"], each["receives_bytes"]) == (sum(SENT_BYTES), sum(SENT_BYTES))
    part = [each for each in found if each["group"] != "world"]
    assert [(each["rank"], each["global_ranks"]) for each in part] == [(0, [0, 2]), (1, [0, 2])]
    assert len(found) == 5


def test_a_killed_rank_leaves_nothing_and_the_reader_names_it(tmp_path: Path) -> None:
    with job("tools.summary_worker", 3, "killed", environ=given(tmp_path)) as started:
        ends = started.ends()
    assert [end.code for end in ends] == [0, 0, -9]
    assert [each["rank"] for each in documents(tmp_path)] == [0, 1]
    [run] = runs_of(read_folders([tmp_path]).found)
    assert run.groups[0].missing == (2,)
    text = tool("summary", str(tmp_path))
    assert "run job-7: 1 group\n" in text and "no summary of rank 2: killed" in text
    words = json.loads(tool("summary", "--json", str(tmp_path)))
    assert words["runs"][0]["groups"][0]["missing"] == [2]


def test_a_forked_child_writes_no_summary_of_its_parents_group(tmp_path: Path) -> None:
    with job("tools.summary_worker", 2, "forks", environ=given(tmp_path)) as started:
        said = clean(started.ends())
    assert [each["left"] for each in said] == [[], []]
    assert len(documents(tmp_path)) == 2


def test_a_folder_that_cannot_be_used_is_one_warning_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = given(tmp_path / "file" / "below")
    with job("tools.summary_worker", 2, "refused", environ=environ) as started:
        ends = started.ends()
        clean(ends)
    for end in ends:
        [line] = [line for line in end.err.splitlines() if "COLLECTIVES_SUMMARY_DIR" in line]
        assert "cannot be written" in line and "Not a directory" in line


@pytest.mark.promise("F36")
@pytest.mark.parametrize(
    ("nodes", "late"),
    [
        pytest.param("aabb", "1", id="no leader"),
        pytest.param("aabb", "2", id="the leader of another node"),
        pytest.param("aab", "2", id="alone in its node"),
        pytest.param("aabb", "2,3", id="a whole node"),
    ],
)
def test_who_was_waited_for_is_named_whatever_the_nodes(
    tmp_path: Path, nodes: str, late: str
) -> None:
    ranks = len(nodes)
    environ = given(tmp_path)
    with job(
        "tools.summary_worker", ranks, "late", late, nodes=names(nodes), environ=environ
    ) as started:
        clean(started.ends())
    [run] = runs_of(read_folders([tmp_path]).found)
    assert run.straggler is not None
    assert run.straggler.ranks == tuple(map(int, late.split(",")))
    assert run.straggler.lead_s > STEPS * LATE_S / 2
    assert run.straggler.is_node == (late == "2,3" or nodes == "aab")
