"""The page of `muster report` as people see it: in Chromium, offline, wide and narrow, light and
dark, without script and in print. Screenshots are kept in .cache/pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.support.generated_records import Made, write_record
from tests.launcher.support.scale_records import Costs, write_size
from tests.support.browser import look_at

pytestmark = pytest.mark.dev
HOSTILE = "</script><img src=http://127.0.0.1:9/x onerror='window.hostile=1'>\u2028\x1b[31m"
STALL = (
    "ranks 0, 2, 3 wait in all_reduce no. 6 of world (train.py:41) since 38 s; rank 1 is at "
    "data.py:12: look there"
)


def report(folder: Path, *words: object) -> Path:
    page = folder / "page.html"
    argv = [sys.executable, "-m", "muster", "report", *map(str, words), "-o", str(page)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return page


def made(folder: Path, name: str, run: Made) -> str:
    return write_record(str(folder / name), run)


@pytest.mark.parametrize(
    "kind",
    [
        "succeeded",
        "hostile",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("failed", "many-ranks", "compared")
        ),
    ],
)
def test_the_page_is_whole_in_every_view_and_loads_nothing(tmp_path: Path, kind: str) -> None:
    runs = {
        "succeeded": [Made()],
        "failed": [Made(fails=1, stall=STALL, nan_from=120)],
        "hostile": [Made(fails=2, error=HOSTILE, stall=HOSTILE, program=f"{HOSTILE}.py")],
        "many-ranks": [Made(hosts=16, per_host=8, seconds=600, fails=77)],
        "compared": [Made(), Made(rate=1.5, seconds=150, program="other.py")],
    }[kind]
    page = report(tmp_path, *(made(tmp_path, f"run-{at}", run) for at, run in enumerate(runs)))
    size = page.stat().st_size
    for seen in look_at(page, kind):
        assert seen["errors"] == [], seen["how"]
        assert seen["requests"] == [page.as_uri()], seen["how"]
        assert seen.get("hostile") is None
        assert seen.get("faint", []) == [], seen["how"]
        assert seen.get("too_wide", 0) == 0, seen["how"]
        assert seen["charts"] == 4
        on_paper = seen["how"] in ("print", "no-script")
        assert seen["svg_charts"] == (seen["charts"] if on_paper else 0), seen["how"]
        for word in ("Why", "Next", "Timeline"):
            assert word in seen["text"], seen["how"]
        if kind == "failed":
            assert "Rank 1 on algo-1 failed: ValueError: the batch is empty" in seen["text"]
            assert STALL in seen["text"]
    assert size < (120_000 if kind in ("succeeded", "failed") else 400_000)


def test_the_page_of_scaling_needs_no_script_and_loads_nothing(tmp_path: Path) -> None:
    sizes = {1: Costs(0.1), 2: Costs(0.1, wait_s=0.01), 16: Costs(0.1, wait_s=0.03, talk_s=0.02)}
    names = [write_size(str(tmp_path / f"n{n}"), n, costs, HOSTILE) for n, costs in sizes.items()]
    page = report(tmp_path, "--scale", *names, "--price", 3.06)
    for seen in look_at(page, "scale"):
        assert seen["errors"] == [], seen["how"]
        assert seen["requests"] == [page.as_uri()], seen["how"]
        assert seen.get("hostile") is None
        assert seen.get("faint", []) == [], seen["how"]
        assert seen.get("too_wide", 0) == 0, seen["how"]
        for word in ("67% of the ideal rate", "base 1 rank", "muster collectives (native)"):
            assert word in seen["text"], seen["how"]
    assert page.stat().st_size < 40_000


def test_a_real_run_has_a_page(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint('begun')\nraise ValueError('no data in </b>')\n")
    argv = [sys.executable, "-m", "muster", "local", "train.py", "--output", "run"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    text = report(tmp_path, "run").read_text()
    assert "Rank 0 on algo-1 failed: ValueError: no data in &lt;/b&gt;" in text
    assert "Open train.py:3 in &lt;module&gt;" in text
