"""bench and doctor: what they compute from given values, and one true run of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.collectives.gates import Gate, median_of, pooled, ratio, row, settled, undecided
from muster_collectives.doctor import congestion, troubles
from muster_collectives.tools.bench.cases import (
    Case,
    Result,
    Series,
    Spec,
    decode_result,
    decode_spec,
    encode,
    encode_result,
    encode_spec,
    load,
)
from muster_collectives.tools.bench.report import svg, table
from tests.collectives.support.jobs import CHECKOUT, SOURCES

LIMIT_S = 110.0
_NOTHING: Mapping[str, str] = {}
FIX = "  Fix: install muster-parallel from its wheel, or where there is a C compiler"


def series(*seconds: float) -> Series:
    return Series(seconds, seconds, 1)


def result(**seconds: tuple[float, ...]) -> Result:
    names = tuple(seconds)
    found = {name: series(*each) for name, each in seconds.items()}
    return Result(Case("all_reduce", "float32", 1 << 20, names), 2, found, {"mpi": "no mpirun"})


def test_values_of_a_run_survive_json() -> None:
    measured = result(muster=(1.0, 2.0), gloo=(3.0, 4.0))
    assert decode_result(json.loads(json.dumps(encode_result(measured)))) == measured
    spec = Spec((measured.case,), 3, 0.5)
    assert decode_spec(json.loads(json.dumps(encode_spec(spec)))) == spec


def test_ratios_are_of_medians_and_of_best_rounds_and_absent_peers_are_said() -> None:
    measured = result(muster=(1.0, 2.0, 9.0), gloo=(8.0, 6.0, 9.0), core=(1.0, 1.0, 1.0))
    assert measured.times("gloo", "muster") == (4.0, 6.0)
    assert measured.times("mpi", "core") is None
    text = table([measured])
    assert "4.0x / 6.0x" in text
    assert "not measured: mpi: no mpirun" in text


def test_a_picture_has_a_line_for_each_contender_but_the_limit() -> None:
    drawn = ElementTree.fromstring(svg([result(muster=(1e-4,), gloo=(1e-3,), limit=(1e-5,))]))
    words = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "muster" in words and "gloo" in words and "limit" not in words


def test_a_bound_counts_by_the_median_of_the_ratios_within_rounds() -> None:
    gate = (Gate("gloo", "muster", 5),)
    # the machine was slow for both in the last two rounds: their ratios are what they were
    drifting = result(muster=(1.0, 2.0, 3.0), gloo=(6.0, 11.0, 18.0))
    assert ratio(drifting, gate[0]) == (6.0, 5.5, 6.0)
    assert row(drifting, "muster", gate).verdict == "met"
    # one lucky round is no figure
    lucky = result(muster=(0.5, 2.0, 2.0), gloo=(8.0, 8.0, 8.0), limit=(1.0, 1.5, 1.0))
    assert row(lucky, "muster", gate).verdict == "NOT met"


def test_what_a_step_costs_by_itself_is_taken_off_both_sides() -> None:
    gate = Gate("gloo", "muster", 3, beyond="alone")
    found = ratio(result(muster=(3.0, 4.0), gloo=(8.0, 9.0), alone=(1.0, 2.0)), gate)
    assert found is not None and found.middle == 3.5
    assert ratio(result(muster=(3.0,), gloo=(8.0,)), gate) is None
    nothing = ratio(result(muster=(1.0,), gloo=(2.0,), alone=(1.0,)), gate)
    assert nothing is not None and nothing.middle > 1e4  # less than the clock can tell


def test_a_busy_machine_is_not_judged_and_a_single_bad_round_is_no_busy_machine() -> None:
    gate = (Gate("gloo", "muster", 5),)
    busy = result(muster=(1.0, 2.0), gloo=(4.0, 4.0), limit=(1.0, 2.5))
    assert row(busy, "muster", gate).verdict == "not run"
    assert "2.5-fold" in row(busy, "muster", gate).detail
    twelve = (1.0,) * 12
    once = result(muster=twelve, gloo=twelve, limit=(*twelve[:-1], 9.0))
    assert row(once, "muster", gate).verdict == "NOT met"


def test_an_undecided_case_is_measured_again_and_every_round_counts() -> None:
    gate = (Gate("gloo", "muster", 2),)
    open_ = result(muster=(1.0,) * 4, gloo=(1.5, 1.9, 2.1, 2.5))
    clear = result(muster=(1.0,) * 4, gloo=(3.0,) * 4)
    assert undecided(open_, gate) and not undecided(clear, gate)
    # all rounds of a minute may be of a machine that was busy then
    assert undecided(result(muster=(1.0,) * 4, gloo=(1.1,) * 4), gate)
    more = result(muster=(1.0,) * 9, gloo=(1.5,) * 9)
    asked: list[int] = []

    def again(cases: Sequence[Case]) -> list[Result]:
        asked.append(len(cases))
        return [more]

    first, second = settled([clear, open_], lambda _: gate, again)
    assert first == clear and asked == [1, 1]  # and no more than twice
    assert second == pooled(pooled(open_, more), more)
    assert row(second, "muster", gate).verdict == "NOT met"
    assert "22 rounds" in row(second, "muster", gate).detail


def test_the_interval_of_a_median_leaves_out_what_chance_may_misplace() -> None:
    assert median_of([float(each) for each in range(1, 10)]) == (5.0, 2.0, 8.0)
    assert median_of([7.0]) == (7.0, 7.0, 7.0)
    middle, low, high = median_of([float(each) for each in range(1, 28)])
    assert (middle, low, high) == (14.0, 8.0, 20.0)


def test_doctor_names_neighbours_that_share_no_memory() -> None:
    good = {"boot": "b", "name": "", "nodes": [0, 0],
            "why": ["itself", "shared memory"]}  # fmt: skip
    assert troubles([good, good]) == []
    apart = {**good, "nodes": [0, 1], "why": ["itself", "TCP"]}
    assert "ranks 0 and 1 are on one machine" in troubles([apart, apart])[0]
    named = [{**apart, "name": "a"}, {**apart, "name": "b"}]
    assert troubles(named) == []


def test_doctor_says_how_to_end_a_congestion_control_that_paces() -> None:
    assert congestion("cubic") == ["TCP's congestion control: cubic"]
    line, advice = congestion("bbr")
    assert line.endswith("bbr") and "sysctl net.ipv4.tcp_congestion_control=cubic" in advice


@pytest.mark.parametrize("words", [("bench",), ("bench", "--tune"), ("doctor",)])
def test_without_a_compiled_core_a_tool_says_why_and_the_fix_and_measures_nothing(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    path, home = tmp_path / "no.so", tmp_path / "home"
    environ = {"COLLECTIVES_CORE": str(path), "XDG_CONFIG_HOME": str(home)}
    assert tool(*words, environ=environ, code=1).splitlines() == [
        f"{words[0]}: there is no compiled core at {path}", FIX
    ]  # fmt: skip
    assert not home.exists()


def test_a_recorded_run_is_shown_and_drawn_again_without_measuring(tmp_path: Path) -> None:
    measured = [result(muster=(1e-4,), gloo=(1e-3,), limit=(1e-5,)),
                result(muster=(1e-4,), direct=(1e-5,))]  # fmt: skip
    run, picture = tmp_path / "run.json", tmp_path / "run.svg"
    run.write_text(json.dumps(encode(measured, "m", 2)))
    assert load(run) == measured
    out = tool("bench", "--from", str(run), "--plot", str(picture))
    assert out == table(measured) + "\n"
    assert picture.read_text() == svg(measured)
    said = tool("bench", "--from", str(run), "--plot", str(tmp_path / "no" / "x.svg"), code=1)
    assert said.startswith("bench: ") and "No such file" in said and "Traceback" not in said


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"results": []}', '{"results": [{}]}', '{"results": [1]}', "\udcff"]
)
def test_a_file_that_no_run_has_written_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match="no run of this tool"):
        load(path)


def test_a_recorded_run_with_times_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for seconds in ((0.0,), (), (float("nan"),), (-1.0,)):
        path.write_text(json.dumps(encode([result(muster=seconds)], "m", 2)))
        with pytest.raises(ValueError, match="no run of this tool"):
            load(path)
    assert "no run of this tool" in tool("bench", "--from", str(path), code=1)


@pytest.mark.torch
def test_bench_measures_prints_writes_and_draws(tmp_path: Path) -> None:
    words = ["--sizes", "1K,64K", "--verbs", "all_reduce,all_gather,reduce_scatter", "--peers",
             "gloo", "--rounds", "2", "--budget-s", "0.02", "--json", str(tmp_path / "b.json"),
             "--plot", str(tmp_path / "b.svg")]  # fmt: skip
    out = tool("bench", *words)
    assert out.count("KiB") == 6
    report = json.loads((tmp_path / "b.json").read_text())
    assert [
        set(each["series"]) >= {"muster", "core", "gloo", "limit"} for each in report["results"]
    ]
    drawn = (tmp_path / "b.svg").read_text()
    ElementTree.fromstring(drawn)
    assert svg(load(tmp_path / "b.json")) == drawn


def test_doctor_says_how_each_pair_is_joined() -> None:
    out = tool("doctor", "--ranks", "3")
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    assert f"\nTCP's congestion control: {control}\n" in out
    for pair in ("0 and 1", "0 and 2", "1 and 2"):
        assert f"ranks {pair}: shared memory" in out


def tool(name: str, *words: str, environ: Mapping[str, str] = _NOTHING, code: int = 0) -> str:
    """What it printed; where it is to fail with `code`, what it said instead."""
    given = {**os.environ, "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{SOURCES}", **environ}
    for own in ("RANK", "WORLD_SIZE"):
        given.pop(own, None)
    done = subprocess.run(
        [sys.executable, "-m", f"muster_collectives.{name}", *words], env=given,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout
