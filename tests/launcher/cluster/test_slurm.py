"""`muster run` on a real Slurm of two nodes: jobs that run, fail, are cancelled and run again."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.contract.engines import detect
from muster.contract.engines.slurm import expanded
from tests.launcher.elsewhere import trained
from tests.launcher.support.fixtures import REFUSING, saving
from tests.launcher.support.slurm import Slurm, cluster
from tests.launcher.unit.contract.test_engine_readers import SLURM
from tests.support.waiting import wait_until

RUN_S = 120.0  # torch is imported by each rank
NUMBERS = itertools.count(1)
SAVE_S = 3.0  # longer than what a second SIGTERM would wait for
PLAIN = """\
import time
print("up", flush=True)
while True:
    time.sleep(0.05)
"""
SAVES, RAISES = saving(SAVE_S) + PLAIN, REFUSING + PLAIN
MPI = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
REDUCES = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("up", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
"""
TORCH = ("--distribution", "torch_distributed")
MPIRUN = ("--distribution", "mpi")
SHORT = ("torch_distributed", "mpi")  # of the ways to train, in every run of the tests
# what the script does, how it is started, and what a cancelled job's log then holds so often
KINDS = {
    "plain": (PLAIN, (), "", 0),
    "raises": (RAISES, (), "", 0),
    "saves": (SAVES, (), "saved", 2),
    "mpi": (MPI + PLAIN, MPIRUN, "", 0),
    "mpi saves": (MPI + SAVES, MPIRUN, "saved", 2),
    "torchrun": (REDUCES, TORCH, "", 0),
    "torchrun saves": (SAVES, TORCH, "saved", 2),
}


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def slurm(daemons: Slurm) -> Iterator[Slurm]:
    """The cluster, with nobody on its nodes before and after."""
    daemons.client("scancel", "--user=root")  # what a test that failed has left
    daemons.wait_clean()
    yield daemons
    daemons.wait_clean()


class Job:
    """`muster run` of a script on both nodes, handed in. Each host's exit code is kept."""

    def __init__(
        self, slurm: Slurm, script: str, *options: str, step: str = "", batch: str = ""
    ) -> None:
        self.slurm = slurm
        self.folder = slurm.folder / f"run-{next(NUMBERS)}"
        code = self.folder / "code"
        code.mkdir(parents=True)
        (code / "train.py").write_text(script)
        words = " ".join(["muster run", str(code / "train.py"), "--output out", *options])
        # a shell that hears the signal and waits for what it started
        keep = f"trap : TERM; {words}; echo $? >code-$SLURM_NODEID"
        line = f"cd {self.folder} && srun --unbuffered {step} bash -c '{keep}'"
        self.number = slurm.sbatch(f"{line}\n{batch}")

    def codes(self) -> list[int]:
        return [int(path.read_text()) for path in sorted(self.folder.glob("code-*"))]

    @property
    def log(self) -> str:
        return self.slurm.log(self.number)

    def wait(self, word: str, count: int) -> None:
        def over() -> bool:
            return len(self.codes()) == 2

        wait_until(
            lambda: self.log.count(word) >= count or over(),
            RUN_S,
            lambda: self.slurm.story(self.number),
        )
        assert self.log.count(word) >= count, self.log

    def ended(self) -> tuple[str, int]:
        return self.slurm.ended(self.number, RUN_S)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "distribution",
    [
        way if way in SHORT else pytest.param(way, marks=pytest.mark.long)
        for way in trained.EXAMPLES
    ],
)
def test_ranks_of_both_nodes_train_together(slurm: Slurm, distribution: str) -> None:
    job = Job(slurm, trained.script(distribution), *trained.options(distribution))
    assert job.ended() == ("COMPLETED", 0), slurm.story(job.number)
    assert job.codes() == [0, 0] and "SUCCEEDED" in job.log, job.log
    assert trained.accuracy(job.log) > trained.GOOD, job.log


def test_somebody_elses_signal_stays_a_failure(slurm: Slurm) -> None:
    """A rank that is sent SIGTERM alone: after two seconds without a stop it has failed."""
    script = "import os, time\n" + (
        "if os.environ['SM_CURRENT_HOST'] == 'n2':\n    os.kill(os.getpid(), 15)\ntime.sleep(600)\n"
    )
    job = Job(slurm, script)
    job.ended()
    assert job.codes() == [1, 1] and "FAILED n2 rank 1: killed by signal 15" in job.log, job.log


