"""Summaries as values: what is read and refused, who is named as the one that was waited for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "toolkit" / "parallel" / "src"))

from muster_collectives.runtime.environment import run_of
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.flight import Flight
from muster_collectives.runtime.summary import GroupStats, Identity, Summary
from muster_collectives.runtime.types import Path as Way
from muster_collectives.runtime.types import Stats, Verb
from muster_collectives.summary import RankSummary, as_json, as_text, read_folders, runs_of
from muster_collectives.tools.summary.read import Files, read
from muster_collectives.tools.summary.runs import Straggler, find

LASTED_S = 100.0


def written(rank: int = 0, size: int = 2, **changes: Any) -> bytes:
    """A file as a group writes it, with some fields changed."""
    stats = Stats({Verb.ALL_REDUCE: 3}, {Verb.ALL_REDUCE: 12}, {Way.STAGED: 3}, sends_bytes=5,
                  time_s=2.0, wait_s=1.0, times_s={Verb.ALL_REDUCE: 2.0})  # fmt: skip
    identity = Identity("world", rank, size, tuple(range(size)), "life")
    figures = GroupStats("native", (0,) * size, stats, (0.0,) * size)
    return json.dumps({**Summary(identity, "").document(figures), **changes}).encode()


def member(
    rank: int, joint_s: float, size: int = 4, nodes: tuple[int, ...] = (0, 0, 1, 1), **changes: Any
) -> RankSummary:
    verbs = {"all_reduce": {"calls": 1, "bytes": 4, "time_s": joint_s}}
    given = {"verbs": verbs, "nodes": list(nodes), "lasted_s": LASTED_S, "host": f"h{rank}",
             **changes}  # fmt: skip
    return read(written(rank, size, **given))


def group(*joint_s: float, **changes: Any) -> list[RankSummary]:
    size = len(joint_s)
    nodes = (0,) * ((size + 1) // 2) + (1,) * (size // 2)
    return [member(rank, each, size, nodes, **changes) for rank, each in enumerate(joint_s)]


def ranks_of(found: Straggler | None) -> tuple[int, ...]:
    return () if found is None else found.ranks


def test_what_a_group_writes_is_what_is_read() -> None:
    found = read(written(1))
    assert (found.group, found.rank, found.size, found.life) == ("world", 1, 2, "life")
    assert (found.calls, found.bytes, found.sends_bytes) == (3, 12, 5)
    assert found.verbs["all_reduce"].time_s == 2.0


def test_a_group_without_a_core_says_why_and_has_no_calls() -> None:
    figures = GroupStats("gloo", (), None, (), "no core", {"allreduce": 3})
    one = Summary(Identity("world", 0, 1, (0,), "life", "torch"), "").document(figures)
    found = read(json.dumps(one).encode())
    assert (found.calls, found.elsewhere, found.why, found.layer) == (0, 3, "no core", "torch")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"{", "Expecting"),
        (b"[]", "indices"),
        (written(version=2), "version 2"),
        (written(rank=2), "rank 2 of 2"),
        (written(global_ranks=[0]), "cannot be"),
        (written(waits_s=[1.0]), "2 ranks"),
        (written(time_s=float("nan")), "no number"),
        (written(verbs=[]), "items"),
    ],
)
def test_other_files_are_named_and_left_out(tmp_path: Path, text: bytes, word: str) -> None:
    (tmp_path / "collectives-world-0-life.json").write_bytes(written())
    (tmp_path / "collectives-world-1-life.json").write_bytes(text)
    (tmp_path / ".collectives-world-1-life.json.77").write_bytes(b"half")
    (tmp_path / "flight-world-rank1.json").write_bytes(b"other")
    files = read_folders([tmp_path, tmp_path])
    assert [one.rank for one in files.found] == [0]
    assert word in files.refused[0] and "collectives-world-1" in files.refused[0]
    runs = runs_of(files.found)
    assert word in as_text(runs, files) and word in as_json(runs, files)["refused"][0]


def test_who_spends_the_least_time_in_calls_is_the_one_that_is_waited_for() -> None:
    found = find(group(50.0, 50.5, 10.0, 51.0))
    assert found is not None and found.ranks == (2,) and found.hosts == ("h2",)
    assert (found.lead_s, found.own_s, found.others_s) == (40.0, 10.0, 50.0)
    assert round(found.factor, 3) == round(LASTED_S / (LASTED_S - 40.0), 3)
    assert not found.is_node and "rank 2 (h2)" in str(found)


def test_a_node_that_is_late_as_a_whole_is_named_as_one() -> None:
    found = find(group(50.0, 50.5, 10.0, 11.0))
    assert found is not None and found.ranks == (2, 3) and found.is_node
    assert "all of one node" in str(found)


def test_nobody_is_named_for_little_or_where_half_could_be_meant() -> None:
    assert find(group(50.0, 50.5, 45.0, 51.0)) is None  # 5 s of 100 s
    assert find(group(10.0, 10.5, 10.2, 60.0)) is None  # one is early, nobody is late
    assert find(group(50.0)) is None and find([]) is None
    assert find(group(0.0, 0.0)) is None


def test_calls_with_a_root_do_not_make_a_straggler() -> None:
    """A root that sends and goes on waits for nobody, and is not late for that."""
    verbs = {"broadcast": {"calls": 9, "bytes": 9, "time_s": 60.0}}
    quick = {"broadcast": {"calls": 9, "bytes": 9, "time_s": 0.1}}
    members = [member(0, 0.0, verbs=quick), *(member(rank, 0.0, verbs=verbs) for rank in (1, 2, 3))]
    assert find(members) is None


def test_what_its_own_node_saw_is_said_where_there_is_somebody_to_see() -> None:
    seen = group(50.0, 10.0, 50.0, 50.0, waits_s=[0.0, 39.5, 0.0, 0.0])
    found = find(seen)
    assert found is not None and found.seen_s == 39.5 and "for 39.50 s" in str(found)


def test_the_narrowest_group_names_the_rank_of_the_run() -> None:
    """Rank 3 waits for rank 2 in their pair, so that both come late to the world."""
    world = group(60.0, 60.0, 20.0, 21.0)
    pair = [
        member(rank, each, 2, (0, 0), group="pair", life="p", global_ranks=[2, 3])
        for rank, each in enumerate((1.0, 39.0))
    ]
    [run] = runs_of([*world, *pair])
    assert [ranks_of(each.straggler) for each in run.groups] == [(2, 3), (2,)]
    assert ranks_of(run.straggler) == (2,)


def test_runs_and_lives_are_apart_and_missing_ranks_are_named() -> None:
    files = [member(0, 1.0, run="a"), member(1, 1.0, run="a"), member(0, 1.0, run="b", life="x"),
             member(0, 1.0, run="a", life="y", began_s=1e12)]  # fmt: skip
    runs = runs_of(files)
    assert [run.name for run in runs] == ["a", "b"]
    assert [each.missing for each in runs[0].groups] == [(2, 3), (1, 2, 3)]
    text = as_text(runs, Files((), ()))
    assert "run a: 2 groups" in text and "no summary of ranks 2 and 3: killed" in text
    json.dumps(as_json(runs, Files((), ())))


def test_a_run_is_named_by_the_job_or_the_launcher() -> None:
    assert run_of({"TRAINING_JOB_NAME": "j", "TORCHELASTIC_RUN_ID": "e"}) == "j"
    assert run_of({"TORCHELASTIC_RUN_ID": "e", "PMIX_NAMESPACE": "p"}) == "e"
    assert run_of({"TORCHELASTIC_RUN_ID": "none", "PMIX_NAMESPACE": "p"}) == "p"
    assert run_of({}) == ""


def test_a_group_without_a_failure_keeps_what_an_earlier_one_told_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> Any:
        return json.loads((tmp_path / "flight-world-rank0.json").read_text())["error"]

    def group() -> Flight:
        return Flight(str(tmp_path), "world", 0, 2)

    group().write(CollectiveError("rank 1 is gone"), ())
    group().write(None, ())
    assert told()["message"] == "rank 1 is gone"
    group().write(CollectiveError("rank 1 is late"), ())
    assert told()["message"] == "rank 1 is late"
    monkeypatch.setattr("os.getpid", lambda: -1)  # another run, in the same folder
    group().write(None, ())
    assert told() is None
