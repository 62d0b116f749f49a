"""Hugging Face's Trainer, accelerate and Lightning under the options that start several ranks.

They make the process group themselves, from what the launcher tells. The real libraries, a tiny
model, four steps, no network. docs/how-to/frameworks.md has the table that these tests prove.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.run.child.group_watch import ENOUGH_LOOKS, EXCHANGED_NOTHING, PAUSE_S
from tests.launcher.support.local.local_runs import LocalRun
from tests.model_parallel.support.ranks import run_ranks, words_of
from tests.support.effort import effort
from tests.support.frameworks import JOB_S, NETNS, PROCESS, Start, ended_well, library_packages
from tests.support.venvs import UnavailableError

# the first test may make an environment
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
SCRIPT = Path(__file__).with_name("library_job.py")
RANKS = 2
IMPORTS = ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2")
LIMIT_S = 2 * JOB_S  # to import transformers alone takes a rank ten seconds of a processor
LOOKS_S = 3 * ENOUGH_LOOKS * PAUSE_S  # the machine is kept busy, and a look takes its time
TORCHRUN, MPI = "torch_distributed", "mpi"
DATA_PARALLEL, SERVERS = "smdistributed.dataparallel", "parameter_server"


class Case(NamedTuple):
    environment: str
    library: str
    option: str
    on: str = "cpu"


# what differs most from plain torchrun; the Trainer alone asks for smdistributed.dataparallel, and
# stands on accelerate where the option is mpi. Lightning under torchrun is a quick start.
CASES = (
    Case("transformers5", "trainer", DATA_PARALLEL, "stand-in"),
    Case("transformers5", "accelerate", MPI),
)
MORE = (
    Case("transformers4", "trainer", DATA_PARALLEL, "stand-in"),
    *(
        Case(environment, library, option)
        for environment, library in (
            ("transformers5", "trainer"),
            ("transformers4", "trainer"),
            ("transformers5", "accelerate"),
            ("transformers5", "lightning"),
        )
        for option in (TORCHRUN, MPI, DATA_PARALLEL, SERVERS)
        if not (library == "trainer" and option == DATA_PARALLEL)
    ),
)


def chosen(cases: Sequence[Case], more: Sequence[Case]) -> list[Any]:
    """The second only where tests try harder: each case takes some 20 s of processor time."""
    rest = [one for one in more if one not in cases]
    return [pytest.param(one, id="-".join(one)) for one in cases] + [
        pytest.param(one, id="-".join(one), marks=pytest.mark.effort)
        for one in rest
        if effort() > 1
    ]


@pytest.mark.parametrize("case", chosen(CASES, MORE))
def test_a_library_trains_as_under_plain_torchrun(start: Start, case: Case) -> None:
    ranks = trained(ended_well(begin(start, case), LIMIT_S).out)
    assert [one["size"] for one in ranks] == [RANKS, RANKS]
    assert losses(ranks) == pytest.approx(plain(case.library), abs=2e-4)
    asked = case.library == "trainer" and case.option == DATA_PARALLEL
    assert {one["backend"] for one in ranks} == {"smddp" if asked else "gloo"}


@pytest.mark.effort
@pytest.mark.parametrize(
    ("on", "words"),
    [("gpu", "ZeroDivisionError"), ("cpu", "DistributedDataParallel device_ids and output_device")],
)
def test_the_trainer_takes_smddp_for_gpus(start: Start, on: str, words: str) -> None:
    if effort() == 1:
        pytest.skip("two more jobs of the Trainer: make test-long runs them")
    result = begin(start, Case("transformers5", "trainer", DATA_PARALLEL, on)).wait(LIMIT_S)
    assert result.code == 1 and words in result.err, result.err[-5000:]


@pytest.mark.effort
@pytest.mark.parametrize("library", ["trainer", "accelerate"])
def test_ranks_that_trained_a_model_each_are_named(start: Start, library: str) -> None:
    """What the libraries do on CPUs when nobody tells them to use one. In a network of their own:
    where others use it, too, it is left unsaid."""
    if effort() == 1:
        pytest.skip("test_group_watch_jobs.py has it without the libraries")
    case = Case("transformers5", library, TORCHRUN, "gpu")
    result = ended_well(begin(start, case, NETNS, LOOKS_S), LIMIT_S)
    assert result.err.count(EXCHANGED_NOTHING) == 1
    first, second = trained(result.out)
    assert first["losses"] == second["losses"] != list(plain(library))


def begin(start: Start, case: Case, isolation: str = PROCESS, stay_s: float = 0.0) -> LocalRun:
    packages = packages_of(case.environment)
    return start(
        Path(sys.executable), SCRIPT, case.option, 1, "--processes-per-host", str(RANKS),
        "--env", f"PYTHONPATH={packages}", "--env", "MUSTER_PS_FRAMEWORK=pytorch",
        isolation=isolation, library=case.library, on=case.on, stay=stay_s,
    )  # fmt: skip


def packages_of(environment: str) -> Path:
    try:
        return library_packages(environment)
    except UnavailableError as reason:
        pytest.skip(f"{environment} cannot be installed here: {reason}")


@functools.cache
def plain(library: str) -> tuple[float, ...]:
    """The losses of ranks that have torchrun's variables and nothing of muster."""
    ends = run_ranks(
        SCRIPT, RANKS, arguments=["--library", library, "--on", "cpu"],
        env={"PYTHONPATH": str(packages_of("transformers5"))}, limit_s=LIMIT_S, imports=IMPORTS,
    )  # fmt: skip
    assert all(end.code == 0 for end in ends), words_of(ends)
    return losses(trained("".join(end.out for end in ends)))


def trained(out: str) -> list[dict[str, Any]]:
    """What each rank said, in their order."""
    said = [json.loads(line) for line in re.findall(r"trained (\{.*\})$", out, re.MULTILINE)]
    assert sorted(one["rank"] for one in said) == list(range(RANKS)), out[-5000:]
    return sorted(said, key=lambda one: int(one["rank"]))


def losses(ranks: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    """The mean over ranks: the Trainer of transformers 5 shows each rank's own under smddp."""
    steps = zip(*(one["losses"] for one in ranks), strict=True)
    return tuple(sum(step) / len(ranks) for step in steps)
