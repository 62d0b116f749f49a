"""From runs in several sizes to rates, efficiency, and what the gap is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path

import pytest

from muster.commands.parser import main
from muster.report import page, scale_svg
from muster.report.pace import Pace, pace_of
from muster.report.read import read_record
from muster.report.scale import CannotScale, LostShares, ScaleFigures, parts, scale
from tests.launcher.support.generated_records import Made, write_record
from tests.launcher.support.scale_records import Costs, write_size

HOSTILE = "</script><img src=x onerror=window.hostile=1>\u2028\x1b[31m {{ 7*7 }} & \"'"


def pace(folder: Path, ranks: int, costs: Costs, program: str = "train.py") -> Pace:
    return pace_of(read_record(write_size(str(folder), ranks, costs, program), {}))


def figures(folder: Path, sizes: Mapping[int, Costs], price: float | None = None) -> ScaleFigures:
    paces = [pace(folder / f"n{ranks}", ranks, costs) for ranks, costs in sizes.items()]
    return scale(paces, price)


def test_weak_scaling_has_the_predicted_efficiency_and_its_reasons(tmp_path: Path) -> None:
    found = figures(
        tmp_path,
        {1: Costs(0.1, data_s=0.0), 4: Costs(0.1, wait_s=0.01, talk_s=0.02, data_s=0.03)},
    )
    base, four = found.sizes
    assert (found.base, found.kind, found.unit) == (1, "weak", "samples")
    assert found.backend == "muster collectives (native)"
    assert (base.efficiency, base.rate) == pytest.approx((1.0, 320.0), rel=1e-3)
    assert four.efficiency == pytest.approx(0.1 / 0.16, abs=0.001)
    assert four.ideal == pytest.approx(4 * 320, rel=1e-3)
    assert four.loss is not None
    seen = (four.loss.waiting, four.loss.communication, four.loss.data, four.loss.rest)
    assert seen == pytest.approx((0.01 / 0.16, 0.02 / 0.16, 0.03 / 0.16, 0.0), abs=0.001)
    assert not four.loss.beyond
    assert found.verdict.level == "warn"
    assert found.verdict.headline == (
        "4 ranks reach 62% of the ideal rate: 2.50 times that of 1 rank, weak scaling"
    )
    assert "data" in found.verdict.next[0]


def test_strong_scaling_is_told_from_the_batch_and_keeps_what_the_base_cost(tmp_path: Path) -> None:
    sizes = {2: Costs(0.2, 64, wait_s=0.04), 8: Costs(0.05, 16, wait_s=0.03)}
    found = figures(tmp_path, sizes)
    assert found.kind == "strong"
    eight = found.sizes[1]
    assert eight.efficiency == pytest.approx(0.24 / 4 / 0.08, abs=0.001)
    # of the base's waiting a quarter is in the ideal: 0.03 - 0.01 of 0.08 s
    assert eight.loss is not None and eight.loss.waiting == pytest.approx(0.25, abs=0.001)
    assert eight.loss.rest == pytest.approx(0.0, abs=0.001)


def test_a_batch_that_follows_no_rule_is_said_to_be_unknown(tmp_path: Path) -> None:
    found = figures(tmp_path, {1: Costs(0.1, 64), 2: Costs(0.1, 48)})
    assert found.kind == "unknown"
    assert "scaling" not in found.verdict.headline
    assert found.sizes[1].efficiency == pytest.approx(0.75, abs=0.001)


def test_what_the_records_do_not_say_is_not_known(tmp_path: Path) -> None:
    found = figures(tmp_path, {1: Costs(0.1, transport=""), 2: Costs(0.2, transport="")})
    two = found.sizes[1]
    assert two.loss == LostShares(None, None, None, pytest.approx(0.5, abs=0.001), False)
    assert two.waiting is None and found.backend == "not known"
    assert "50.0% not known" in found.verdict.why[0]
    text = page.scale_page(found)
    assert '<td class="figure">not known</td>' in text


def test_a_data_metric_that_falls_is_no_sum_and_not_taken_for_one(tmp_path: Path) -> None:
    costs = Costs(0.1, data_s=0.01)
    assert pace(tmp_path / "a", 1, costs).data_s == pytest.approx(0.01)
    file = Path(write_size(str(tmp_path / "b"), 1, costs), "algo-1", "metrics", "rank-0.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for at, line in enumerate(lines):
        line["values"]["data_s"] = 0.01 + at % 2
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert pace_of(read_record(str(tmp_path / "b"), {})).data_s is None


def test_costs_of_a_run_that_goes_on_at_a_later_step_are_of_the_steps_that_it_made(
    tmp_path: Path,
) -> None:
    costs = Costs(0.1, wait_s=0.04, talk_s=0.02, data_s=0.01)
    write_size(str(tmp_path), 2, costs)
    for file in tmp_path.glob("algo-*/metrics/rank-*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [{**line, "step": line["step"] + 10_000} for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = pace_of(read_record(str(tmp_path), {}))
    assert (found.wait_s, found.talk_s, found.data_s) == pytest.approx((0.04, 0.02, 0.01))


def test_warm_up_is_left_out_and_drift_is_spread(tmp_path: Path) -> None:
    slow = pace(tmp_path / "a", 1, Costs(0.1, warm_s=2.0))
    assert slow.rate == pytest.approx(320, rel=1e-3) and slow.warm
    assert slow.low == pytest.approx(slow.high, rel=1e-3)
    drifts = pace(tmp_path / "b", 1, Costs(0.1, drift=0.5))
    assert drifts.low < drifts.rate * 0.9 < drifts.rate * 1.1 < drifts.high
    two = pace(tmp_path / "c", 1, Costs(0.1, steps=2))
    assert not two.warm and two.rate == pytest.approx(320, rel=1e-3)


def test_repeated_runs_of_a_size_have_their_median_and_ends(tmp_path: Path) -> None:
    paces = [pace(tmp_path / f"r{at}", 1, Costs(own)) for at, own in enumerate((0.1, 0.2, 0.4))]
    found = scale([*paces, pace(tmp_path / "two", 2, Costs(0.2))])
    one = found.sizes[0]
    assert (one.low, one.rate, one.high) == pytest.approx((80, 160, 320), rel=1e-3)
    assert len(one.runs) == 3


def test_many_lines_keep_their_rate(tmp_path: Path) -> None:
    assert pace(tmp_path, 1, Costs(0.001, steps=20_000)).rate == pytest.approx(32_000, rel=0.001)


def test_calls_beside_the_computation_are_said_and_drawn_in_proportion(tmp_path: Path) -> None:
    slower = Costs(0.1, wait_s=0.05)
    paces = [pace(tmp_path / "a", 1, Costs(0.1)), pace(tmp_path / "b", 2, slower)]
    found = scale([paces[0], paces[1]._replace(wait_s=0.1, talk_s=0.05)])
    two = found.sizes[1]
    assert two.loss is not None and two.loss.beyond and two.efficiency is not None
    assert sum(share for _, share in parts(two.loss, two.efficiency)) == pytest.approx(
        1 - two.efficiency
    )
    assert any("in proportion" in one for one in found.notes)


def test_a_price_gives_the_cost_of_samples_and_of_waiting(tmp_path: Path) -> None:
    found = figures(tmp_path, {1: Costs(0.1), 2: Costs(0.1, wait_s=0.1)}, price=3.6)
    one, two = found.sizes
    assert one.cost == pytest.approx(3.6 / 3600 / 320 * 1e6, rel=1e-3)
    assert two.cost == pytest.approx(2 * one.cost, rel=1e-3)
    assert two.waiting_cost == pytest.approx(two.cost / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("paces", "said", "fix"),
    [
        ([(1, Costs(0.1), "a.py"), (2, Costs(0.1), "b.py")], "different programs: a.py, b.py", ""),
        ([(2, Costs(0.1), ""), (2, Costs(0.2), "")], "have 2 ranks", "two sizes"),
        ([(1, Costs(0.1, steps=0), ""), (2, Costs(0.1), "")], "no steps", "muster.metrics(step="),
        ([(1, Costs(0.1, steps=0), "")], "none of the runs", "muster.metrics(step="),
    ],
)
def test_runs_that_say_nothing_are_refused_with_the_fix(
    tmp_path: Path, paces: Sequence[tuple[int, Costs, str]], said: str, fix: str
) -> None:
    found = [pace(tmp_path / str(at), *one) for at, one in enumerate(paces)]
    with pytest.raises(CannotScale) as raised:
        scale(found)
    assert said in raised.value.args[0]
    assert fix in raised.value.args[1]


def test_failed_runs_are_left_out_and_said(tmp_path: Path) -> None:
    failed = pace_of(read_record(write_record(str(tmp_path / "x"), Made(fails=1)), {}))
    good = [pace(tmp_path / f"n{n}", n, Costs(0.1)) for n in (1, 2)]
    found = scale([*good, failed])
    assert [one.ranks for one in found.sizes] == [1, 2]
    assert found.left_out["digits-4"].startswith("it failed: UserScriptError")


def test_steps_without_samples_have_rates_but_no_efficiency(tmp_path: Path) -> None:
    found = figures(tmp_path, {1: Costs(0.1, 0), 2: Costs(0.1, 0)}, price=1.0)
    assert (found.unit, found.kind) == ("steps", "unknown")
    assert [one.efficiency for one in found.sizes] == [None, None]
    assert found.sizes[0].rate == pytest.approx(10, rel=1e-3)
    assert "muster.metrics(step=..., samples=...)" in found.verdict.next[0]
    assert "<svg" in page.scale_page(found)


def test_the_page_escapes_names_and_runs_no_script(tmp_path: Path) -> None:
    paces = [pace(tmp_path / f"n{n}", n, Costs(0.1), HOSTILE) for n in (1, 2)]
    odd = [one._replace(name=f"{HOSTILE}{one.name}", option=HOSTILE) for one in paces]
    text = page.scale_page(scale(odd))
    assert "<script" not in text and "<img" not in text and "{{ 7*7 }}" in text
    assert all(char not in scale(paces).name for char in "\u2028\x1b")
    assert "script-src 'none'" in unescape(text)


@pytest.mark.parametrize("ranks", [(1, 2), (3, 4), (8, 16, 256), (1, 1000)])
def test_drawings_stay_in_their_place(tmp_path: Path, ranks: Sequence[int]) -> None:
    base = pace(tmp_path, 1, Costs(0.1))
    sizes = [base._replace(ranks=n, sample_rate=n * 5.5, name=str(n)) for n in ranks]
    found = scale(sizes)
    text = scale_svg.rates(found)
    for part in text.split('y1="')[1:]:
        assert 0 <= float(part.partition('"')[0]) <= scale_svg.HEIGHT
    assert f">{ranks[0]}</text>" in text and f">{ranks[-1]} ranks</text>" in text


def test_the_command_writes_the_page_or_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for n in (1, 2):
        write_size(str(tmp_path / f"n{n}"), n, Costs(0.1))
    assert main(["report", "--scale", "n1", "n2", "--json", "--price", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"][1]["efficiency"] == pytest.approx(1.0)
    assert main(["report", "--scale", "n1", "n2"]) == 0
    assert "2 ranks reach 100% of the ideal rate" in capsys.readouterr().out
    assert (tmp_path / "report-scale-train.py.html").is_file()
    for words, said in (
        (["--scale", "n1"], "two sizes"),
        (["--scale"], "none of the runs"),
        (["n1", "--price", "2"], "--scale RUN RUN"),
        (["--scale", "n1", "n2", "--price", "-1"], "a number above 0"),
    ):
        assert main(["report", *words]) == 2
        assert said in capsys.readouterr().err
