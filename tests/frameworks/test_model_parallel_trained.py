"""Whole jobs in the API of smdistributed.modelparallel: what docs/how-to/model-parallel.md says."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.launcher.support.events import events_in
from tests.launcher.support.local.local_runs import LocalRun, runs
from tests.support.frameworks import PATIENT, QUIET, ended_well, skip_without_namespaces
from tests.support.venvs import CHECKOUT
from tests.support.waiting import within

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
JOB_S = 300.0
AT_ONCE_S = 5.0  # from the end of the rank that raises to that of all hosts
FEW, MORE = 10, 20  # steps
SCRIPT = CHECKOUT / "examples" / "modelparallel" / "train.py"
PARAMETERS = {"microbatches": 4, "ddp": True}
BY_ITS_NAME = "smp"
MPI = {"mpi": {"enabled": True}}
TORCH = {"torch_distributed": {"enabled": True}}


def asked(launcher: dict[str, object], **parameters: object) -> str:
    """The distribution with these parameters beside those that all jobs here have."""
    library = {"enabled": True, "parameters": {**PARAMETERS, **parameters}}
    return json.dumps({"smdistributed": {"modelparallel": library}, **launcher})


UNDER_MPIRUN = asked(MPI)
CUT = asked(TORCH, partitions=2)

Run = Callable[..., LocalRun]


@contextmanager
def running(folder: Path) -> Iterator[Run]:
    skip_without_namespaces()
    pairs = [word for name, value in QUIET.items() for word in ("--env", f"{name}={value}")]
    with runs() as start:

        def command(distribution: str, *options: str, **hyperparameters: object) -> LocalRun:
            if distribution == BY_ITS_NAME:
                hyperparameters["mp_parameters"] = json.dumps(PARAMETERS)
            hyperparameters["report-every"] = FEW
            words = [f"--hyperparameter={key}={value}" for key, value in hyperparameters.items()]
            argv = [
                str(SCRIPT), "--hosts", "2", "--distribution", distribution,
                "--isolation", "netns", *words, *options, *pairs,
            ]  # fmt: skip
            return start(folder, argv, environ=PATIENT, python=sys.executable)

        yield command


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path) as command:
        yield command


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the example says from its first step to its last, under torchrun."""
    with running(tmp_path_factory.mktemp("whole")) as command:
        return ended_well(command(BY_ITS_NAME), JOB_S).out


def losses(out: str) -> dict[int, str]:
    found = re.findall(r"step=(\d+)/\d+ loss=([\d.]+)", out)
    return {int(step): loss for step, loss in found}


def test_the_example_learns_what_its_page_says(whole: str) -> None:
    page = (CHECKOUT / "docs/how-to/model-parallel.md").read_text()
    (percent,) = re.findall(r"it must predict (\d+) %", page)
    (accuracy,) = re.findall(r"accuracy=([\d.]+)", whole)
    assert float(accuracy) >= int(percent) / 100


def fails_on_purpose(begun: LocalRun, *notes: str) -> dict[int, str]:
    """Waits for the end of a job whose rank 1 raises, and is named with these notes; both hosts
    end at once. The losses until then."""
    result = begun.wait(JOB_S)
    assert result.code == 1, result.err[-5000:]
    (first,) = re.findall(r"^FAILED .*", result.err, re.MULTILINE)
    assert first == "FAILED algo-2 rank 1: ValueError: broken on purpose", result.err[-5000:]
    block = result.err.rpartition(first)[2]
    if sys.version_info >= (3, 11):
        assert not [note for note in notes if note not in block], result.err[-5000:]
    events = events_in(result.folder)
    ended_s = [one["t"] for one in events if one["kind"] == "rank_ended"]
    assert len(ended_s) == 2 and events[-1]["t"] - min(ended_s) < within(AT_ONCE_S), events
    begun.check_nothing_left()
    return losses(result.out)


def test_torchrun_goes_on_where_a_rank_under_mpirun_failed_and_is_named_and_steps_are_the_same(
    run: Run, whole: str, tmp_path: Path
) -> None:
    kept, folder = str(tmp_path / "kept"), "/opt/ml/checkpoints"
    first = run(UNDER_MPIRUN, "--checkpoint", kept, checkpoints=folder, **{"fail-step": FEW + 3})
    assert fails_on_purpose(first) == {FEW: losses(whole)[FEW]}
    second = run(BY_ITS_NAME, "--checkpoint", kept, steps=MORE, checkpoints=folder)
    assert losses(ended_well(second, JOB_S).out) == {MORE: losses(whole)[MORE]}


def test_two_pipelines_over_two_hosts_learn_what_two_whole_models_learn(
    run: Run, whole: str
) -> None:
    begun = run(CUT, "--processes-per-host", "2", steps=FEW)
    out = ended_well(begun, JOB_S).out
    assert float(losses(out)[FEW]) == pytest.approx(float(losses(whole)[FEW]), abs=0.02)
    assert out.count("pipeline 2 x data 2") == 1 and "proved: 1 outputs" in out, out
    folder = begun.base("algo-1") / "output" / "data"
    assert len(json.loads((folder / "model-plan.json").read_text())["stages"]) == 2
    assert ElementTree.parse(folder / "model-plan.html").getroot().tag.endswith("html")


def test_parameters_cut_over_two_hosts_learn_what_whole_ones_learn(run: Run, whole: str) -> None:
    cut = asked(
        TORCH, sharded_data_parallel_degree=2, sdp_param_persistence_threshold=100,
        sdp_gradient_clipping=0,
    )  # fmt: skip
    out = ended_well(run(cut, steps=FEW), JOB_S).out
    assert float(losses(out)[FEW]) == pytest.approx(float(losses(whole)[FEW]), abs=0.02)


@pytest.mark.promise("F73")
def test_a_pipeline_over_two_hosts_goes_on_from_its_checkpoint_when_a_stage_failed(
    run: Run, tmp_path: Path
) -> None:
    kept, folder = str(tmp_path / "kept"), "/opt/ml/checkpoints"
    broken = {"fail-step": MORE + 3, "fail-in": "head"}
    first = run(CUT, "--checkpoint", kept, checkpoints=folder, **broken)
    at_once = fails_on_purpose(first, "in stage 1, microbatch 0", "in step function train_step")
    assert list(at_once) == [FEW, MORE]
    back_to(FEW, tmp_path / "kept")
    under_mpirun = asked(MPI, partitions=2)
    second = run(under_mpirun, "--checkpoint", kept, steps=MORE, checkpoints=folder)
    found = losses(ended_well(second, JOB_S).out)
    assert list(found) == [MORE]
    assert float(found[MORE]) == pytest.approx(float(at_once[MORE]), abs=0.02)


def back_to(step: int, kept: Path) -> None:
    """The checkpoints as they were after that step."""
    named = list(kept.rglob("newest"))
    assert named
    for newest in named:
        shutil.rmtree(newest.parent / f"{newest.read_text().strip()}_partial")
        newest.write_text(f"step{step}")


def test_the_model_of_a_script_is_planned_for_a_job_that_this_machine_cannot_run(
    run: Run,
) -> None:
    many = asked({"mpi": {"enabled": True, "processes_per_host": 8}}, partitions=2, microbatches=8)
    begun = run(many, "--model-plan")
    out = ended_well(begun, JOB_S).out
    assert "pipeline 2 x data 8" in out and "proved: 1 outputs" in out, out
    folder = begun.base("algo-1") / "output" / "data"
    plan = json.loads((folder / "model-plan.json").read_text())
    assert plan["microbatches"] == 8 and len(plan["stages"]) == 2
    assert ElementTree.parse(folder / "model-plan.html").getroot().tag.endswith("html")
    assert not losses(out)
