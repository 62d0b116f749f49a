"""Real frameworks: environments below `.cache/`, and jobs of theirs on hosts of this machine.

Each environment has the checkout's launcher, so that its Python starts jobs and runs the scripts.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.local.local_runs import LocalRun, Result, runs
from tests.support.effort import effort
from tests.support.venvs import CHECKOUT, Source, UnavailableError, locked_environment
from tests.support.waiting import wait_until

EXAMPLES = CHECKOUT / "examples"
LAUNCHER = CHECKOUT / "toolkit" / "launcher"
NETNS, PROCESS = "netns", "process"
JOB_S = 150.0  # a job of a few seconds, on a machine that others keep busy
STEPS_S = 90.0  # until such a job has trained for a step
# The jobs of `runs` lose a host after 2 s of silence; frameworks keep all processors for longer.
PATIENT = {"MUSTER_HEARTBEAT_S": "1", "MUSTER_LOST_AFTER_S": "30"}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONWARNINGS": "ignore"}
# Ranks of all hosts share this machine's processors: one that waits in MPI is to yield its own.
SHARED = {"OMPI_MCA_mpi_yield_when_idle": "1"}
HOROVOD = Source(
    "horovod==0.28.1",
    {
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_GLOO": "1",
        "HOROVOD_WITH_MXNET": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "MAKEFLAGS": "-j2",
    },
)

# On CPUs DeepSpeed loads an operator for sums in inference: compiled when it is installed, or else
# as every job starts. That takes two minutes of a processor: only where tests try harder.
_ON_CPUS = {
    "DS_ACCELERATOR": "cpu",
    "DS_BUILD_OPS": "0",
    "PYTHONPATH": sysconfig.get_path("purelib"),  # it is made for the torch of .venv
}
DEEPSPEED = Source(
    "deepspeed==0.19.8", _ON_CPUS, {"deepspeed/ops/__init__.py": "__compatible_ops__ = {}\n"}
)
DEEPSPEED_COMPILED = Source(DEEPSPEED.requirement, {**_ON_CPUS, "DS_BUILD_SHM_COMM": "1"})


class Start(Protocol):
    """Starts `muster local` on an example, or on a file, with an environment's Python."""

    def __call__(
        self,
        python: Path,
        script: str | Path,
        distribution: str,
        hosts: int,
        *options: str,
        isolation: str = NETNS,
        environ: Mapping[str, str] | None = None,
        **hyperparameters: object,
    ) -> LocalRun: ...


@functools.cache
def framework_environment(name: str) -> Path:
    """The environment of `constraints/<name>.txt`.

    The first call may take minutes, later ones nothing. Raises UnavailableError.
    """
    return locked_environment(name, CHECKOUT / "constraints" / f"{name}.txt", LAUNCHER)


@functools.cache
def horovod_environment() -> Path:
    """As `framework_environment`, with Horovod built in it: 2 to 6 minutes, once.

    docs/how-to/frameworks.md says why it is built with MXNet. Raises UnavailableError.
    """
    for tool in ("cmake", "make", "c++"):
        if not shutil.which(tool):
            raise UnavailableError(f"no {tool}: apt-get install cmake g++ make")
    lock = CHECKOUT / "constraints" / "horovod.txt"
    return locked_environment("horovod", lock, LAUNCHER, HOROVOD)


@functools.cache
def deepspeed_packages() -> Path:
    """A folder with DeepSpeed and what it needs beside torch and numpy. Raises UnavailableError."""
    lock = CHECKOUT / "constraints" / "deepspeed.txt"
    if effort() == 1:
        return _packages(locked_environment("deepspeed", lock, source=DEEPSPEED))
    if not shutil.which("c++"):
        raise UnavailableError("no C++ compiler: apt-get install g++")
    return _packages(locked_environment("deepspeed-compiled", lock, source=DEEPSPEED_COMPILED))


@functools.cache
def library_packages(name: str) -> Path:
    """The folder with the packages of `constraints/<name>.txt`, which go beside .venv's torch.
    Raises UnavailableError."""
    return _packages(locked_environment(name, CHECKOUT / "constraints" / f"{name}.txt"))


def _packages(place: Path) -> Path:
    return next((place / "lib").glob("python*/site-packages"))


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


@contextmanager
def job_starter(home: Path) -> Iterator[Start]:
    """Jobs that have all ended at the end of the block and kept what holds for every job."""
    with runs() as begin:

        def start(
            python: Path,
            script: str | Path,
            distribution: str,
            hosts: int,
            *options: str,
            isolation: str = NETNS,
            environ: Mapping[str, str] | None = None,
            **hyperparameters: object,
        ) -> LocalRun:
            if isolation == NETNS:
                skip_without_namespaces()
            path = script if isinstance(script, Path) else EXAMPLES / script / "train.py"
            argv = [
                str(path), "--distribution", distribution, "--hosts", str(hosts),
                "--isolation", isolation, *options, *_pairs("--hyperparameter", hyperparameters),
                *_pairs("--env", QUIET),
            ]  # fmt: skip
            run: LocalRun = begin(
                home, argv, environ={**PATIENT, **(environ or {})}, python=str(python)
            )
            return run

        yield start


def _pairs(option: str, values: Mapping[str, object]) -> Sequence[str]:
    return [word for name, value in values.items() for word in (option, f"{name}={value}")]


def skip_without_namespaces() -> None:
    reason = _why_not_isolated()
    if reason:
        pytest.skip(f"this machine allows no namespaces: {reason}")


@functools.cache
def _why_not_isolated() -> str:
    folder = tempfile.mkdtemp()
    try:
        return why_not_isolated(folder)
    finally:
        shutil.rmtree(folder)


def ended_well(run: LocalRun, limit_s: float = JOB_S) -> Result:
    """Waits for the end; the job succeeded and nothing of it is left."""
    result = run.wait(limit_s)
    assert result.code == 0, result.err[-5000:]
    run.check_nothing_left()
    return result


def finals(out: str) -> dict[int, dict[str, str]]:
    """What each rank said in its line `final name=value ...`, by rank."""
    found = re.findall(r"^\[algo-\d+:(\d+)\] final (.*)$", out, re.MULTILINE)
    return {
        int(rank): dict(word.split("=", 1) for word in line.split() if "=" in word)
        for rank, line in found
    }


def kill_one(run: LocalRun, argument: str, variable: str = "") -> None:
    """SIGKILL to one process of the run whose command line ends with `argument`.

    `variable`: what stands in its environment, as NAME=VALUE.
    """

    def matching() -> list[int]:
        return [
            pid
            for pid in run.alive(argument)
            if _words(pid, "cmdline")[-1].endswith(argument)
            and (not variable or variable in _words(pid, "environ"))
        ]

    wait_until(lambda: bool(matching()), STEPS_S, lambda: run.err[-5000:])
    os.kill(max(matching()), signal.SIGKILL)


def _words(pid: int, file: str) -> list[str]:
    try:
        content = Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return [""]
    return content.decode(errors="replace").rstrip("\0").split("\0")
