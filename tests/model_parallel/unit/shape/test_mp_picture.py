"""The picture of a plan: one well-formed page that needs nothing else and shows every part."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from muster_modelparallel.shape.choose import choose
from muster_modelparallel.shape.costs import Machine
from muster_modelparallel.shape.picture.page import page
from muster_modelparallel.shape.picture.timeline import MOST
from muster_modelparallel.shape.schedule import one_f_one_b
from muster_modelparallel.shape.units import Unit
from tests.model_parallel.support.profiles import UNEVEN, chain

SVG = "svg"


def parsed(text: str) -> ElementTree.Element:
    doctype, _, rest = text.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def test_the_page_shows_all_parts_and_loads_nothing() -> None:
    plan, line = choose(UNEVEN["gpt"], Machine(memory_bytes=2**30), 4, pipelines=[4])
    text = page(plan, line)
    root = parsed(text)
    heads = [one.text for one in root.iter("h2")]
    assert heads == [
        "What would help",
        "Stages",
        "One step, simulated",
        "Units by time",
        "Units by bytes",
        "Bytes of each rank",
        "Between stages",
        "Degrees, microbatches, schedules",
    ]
    assert len(list(root.iter(SVG))) == 4
    assert not re.search(r"<script|<link|<img|src=|href=|@import|url\(|https?://", text)
    assert "prefers-color-scheme: dark" in text
    titles = [one.text for one in root.iter("title")]
    for stage in range(len(plan.stages)):
        assert any(f"forward of microbatch 0 in stage {stage}:" in str(one) for one in titles)
    for unit in plan.profile.units:
        assert any(str(one).startswith(f"{unit.name}: ") for one in titles)
    assert [row.get("class") for row in root.iter("tr")].count("chosen") == 1


def test_the_bars_of_a_rank_are_where_its_actions_are() -> None:
    plan, line = choose(chain([1.0] * 4), Machine(), 2, pipelines=[2], microbatches=[2])
    drawn = next(one for one in parsed(page(plan, line)).iter(SVG))
    bars = [one for one in drawn.iter("rect") if "stage" in str(one.get("class"))]
    spans = [span for rank in line.ranks for span in rank]
    across = 940 / line.step_s
    for bar, (_, start, end) in zip(bars, spans, strict=True):
        assert float(bar.get("x")) == pytest.approx(60 + start * across, abs=0.01)
        assert float(bar.get("width")) == pytest.approx((end - start) * across, abs=0.01)


def test_a_name_from_a_model_is_text_not_markup() -> None:
    units = (Unit("a<b>&\"c'.x", forward_s=1.0), Unit("</svg>", forward_s=1.0))
    profile = replace(chain([1.0] * 2), units=units, model="<M&>")
    root = parsed(page(*choose(profile, Machine(), 2, pipelines=[2], microbatches=[2])))
    assert next(root.iter("h1")).text == "Plan of <M&>"
    assert len(list(root.iter(SVG))) == 4


def test_a_long_step_is_drawn_in_fewer_bars() -> None:
    makers = {"1F1B": one_f_one_b}
    plan, line = choose(
        chain([1.0] * 8), Machine(), 8, pipelines=[8], microbatches=[512], makers=makers
    )
    assert sum(map(len, line.ranks)) > MOST
    drawn = [str(one.text) for one in parsed(page(plan, line)).iter("title")]
    assert len(drawn) < 200 and any(re.match(r"\d{3,} actions in stage 0: ", one) for one in drawn)
