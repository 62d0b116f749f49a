"""Healthy jobs that cross every limit of a roll call, and are asked at a random moment: nobody is
blamed, and none is ended."""

from __future__ import annotations

import random
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launcher.support.local.asking import asked
from tests.launcher.support.local.hangs import BACKENDS, START_S, begin_of, start_job
from tests.launcher.support.local.local_runs import LocalRun, Start
from tests.support.effort import chance, effort

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("muster.run.observe.agent_link") is None, reason="no agents in this build"
    ),
]
RUNS = 200  # of make test-long
LONGER_S = 1.5  # than the limit


class Healthy(NamedTuple):
    """What `of` ranks do for a while, in a loop until `end`. `backends`: where that can be.
    `is_idle`: they move a few bytes and use no processor, so it may be said where they are."""

    does: str
    of: str = "rank == 1"
    backends: tuple[str, ...] = tuple(BACKENDS)
    is_idle: bool = False


HEALTHY = {
    "evaluates": Healthy("def evaluate():\n    sum(range(1000))\nwork(evaluate)", "rank == 0"),
    "saves": Healthy(
        "file = tempfile.TemporaryFile()\ndef save():\n"
        "    file.seek(0); file.write(bytes(1 << 20)); file.flush(); os.fsync(file.fileno())\n"
        "    time.sleep(0.05)\nwork(save)",
        "rank == 0",
    ),
    "is a slower host": Healthy("def train():\n    sum(range(1000))\nwork(train)"),
    "waits for loader workers": Healthy(
        "import subprocess, sys\ncode = f'import time\\nwhile time.monotonic() < {end}: pass'\n"
        "subprocess.run([sys.executable, '-c', code])",
        "True",
    ),
    "imports torch": Healthy("import torch\nwork(lambda: sum(range(1000)))", "True", ("mpi4py",)),
    "compiles": Healthy(
        "def f(x): return torch.relu(x * 2 + 1).sum()\n"
        "def compile():\n    torch._dynamo.reset()\n    torch.compile(f, backend='eager')(x)\n"
        "work(compile)",
        "True",
        ("gloo", "muster"),
    ),
    "reads what comes slowly": Healthy(
        "import subprocess\n"
        "pipe = subprocess.Popen(['sh', '-c', 'while :; do head -c 65536 /dev/zero; sleep 0.2; "
        "done'], stdout=subprocess.PIPE)\n"
        "work(lambda: pipe.stdout.read(4096))\npipe.kill(); pipe.wait(); pipe.stdout.close()",
        is_idle=True,
    ),
}
END = """\
def work(part):
    while time.monotonic() < end:
        part()
for number in range(10):
    time.sleep(0.02)
    step()
end = time.monotonic() + {seconds}
if {of}:
{does}
step()
"""


def healthy_script(kind: str, backend: str, seconds: float) -> str:
    healthy = HEALTHY[kind]
    does = "".join(f"    {line}\n" for line in healthy.does.splitlines())
    leave = "" if backend == "mpi4py" else "dist.destroy_process_group()\n"
    made = END.format(seconds=seconds, of=healthy.of, does=does)
    return begin_of(BACKENDS[backend]) + made + leave


def check_healthy(kind: str, backend: str, hosts: int, limit_s: int, start: Start, home: Path,
                  random_: random.Random) -> str:  # fmt: skip
    """One run; what was answered when it was asked."""
    script = healthy_script(kind, backend, limit_s + LONGER_S)
    names = ("MUSTER_STALL_WAIT_S", "MUSTER_STALL_IDLE_S", "MUSTER_HANG_S")
    run = start_job(start, home, backend, hosts, script, **dict.fromkeys(names, str(limit_s)))
    said = _ask(run, random_.uniform(0, limit_s + LONGER_S))
    result = run.wait(START_S)
    story = f"{kind}, {backend}, {hosts} hosts, limit {limit_s} s\n{said}\n{result.err}"
    assert result.code == 0, story
    assert "HangError" not in result.err, story
    lines = [line for line in result.err.splitlines() if "roll call: " in line]
    for sentence in (said, *lines):
        assert "hung" not in sentence, story
        assert HEALTHY[kind].is_idle or "look there" not in sentence, story
    return said


def _ask(run: LocalRun, after_s: float) -> str:
    """Asks once, that long after the ranks have begun to train."""
    end = time.monotonic() + START_S
    while run.out.count("ready on") < 2 and run.process.poll() is None:
        assert time.monotonic() < end, run.err
        time.sleep(0.02)
    until = time.monotonic() + after_s
    while time.monotonic() < until and run.process.poll() is None:
        time.sleep(0.02)
    return asked("stacks", str(run.folder)).stdout.partition("\n")[0]


@pytest.mark.promise("H07")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "backend", "hosts"), [("evaluates", "gloo", 1), ("saves", "mpi4py", 1)]
)
def test_a_healthy_job_crosses_the_limits_and_ends_well(
    kind: str, backend: str, hosts: int, start: Start, tmp_path: Path
) -> None:
    check_healthy(kind, backend, hosts, 1, start, tmp_path, chance())


@pytest.mark.effort
@pytest.mark.long
@pytest.mark.promise("H07")
@pytest.mark.timeout(3600)
def test_many_healthy_jobs_cross_the_limits_and_none_is_blamed(
    start: Start, tmp_path: Path
) -> None:
    random_ = chance()
    for number in range(min(RUNS, 4 * effort())):
        kind = list(HEALTHY)[number % len(HEALTHY)]
        backend = random_.choice(HEALTHY[kind].backends)
        home = tmp_path / str(number)
        home.mkdir()
        hosts, limit_s = random_.choice((1, 2)), random_.choice((1, 3))
        check_healthy(kind, backend, hosts, limit_s, start, home, random_)