def cancel(slurm: Slurm, kind: str, moment: random.Random, at_start: bool) -> None:
    """Cancels one job once its ranks are up, or a moment after it began; asserts what it says."""
    script, options, word, count = KINDS[kind]
    job = Job(slurm, script, *options)
    if at_start:
        wait_until(lambda: slurm.facts(job.number)["JobState"] != "PENDING", 30)
        time.sleep(moment.uniform(0, 1.5))
    else:
        job.wait("up\n", 2)
        time.sleep(moment.uniform(0, 0.3))
    slurm.client("scancel", job.number)
    assert job.ended()[0] == "CANCELLED", slurm.story(job.number)
    slurm.wait_clean()
    assert set(job.codes()) <= {143}, job.log
    assert "FAILED" not in job.log and "asked 2" not in job.log, job.log
    ends = job.folder / "out" / "summary.json"
    if not at_start:
        assert job.codes() == [143, 143] and "STOPPED by SIGTERM on n" in job.log, job.log
        assert job.log.count(word) >= count, job.log
    if ends.exists():
        assert json.loads(ends.read_text())["outcome"]["result"] == "Stopped", ends.read_text()


@pytest.mark.parametrize("turn", range(50))
def test_a_cancelled_job_says_so(slurm: Slurm, turn: int) -> None:
    kind = ("plain", "raises", "plain", "mpi", "saves")[turn % 5]
    cancel(slurm, kind, random.Random(turn), at_start=turn % 4 == 3)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", range(29))  # 203 jobs on one cluster
def test_any_cancelled_job_says_so(slurm: Slurm, kind: str, turn: int) -> None:
    cancel(slurm, kind, random.Random(f"{kind} {turn}"), at_start=turn % 4 == 3)


def test_a_job_that_is_requeued_is_the_second_attempt(slurm: Slurm) -> None:
    script = f"""\
from muster.runtime import facts
print("attempt", facts().attempt, flush=True)
if facts().attempt == 2:
    raise SystemExit(0)
{PLAIN}"""
    job = Job(slurm, script)
    job.wait("up\n", 2)
    before = job.log
    slurm.client("scontrol", "requeue", job.number)
    slurm.wait_nobody()
    wait_until(lambda: slurm.facts(job.number)["JobState"] == "PENDING", 30)
    # in the second in which the first attempt's credential ended, nodes refuse a new one
    slurm.client("scontrol", "update", f"JobId={job.number}", "StartTime=now+2")
    assert before.count("attempt 1") == 2, before
    assert job.ended() == ("COMPLETED", 0), slurm.story(job.number)
    assert job.log.count("attempt 2") == 2 and job.codes() == [0, 0], job.log


def test_what_is_known_by_hand_of_a_step_is_what_slurm_says(slurm: Slurm) -> None:
    """The environment that the readers' tests use has no name that Slurm does not give."""
    job = slurm.sbatch('srun sh -c "env >said-$SLURM_NODEID"'.replace('"', "'"))
    slurm.ended(job)
    said = [environment(slurm.folder / f"said-{place}") for place in (0, 1)]
    assert set(SLURM) <= set(said[1]), sorted(set(SLURM) - set(said[1]))
    for place, environ in enumerate(said):
        found = detect(environ, lambda _path: "").engine
        assert (found.name, found.host_index, found.host_count) == ("slurm", place, 2)
        assert found.names == ("n1", "n2") and found.job == f"slurm-{job}-0"
        assert (found.attempt, found.signals_all) == (1, True)


def environment(path: Path) -> dict[str, str]:
    entries = (line.partition("=") for line in path.read_text().splitlines())
    return {name: value for name, _, value in entries}


PREFIXES = st.from_regex(r"[a-z][a-z-]{0,5}", fullmatch=True)
RANGES = st.tuples(st.integers(0, 120), st.integers(0, 5), st.integers(1, 4)).map(
    lambda one: f"{one[0]:0{one[2]}d}-{one[0] + one[1]:0{one[2]}d}"
)
SINGLES = st.integers(0, 999).map(lambda one: f"{one:02d}")
BRACKETS = st.lists(st.one_of(RANGES, SINGLES), min_size=1, max_size=3).map(
    lambda parts: f"[{','.join(parts)}]"
)
ONE = st.builds("{}{}".format, PREFIXES, BRACKETS)
ENTRIES = st.one_of(PREFIXES, ONE, st.builds("{}-{}".format, ONE, ONE))


def test_host_lists_are_expanded_as_slurm_does(daemons: Slurm) -> None:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(ENTRIES, min_size=1, max_size=3).map(",".join))
    def same(text: str) -> None:
        assert list(expanded(text)) == daemons.client("scontrol", "show", "hostnames", text).split()

    same()
