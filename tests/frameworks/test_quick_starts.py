"""The quick starts: what a page of docs/start says to type trains, and breaks, as the page says."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.launcher.support.local.local_runs import LocalRun, runs
from tests.support.effort import effort
from tests.support.frameworks import (
    PATIENT,
    QUIET,
    deepspeed_packages,
    ended_well,
    finals,
    library_packages,
    skip_without_namespaces,
)
from tests.support.venvs import CHECKOUT, UnavailableError

# the first test may make an environment
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
PAGES = CHECKOUT / "docs" / "start"
JOB_S = 300.0  # a job of half a minute, on a machine that others keep busy
BROKEN = "broken on purpose"

Run = Callable[[str], LocalRun]


def library(name: str) -> Mapping[str, str]:
    return {"PYTHONPATH": str(library_packages(name))}


def deepspeed() -> Mapping[str, str]:
    return {"PYTHONPATH": str(deepspeed_packages()), "DS_ACCELERATOR": "cpu"}


# page: the Python that runs it (a fixture; empty for .venv's), and what `--env` adds
ENVIRONMENTS: Mapping[str, tuple[str, Callable[[], Mapping[str, str]]]] = {
    "pytorch-ddp": ("", dict),
    "pytorch-fsdp": ("", dict),
    "huggingface-trainer": ("", lambda: library("transformers5")),
    "lightning": ("", lambda: library("transformers5")),
    "accelerate": ("", lambda: library("transformers5")),
    "deepspeed": ("", deepspeed),
    "tensorflow": ("tensorflow", dict),
    "mxnet": ("mxnet", dict),
}
EACH_PAGE = pytest.mark.parametrize("page", ENVIRONMENTS)
# with what test_recorded_terminal.py shows of pytorch-ddp's page, one of each way to start; the
# frameworks of the others raise as these do: make test-long
BROKEN_FIRST = ("tensorflow",)
BROKEN_PAGES = [
    pytest.param(page, marks=() if page in BROKEN_FIRST else pytest.mark.effort)
    for page in ENVIRONMENTS
    if page in BROKEN_FIRST or effort() > 1
]


@pytest.fixture
def run(request: pytest.FixtureRequest, page: str, tmp_path: Path) -> Iterator[Run]:
    """Starts a command of the page with the environment of the page."""
    skip_without_namespaces()
    fixture, more = ENVIRONMENTS[page]
    python = request.getfixturevalue(fixture) if fixture else sys.executable
    try:
        environ = {**QUIET, **more()}
    except UnavailableError as reason:
        pytest.skip(f"{page} cannot run here: {reason}")
    pairs = [word for name, value in environ.items() for word in ("--env", f"{name}={value}")]
    with runs() as start:

        def command(line: str) -> LocalRun:
            script, *options = shlex.split(line)
            argv = [str(CHECKOUT / script), *options, "--isolation", "netns", *pairs]
            begun: LocalRun = start(tmp_path, argv, environ=PATIENT, python=str(python))
            return begun

        yield command


def test_every_page_is_run() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*ENVIRONMENTS, "README"}


@EACH_PAGE
def test_the_example_reaches_the_accuracy_of_its_page(page: str, run: Run) -> None:
    text = (PAGES / f"{page}.md").read_text()
    (enough,) = re.findall(r"accuracy is above (0\.\d+)", text)
    out = ended_well(run(commands(text)[0]), JOB_S).out
    last = dict(re.findall(r"^\[algo-\d:(\d)\] .*accuracy=([\d.]+)", out, re.MULTILINE))
    assert last and len(set(last.values())) == 1, out[-5000:]  # workers that all say it agree
    assert float(last["0"]) > float(enough)
    assert re.search(r"(ranks|workers)=2\b", out), out[-5000:]
    assert len({one.get("weights") for one in finals(out).values()}) <= 1, out[-5000:]


@pytest.mark.parametrize("page", BROKEN_PAGES)
def test_the_rank_that_a_page_breaks_is_named_on_every_host(page: str, run: Run) -> None:
    text = (PAGES / f"{page}.md").read_text()
    (shown,) = re.findall(r"^FAILED .*$", text, re.MULTILINE)
    begun = run(commands(text)[1])
    result = begun.wait(JOB_S)
    assert result.code == 1, result.err[-5000:]
    assert BROKEN in shown and shown in result.err.splitlines(), result.err[-5000:]
    for host in ("algo-1", "algo-2"):
        assert BROKEN in (begun.base(host) / "output" / "failure").read_text()
    begun.check_nothing_left()


def commands(text: str) -> tuple[str, str]:
    """What follows `muster local` in the two commands of a page."""
    train, fail = re.findall(r"^muster local (.+)$", text, re.MULTILINE)
    return train, fail
