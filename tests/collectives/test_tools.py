"""bench, doctor and autotune: what they compute from given values, and one true run of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.collectives_gates import Gate, row
from muster_collectives.autotune.choose import crossover, fastest, threshold
from muster_collectives.bench.cases import (
    Case,
    Result,
    Series,
    Spec,
    decode_result,
    decode_spec,
    encode_result,
    encode_spec,
)
from muster_collectives.bench.plot import svg
from muster_collectives.bench.report import table
from muster_collectives.doctor import troubles
from tests.collectives.jobs import CHECKOUT, SOURCES

LIMIT_S = 110.0


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


def test_a_bound_counts_by_the_better_ratio_and_a_busy_machine_is_not_judged() -> None:
    gate = (Gate("gloo", "muster", 5),)
    assert row(result(muster=(1.0, 2.0), gloo=(6.0, 6.0)), "muster", gate).verdict == "met"
    slow = result(muster=(1.0, 2.0), gloo=(4.0, 4.0), limit=(1.0, 1.5))
    assert row(slow, "muster", gate).verdict == "NOT met"
    busy = result(muster=(1.0, 2.0), gloo=(4.0, 4.0), limit=(1.0, 2.5))
    assert row(busy, "muster", gate).verdict == "not run"
    assert "2.5-fold" in row(busy, "muster", gate).detail


def test_sizes_are_chosen_only_where_they_are_clearly_better() -> None:
    assert crossover({4: 1.0, 8: 1.0, 16: 3.0, 32: 1.0}, dict.fromkeys((4, 8, 16, 32), 2.0)) == 8
    assert crossover({4: 3.0}, {4: 2.0}) == 0
    assert threshold({4: 1.0, 8: 2.0, 16: 4.0}, {4: 2.0, 8: 1.0, 16: 1.0}, 99) == 8
    assert threshold({4: 1.0}, {4: 1.0}, 99) == 99
    assert fastest({64: 1.0, 128: 1.01}, 128) == 128
    assert fastest({64: 1.0, 128: 1.5}, 128) == 64


def test_doctor_names_ranks_without_a_core_and_neighbours_that_share_no_memory() -> None:
    good = {"transport": "native", "no_core": "", "boot": "b", "name": "", "nodes": [0, 0],
            "why": ["itself", "shared memory"]}  # fmt: skip
    assert troubles([good, good]) == []
    apart = {**good, "nodes": [0, 1], "why": ["itself", "TCP"]}
    assert "ranks 0 and 1 are on one machine" in troubles([apart, apart])[0]
    named = [{**apart, "name": "a"}, {**apart, "name": "b"}]
    assert troubles(named) == []
    assert "rank 1 has no compiled core" in troubles([good, {**good, "transport": "pure"}])[0]


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
    ElementTree.parse(tmp_path / "b.svg")


def test_doctor_says_how_each_pair_is_joined() -> None:
    out = tool("doctor", "--ranks", "3")
    for pair in ("0 and 1", "0 and 2", "1 and 2"):
        assert f"ranks {pair}: shared memory" in out


def tool(name: str, *words: str) -> str:
    environ = {**os.environ, "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{SOURCES}"}
    for own in ("RANK", "WORLD_SIZE"):
        environ.pop(own, None)
    done = subprocess.run(
        [sys.executable, "-m", f"muster_collectives.{name}", *words], env=environ,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
