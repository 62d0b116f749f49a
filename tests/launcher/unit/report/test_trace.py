"""`muster trace`: what becomes of a record, however damaged or hostile, and what is said of it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from muster.commands.parser import main
from muster.report.read import open_record
from muster.report.trace.make import make_trace
from muster.report.trace.steps import StepFile, lines_a_slice
from tests.launcher.support.generated_records import START, Made, write_record
from tests.launcher.support.generated_traces import SECRET, profile, write_calls

STALL = "ranks 0, 2, 3 wait in all_reduce; rank 1 is at data.py:12"
BEGAN = 50_000  # microseconds of the records' clock at their first event
PROFILE = "opt/ml/output/data/prof/a.pt.trace.json"


class Trace:
    """A trace that was made, and what was said to be missing."""

    def __init__(self, folder: Path, secrets: dict[str, str] | None = None, most: int = 10**6):
        file = io.BytesIO()
        with open_record(str(folder), secrets or {}, traces=True) as opened:
            self.made = make_trace(opened, file, most)
        self.text = file.getvalue().decode("ascii")
        self.events: list[dict[str, Any]] = json.loads(self.text, parse_constant=pytest.fail)[
            "traceEvents"
        ]
        self.threads = {one["tid"]: one["args"]["name"] for one in self.events
                        if one["name"] == "thread_name"}  # fmt: skip

    def named(self, start: str) -> list[dict[str, Any]]:
        return [one for one in self.events
                if one["ph"] in "Xi" and one["name"].startswith(start)]  # fmt: skip


@pytest.fixture
def record(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_record(str(folder), Made(fails=1, stall=STALL))
    return folder


def write_profile(record: Path, content: object, host: str = "algo-2") -> None:
    path = record / host / PROFILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_hosts_ranks_phases_and_steps_stand_on_one_clock(record: Path) -> None:
    trace = Trace(record)
    assert (trace.made.hosts, trace.made.ranks, trace.made.missing) == (2, 4, ())
    hosts = [one["args"]["name"] for one in trace.events if one["name"] == "process_name"]
    assert hosts == ["algo-1", "algo-2"]
    for name in ("stage", "watch"):  # the hosts' own clocks are 1,000 s apart
        first, second = trace.named(name)
        assert (first["ts"], first["dur"]) == (second["ts"], second["dur"])
    runs = {one["name"]: one for one in trace.named("rank ")}
    assert set(runs) == {"rank 0 SIGTERM", "rank 1 exit 1", "rank 2 SIGTERM", "rank 3 SIGTERM"}
    ran = runs["rank 3 SIGTERM"]
    steps = [one for one in trace.named("step ") if one["tid"] == ran["tid"]]
    assert [one["name"] for one in steps] == [f"step {step}" for step in range(1, 200)]
    assert {one["dur"] for one in steps} == {500_000}
    assert all(ran["ts"] <= one["ts"] <= ran["ts"] + ran["dur"] - one["dur"] for one in steps)
    assert set(steps[0]["args"]) == {"loss", "accuracy", "samples"}


def test_a_standstill_lasts_as_long_as_was_waited_and_the_failure_is_an_instant(
    record: Path,
) -> None:
    trace = Trace(record)
    [stall] = trace.named(STALL)
    assert (stall["dur"], trace.threads[stall["tid"]]) == (60_000_000, "standstill")
    [guilty] = trace.named("holds up the others")
    assert trace.threads[guilty["tid"]] == "rank 1"
    [failure] = trace.named("failure: ValueError: the batch is empty")
    assert (failure["ph"], trace.threads[failure["tid"]]) == ("i", "rank 1")


def test_processors_and_memory_are_counters(record: Path) -> None:
    counters = [one for one in Trace(record).events if one["ph"] == "C" and one["name"] == "rank 1"]
    assert set(counters[0]["args"]) == {"memory_bytes"}  # processors show from the second look on
    assert counters[1]["args"]["cpus"] == pytest.approx(0.95, abs=0.01)


def test_calls_of_a_group_that_failed_and_its_life(record: Path) -> None:
    write_calls(record / "algo-1" / "collectives")
    trace = Trace(record)
    good, bad = trace.named("all_reduce")
    assert (good["ts"], good["dur"]) == (10_000_000 - BEGAN, 500_000)
    assert (bad["args"]["error"], trace.threads[bad["tid"]]) == (
        "rank 1 is gone", "rank 0 calls of world",
    )  # fmt: skip
    [life] = trace.named("group world")
    assert (life["ts"], life["dur"], life["args"]["wait_s"]) == (5_000_000 - BEGAN, 16_000_000, 0.4)


@pytest.mark.parametrize("rank", [2, None])
def test_a_profile_is_shifted_below_its_rank(record: Path, rank: int | None) -> None:
    write_profile(record, profile(rank))
    trace = Trace(record)
    [mm] = trace.named("aten::mm")
    assert mm["ts"] == pytest.approx(10_000_010.25 - BEGAN, abs=1)
    assert (mm["dur"], mm["args"]["Input Dims"]) == (500.5, [[64, 64]])
    assert trace.threads[mm["tid"]] == "rank 2 thread 7 (python)"
    arrow = [one for one in trace.events if one["ph"] in "sf"]
    assert [one["id"] for one in arrow] == [1, 1]
    assert trace.made.profiles == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "left out, it has no traceEvents"),
        ("[]", "left out, it has no traceEvents"),
        ('{"traceEvents": [{"ph": "X", "ts": 1', "its end is missing"),
        ('{"traceEvents": [' + "[" * 100_000, "it is damaged"),
        (profile(2, begins_s=90_000), "left out, its times are not those of the run"),
        (profile(99), "left out, it is of no rank that the record knows"),
        (profile(None, pid=7), "left out, it is of no rank that the record knows"),
    ],
)
def test_a_profile_that_cannot_be_merged_is_said(record: Path, content: object, said: str) -> None:
    write_profile(record, content)
    missing = Trace(record).made.missing
    assert len(missing) == 1 and said in missing[0]


def test_a_damaged_packed_profile_is_said(record: Path) -> None:
    path = record / "algo-2" / f"{PROFILE}.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps(profile(2)).encode())[:-12])
    [said] = Trace(record).made.missing
    assert said.startswith("profile a.pt.trace.json.gz: it is damaged")


def test_many_steps_become_fewer_slices(record: Path) -> None:
    trace = Trace(record, most=100)
    assert "lines of metrics are one slice" in trace.made.missing[0]
    steps = [one for one in trace.named("steps ") if trace.threads[one["tid"]] == "rank 0"]
    assert 10 <= len(steps) <= 50
    assert steps[-1]["name"].endswith("-199")
    assert sum(one["dur"] for one in steps) == 199 * 500_000
    assert lines_a_slice([StepFile(0, str(record / "absent"))]) == 1


def test_secrets_and_hostile_texts_are_as_in_the_report(tmp_path: Path) -> None:
    hostile = f"</script>\u2028\x1b[31m{SECRET}"
    write_record(str(tmp_path), Made(fails=0, error=hostile, stall=hostile))
    write_profile(tmp_path, profile(2))
    trace = Trace(tmp_path, {"HF_TOKEN": SECRET})
    assert SECRET not in trace.text and "\\u001b" not in trace.text
    assert (
        trace.named("failure: </script>") and trace.named("aten::mm")[0]["args"]["token"] == "***"
    )


def test_a_damaged_record_is_shown_as_far_as_it_goes(record: Path) -> None:
    events = record / "algo-2" / "events.jsonl"
    whole = events.read_text().splitlines(keepends=True)
    whole.insert(3, '{"t": 2000.3, "kind": "new", "odd": [NaN, {"a": 1e999}]}\n')
    events.write_text("".join(one for one in whole[:-9] if '"clock"' not in one) + whole[-9][:40])
    metrics = record / "algo-2" / "metrics" / "rank-3.jsonl"
    metrics.write_text(
        '{"schema": 1, "time": 1e999, "step": 1}\n{"time": "x"}\nnot JSON\n'
        f'{{"time": {START + 9}, "step": 5, "values": {{"a": 1{"0" * 400}, "b": "NaN"}}}}\n'
        f'{{"time": {START + 8}, "step": 6}}\n{{"time": {START + 10}, "step": 2}}\n'
    )
    calls = record / "algo-2" / "collectives"
    calls.mkdir()
    (calls / "x.json").write_text("{")
    (calls / "y.json").write_text('{"operations": [1, {"began_s": "x"}], "rank": []}')
    trace = Trace(record)
    said = "\n".join(trace.made.missing)
    for word in ("1 line of its events", "1 lines of the metrics of rank 3 cannot be read",
                 "2 lines of the metrics of rank 3 have no time at which it ran",
                 "1 files of its collectives cannot be read"):  # fmt: skip
        assert word in said
    assert trace.named("new")[0]["args"] == {"odd": ["nan", {"a": "inf"}]}
    assert trace.named("rank 2")[0]["dur"] > 0  # its end is not known: to the last that is


def test_a_host_without_events_has_its_steps_by_the_wall_clock(record: Path) -> None:
    (record / "algo-2" / "events.jsonl").unlink()
    trace = Trace(record)
    assert "algo-2: its steps are as good as its wall clock" in trace.made.missing
    steps = [one for one in trace.named("step 1") if trace.threads[one["tid"]] == "rank 3"]
    assert steps[0]["ts"] == 2_900_000


def test_the_command_says_where_the_trace_is_and_what_it_lacks(
    record: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(record.parent)
    write_profile(record, "")
    assert main(["trace", "run"]) == 0
    said = capsys.readouterr()
    assert "2 hosts, 4 ranks" in said.out and "trace-digits-4.json.gz" in said.out
    assert "lacks profile a.pt.trace.json: left out" in said.err
    packed = gzip.decompress((record.parent / "trace-digits-4.json.gz").read_bytes())
    assert main(["trace", "run", "-o", "t.json"]) == 0
    assert (record.parent / "t.json").read_bytes() == packed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent"], "there are no runs"),
        (["code"], "code has no record of muster"),
        (["run", "-o", "code"], "code cannot be written: it is a folder"),
        (["run", "-o", "none/t.json"], "none/t.json cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused(
    record: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(record.parent)
    (record.parent / "code").mkdir()
    assert main(["trace", *words]) == 2
    assert said in capsys.readouterr().err
    assert sorted(one.name for one in record.parent.iterdir()) == ["code", "run"]


def test_profiles_in_a_downloaded_archive_are_merged(record: Path, tmp_path: Path) -> None:
    archive = tmp_path / "output.tar.gz"
    (tmp_path / "a.pt.trace.json").write_text(json.dumps(profile(2)))
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(record, "muster")
        tar.add(tmp_path / "a.pt.trace.json", "logs/a.pt.trace.json")
        tar.add(tmp_path / "a.pt.trace.json", f"{'x' * 250}/b.pt.trace.json")
    trace = Trace(archive)
    assert trace.made.profiles == 1
    assert trace.threads[trace.named("aten::mm")[0]["tid"]].startswith("rank 2 ")
