"""From a record to a verdict, a timeline and charts; and what differs between two runs."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from importlib import resources
from pathlib import Path

import pytest

from muster.report import charts, page, svg
from muster.report.compare import compare
from muster.report.figures import RunFigures, Straggler, figures_of
from muster.report.metrics import read_metrics
from muster.report.read import read_record
from muster.report.values import Bucket
from tests.launcher.support.generated_records import Made, as_lines, write_record

HOSTILE = "</script><img src=x onerror=window.hostile=1>\u2028\x1b[31m\x07 {{ 7*7 }} & \"'"

UPLOT_VERSION = "1.6.32"
UPLOT_SHA256 = {  # of the package uplot on npm; the page has these files
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def figures(folder: Path, made: Made) -> RunFigures:
    return figures_of(read_record(write_record(str(folder), made), {}))


def test_a_failure_is_named_with_rank_host_place_and_what_to_do(tmp_path: Path) -> None:
    found = figures(tmp_path, Made(fails=3, seconds=30))
    assert found.verdict.level == "bad"
    assert found.verdict.headline == "Rank 3 on algo-2 failed: ValueError: the batch is empty"
    assert any("exit code 1" in one and "train.py:41 in main" in one for one in found.verdict.why)
    assert any("stopped 3 other ranks" in one for one in found.verdict.why)
    assert found.verdict.next[0].startswith("Open train.py:41 in main")
    assert found.failure is not None and found.failure.rank == 3
    assert [rank.good for rank in found.ranks] == [True, True, True, False]


def test_success_stall_and_nan_are_in_the_verdict(tmp_path: Path) -> None:
    assert figures(tmp_path / "a", Made(seconds=30)).verdict.level == "good"
    stall = "rank 1 (algo-1) is at data.py:12: look there"
    found = figures(tmp_path / "b", Made(seconds=30, stall=stall, nan_from=7))
    assert found.verdict.level == "warn"
    assert any(stall in one for one in found.verdict.why)
    assert "loss is NaN or infinite, for the first time at step 7." in found.verdict.why


def test_ranks_that_held_up_the_others_are_a_table(tmp_path: Path) -> None:
    """Each as it was last found, those found most often first."""
    folder = write_record(str(tmp_path), Made(seconds=30))

    def straggler(at: float, rank: int, own_s: float, cause: str) -> dict[str, object]:
        return {"schema": 1, "t": 1000 + at, "time": 1.0, "host": "algo-1", "rank": rank,
                "kind": "straggler", "own_s": own_s, "own_p95_s": 2 * own_s, "factor": 1.25,
                "cause": cause, "text": "x"}  # fmt: skip

    said = [straggler(5, 1, 0.2, "disk"), straggler(6, 3, 0.1, "run delay"),
            straggler(7, 3, 0.125, "")]  # fmt: skip
    with (Path(folder) / "algo-1" / "events.jsonl").open("a") as file:
        file.write(as_lines(said) + '{"kind": "straggler", "rank": 2, "own_')  # cut mid-line
    found = figures_of(read_record(folder, {}))
    assert found.stragglers == (
        Straggler(3, "algo-2", 2, 0.125, 0.25, 1.25, ""),
        Straggler(1, "algo-1", 1, 0.2, 0.4, 1.25, "disk"),
    )
    _, _, table = page.page(found).partition("Ranks that held up the others")
    cells = [re.sub("<[^>]*>", "|", row) for row in table.partition("</table>")[0].split("<tr>")]
    rows = [[cell for cell in row.split("|") if cell.strip()] for row in cells[2:]]
    assert rows == [
        ["3", "algo-2", "2 times", "125 ms", "250 ms", "1.25", "not seen"],
        ["1", "algo-1", "once", "200 ms", "400 ms", "1.25", "disk"],
    ]


@pytest.mark.parametrize("offsets", [True, False])
def test_hosts_stand_on_the_leaders_clock(tmp_path: Path, offsets: bool) -> None:
    found = figures(tmp_path, Made(seconds=30, offsets=offsets))
    begins = {rank.host: rank.begins_s for rank in found.ranks}
    assert begins["algo-1"] == pytest.approx(begins["algo-2"], abs=0.01)
    assert bool([one for one in found.missing if "wall clock" in one]) is not offsets


def test_without_a_summary_a_rank_that_lost_another_is_not_the_first(tmp_path: Path) -> None:
    folder = Path(write_record(str(tmp_path / "r"), Made(fails=3, seconds=30)))
    (folder / "summary.json").unlink()
    lost = {"t": 1000.0, "time": 1.0, "kind": "failure", "rank": 0, "status": 1,
            "summary": "Connection closed by peer", "peer_lost": True}  # fmt: skip
    first = {**lost, "time": 2.0, "rank": 3, "summary": "the batch is empty", "peer_lost": False}
    end = {**lost, "kind": "outcome", "rank": None, "result": "Failed", "exit_code": 1}
    for host, more in (("algo-1", [lost, end]), ("algo-2", [first])):
        events = folder / host / "events.jsonl"
        events.write_text(events.read_text() + as_lines(more))
    found = figures_of(read_record(str(folder), {}))
    assert found.verdict.headline == "Rank 3 on algo-2 failed: the batch is empty"


def test_metrics_that_have_no_room_are_said_to_be_missing(tmp_path: Path) -> None:
    path = Path(write_record(str(tmp_path / "r"), Made(seconds=30, steps=2)))
    file = path / "algo-1" / "metrics" / "rank-0.jsonl"
    entries = [{"time": at, "step": at, "values": {f"m{n}": at + n for n in range(60)}}
               for at in range(5)]  # fmt: skip
    file.write_text(as_lines(entries))
    missing = figures_of(read_record(str(path), {})).missing
    assert "algo-1: 20 metrics of rank 0: a page has room for 40" in missing
    assert any(line.startswith("charts of ") for line in missing)


def test_no_spike_of_a_metric_is_lost_however_thin_its_chart(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    entries = [{"time": at * 0.5, "step": at, "samples": at * 8, "values": {"loss": 1.0}}
               for at in range(30_000)]  # fmt: skip
    entries[17_171]["values"] = {"loss": 99.0}
    entries[20_000]["values"] = {"loss": "NaN"}
    path.write_text(as_lines(entries))
    found, bad = read_metrics(str(path))
    assert (found.lines, found.last_step, bad) == (30_000, 29_999.0, 0)
    assert found.rate == pytest.approx(2.0)
    assert found.sample_rate == pytest.approx(16.0)
    assert found.series["loss"].odd_step == 20_000
    (chart,) = charts.of_metrics({0: found})
    assert len(chart.xs) <= charts.COLUMNS
    assert max(value or 0.0 for line in chart.lines for value in line.high) == 99.0
    assert all(a < b for a, b in zip(chart.xs, chart.xs[1:], strict=False))


def test_metrics_that_are_reported_now_and_then_or_without_a_step_are_there(tmp_path: Path) -> None:
    """As `muster.metrics(val_loss=...)` among many lines of training, and a last one."""
    path = tmp_path / "rank-0.jsonl"
    entries = [{"time": at * 0.5, "step": at * 10, "samples": at * 80, "values": {"loss": at}}
               for at in range(100)]  # fmt: skip
    entries[70:70] = [{"time": 34.6, "values": {"val_loss": 5.0}}]
    entries[30:30] = [{"time": 14.6, "values": {"val_loss": 7.0}}]
    path.write_text(as_lines([*entries, {"time": 60.0, "values": {"accuracy": 0.9}}]))
    found, _ = read_metrics(str(path))
    assert found.last_step == 990
    assert found.rate == pytest.approx(20.0)
    assert found.sample_rate == pytest.approx(160.0)
    assert [one.step for one in found.series["val_loss"].buckets] == [290, 690]
    assert [one.step for one in found.series["accuracy"].buckets] == [990]
    assert [one.step for one in found.points] == [at * 10 for at in range(100)]


def test_a_metric_may_be_named_like_a_field_of_its_entry(tmp_path: Path) -> None:
    """Where it stands among the values; beside the step it is the field."""
    path = tmp_path / "rank-0.jsonl"
    values = dict.fromkeys(("every", "host", "loss", "rank", "t", "time"), 2.0)
    path.write_text(as_lines([{"schema": 1, "time": 5.0, "step": 1, "values": values}]))
    assert list(read_metrics(str(path))[0].series) == [*values]
    path.write_text(as_lines([{"schema": 1, "step": 1, **values}]))
    assert list(read_metrics(str(path))[0].series) == ["loss"]


def test_a_rank_that_reports_no_step_has_no_last_one(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text(as_lines([{"time": at, "values": {"loss": at}} for at in range(5)]))
    found, _ = read_metrics(str(path))
    assert (found.last_step, found.rate) == (None, None)
    assert [one.step for one in found.series["loss"].buckets] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("first", [100, 100.5])
def test_the_rate_of_steps_that_are_counted_anew_is_of_the_last_count(
    tmp_path: Path, first: float
) -> None:
    """In each epoch, or after a restart; also where a piece of the file ends between the two."""
    path = tmp_path / "rank-0.jsonl"
    for steps in ([first, *range(101, 200), *range(50)], [first, *range(101, 40_000), *range(50)]):
        path.write_text(as_lines([{"time": at / 2, "step": step, "samples": 8 * at, "values": {}}
                                  for at, step in enumerate(steps)]))  # fmt: skip
        found, _ = read_metrics(str(path))
        assert (found.last_step, found.rate, found.sample_rate) == (49, 2.0, 16.0)
    path.write_text(as_lines([{"time": at, "step": -at} for at in range(5)]))
    assert read_metrics(str(path))[0].rate is None


def test_of_many_ranks_a_chart_shows_range_and_median() -> None:
    points = {f"rank {rank}": [Bucket(step, rank, rank) for step in range(10)] for rank in range(9)}
    chart = charts._chart("x", "", "step", points)
    assert chart is not None
    band, median = chart.lines
    assert (band.low[0], band.high[0], median.low[0], median.high) == (0, 8, 4, ())


@pytest.mark.parametrize("ranks", [1, 9, 10])
def test_the_largest_numbers_are_drawn(tmp_path: Path, ranks: int) -> None:
    """With five digits they would be infinite."""
    folder = Path(write_record(str(tmp_path), Made(hosts=1, per_host=ranks, seconds=30)))
    most = sys.float_info.max
    for rank in range(ranks):
        (folder / "algo-1" / "metrics" / f"rank-{rank}.jsonl").write_text(
            as_lines([{"time": 1.0 + at, "step": at, "values": {"loss": most, "low": -most * at}}
                      for at in range(2)])
        )  # fmt: skip
    found = figures_of(read_record(str(folder), {}))
    assert page.page(found)
    assert page.comparison_page(compare(found, found._replace(name="b")), [found, found])
    assert next(one for one in found.charts if one.title == "low").lines[0].low[1] == -most


def test_data_in_the_page_can_end_no_script() -> None:
    text = page.embedded([HOSTILE])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == [HOSTILE]
    with pytest.raises(ValueError, match="JSON compliant"):
        page.embedded(math.nan)


def test_hostile_texts_are_text_in_the_page_and_the_drawings(tmp_path: Path) -> None:
    made = Made(fails=1, seconds=30, error=HOSTILE, stall=HOSTILE, program=f"{HOSTILE}.py")
    folder = Path(write_record(str(tmp_path), made))
    (folder / "algo-1" / "metrics" / "rank-0.jsonl").write_text(
        as_lines([{"step": at, "values": {HOSTILE: at}} for at in range(5)])
    )
    (folder / "algo-1").rename(folder / "algo-<b>")
    found = figures_of(read_record(str(folder), {}))
    text = page.page(found)
    assert "<img" not in text and "algo-<b>" not in text and "\x1b" not in text
    assert "\u2028" not in text and "49" not in found.verdict.headline
    assert text.count("</script>") == 3  # of the page's own: data, uPlot, its use
    for lane in svg.timeline(found):
        assert "<img" not in lane.drawing


def test_the_page_allows_its_own_scripts_and_nothing_else(tmp_path: Path) -> None:
    text = page.page(figures(tmp_path, Made(seconds=30)))
    policy = text.partition('Content-Security-Policy" content="')[2].partition('">')[0]
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert " style=" not in text and " onload=" not in text


def test_points_alone_are_no_chart() -> None:
    """Of a short run there is one sample of each rank, not all at the same moment."""
    alone = {"rank 0": [Bucket(3.0, 1.0, 1.0)], "rank 1": [Bucket(3.1, 2.0, 2.0)]}
    assert charts._chart("memory", "MiB", "seconds", alone) is None
    assert charts._chart("memory", "MiB", "seconds", {}) is None


def test_what_is_inlined_is_the_published_uplot() -> None:
    for name, expected in UPLOT_SHA256.items():
        content = resources.files("muster.report.page").joinpath(name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == expected
    licence = resources.files("muster.report.page").joinpath("uplot.LICENSE").read_text()
    assert "MIT License" in licence and "Leon Sorokin" in licence


def test_two_runs_are_compared_in_words(tmp_path: Path) -> None:
    a = figures(tmp_path / "a", Made(seconds=60))
    b = figures(tmp_path / "b", Made(seconds=90, rate=1.5, program="other.py", hosts=1, per_host=4))
    b = b._replace(name=f"{b.name} (2)")
    found = compare(a, b)
    assert "25% slower" in found.verdict.headline
    rows = {row.name: row for group in found.groups for row in group.rows}
    assert (rows["program"].a, rows["program"].b) == ("train.py", "other.py")
    assert rows["hosts"].differs and not rows["ranks"].differs
    assert rows["loss"].change == "same"
    loss = next(one for one in found.charts if one.title == "loss")
    assert [line.name for line in loss.lines] == [a.name, b.name]
    failed = figures(tmp_path / "c", Made(seconds=60, fails=0))
    verdict = compare(a, failed).verdict
    assert verdict.level == "bad" and "They end differently" in verdict.headline


def test_options_that_two_runs_do_not_share_are_named_with_their_values(tmp_path: Path) -> None:
    made = figures(tmp_path, Made(seconds=60))
    typed = ("muster local a.py --hosts 2 --output x", "muster local a.py --hosts 3 --output x")
    a, b = (made._replace(facts={**made.facts, "command": line}) for line in typed)
    (row,) = (one for one in compare(a, b).groups[0].rows if one.name == "command")
    assert row.change == "without --hosts 2; with --hosts 3"


def test_a_run_that_cannot_be_drawn_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"outcome": {"result": "Succeeded"}}')
    text = page.page(figures_of(read_record(str(tmp_path), {})))
    assert "The job succeeded" in text and "<svg" not in text and "uPlot" not in text


def test_a_record_of_any_size_makes_a_page_that_opens(tmp_path: Path) -> None:
    folder = Path(write_record(str(tmp_path), Made(seconds=30, steps=0)))
    summary = json.loads((folder / "summary.json").read_text())
    first = summary["ranks"][0]
    summary["ranks"] = [{**first, "rank": rank} for rank in range(20_000)]
    summary["platform"] = {f"name{at}": "x" * 5000 for at in range(500)}
    (folder / "summary.json").write_text(json.dumps(summary))
    many = [{"t": 1002.0 + at / 1e4, "kind": kind, "rank": at, "name": "watch", "text": "y" * 999}
            for at in range(3000) for kind in ("phase", "missing", "rank_started")]  # fmt: skip
    odd = {"t": 1005.0, "kind": "left_out", "samples": 70_000, "events": 3}
    with (folder / "algo-1" / "events.jsonl").open("a") as file:
        file.write(as_lines([*many, odd]))
    found = figures_of(read_record(str(folder), {}))
    assert len(page.page(found)) < 3_000_000
    assert any("70,000 samples and 3 other events" in one for one in found.missing)
