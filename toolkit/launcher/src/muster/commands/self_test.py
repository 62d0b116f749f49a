"""`muster doctor --self-test`: a small real job through every distribution that this machine has.

Each rank says its number, the size of the world and a sum over all ranks; a job that ends well with
a wrong world or a wrong sum is the failure that nobody sees otherwise.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from muster.commands.doctor_finding import FAIL, Finding, fail, fine
from muster.commands.doctor_mpi import mpi4py
from muster.local.record.summary import TIMEOUT_EXIT_CODE
from muster.types.names import counted
from muster.types.values import NamedTuple

if TYPE_CHECKING:
    from muster.commands.doctor_facts import Facts
    from muster.local.api.result import Result

HOSTS = 2
JOB_S = 40.0
ALL_S = 85.0
MPIRUN = "mpirun"
_SCRIPT = "self_test_job.py"


class Trial(NamedTuple):
    """One job. `kind`: what its script does. `needs`: the packages, and mpirun, without which it
    cannot run. `apart`: whether hosts that are plain processes would be one host to it."""

    name: str
    distribution: str | Mapping[str, object] | None
    kind: str
    needs: tuple[str, ...] = ()
    apart: bool = False


_TORCH = ("torch",)
_CORE = ("torch", "muster-parallel")
TRIALS = (
    Trial("none", None, "alone"),
    Trial("torch_distributed, gloo", "torch_distributed", "torch:gloo", _TORCH),
    Trial("torch_distributed, muster", "torch_distributed", "torch:muster", _CORE),
    Trial("parameter_server", "parameter_server", "parameter_server", _CORE),
    Trial(
        "multi_worker_mirrored_strategy",
        "multi_worker_mirrored_strategy",
        "tensorflow",
        ("tensorflow",),
    ),
    Trial("mpi, mpirun alone", "mpi", "mpirun", (MPIRUN,), apart=True),
    Trial("mpi, mpi4py", "mpi", "mpi4py", (MPIRUN, "mpi4py"), apart=True),
    Trial("pytorchddp", "pytorchddp", "torch:gloo", (MPIRUN, *_TORCH), apart=True),
    Trial(
        "smdistributed.dataparallel",
        "smdistributed.dataparallel",
        "torch:smddp",
        (MPIRUN, *_CORE, "muster-compat"),
        apart=True,
    ),
    Trial(
        "smdistributed.modelparallel",
        {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"ddp": True}}},
            "torch_distributed": {"enabled": True},
        },
        "torch:modelparallel",
        (*_CORE, "muster-compat"),
    ),
)


def self_test(facts: Facts, trials: Sequence[Trial] = TRIALS) -> list[Finding]:
    """A finding for each trial, in their order; under 90 s for all."""
    until = time.monotonic() + ALL_S
    with tempfile.TemporaryDirectory(prefix="muster-self-test-") as folder:
        script = _write_script(folder)
        return [
            _tried(trial, facts, script, until)._replace(name=f"job: {trial.name}")
            for trial in trials
        ]


def _write_script(folder: str) -> str:
    """The script alone in a folder, since a job gets all that lies beside it."""
    source = os.path.join(folder, "source")
    os.mkdir(source)
    path = os.path.join(source, _SCRIPT)
    with (
        open(os.path.join(os.path.dirname(__file__), _SCRIPT), encoding="utf-8") as ours,
        open(path, "w", encoding="utf-8") as file,
    ):
        file.write(ours.read())
    return path


def _tried(trial: Trial, facts: Facts, script: str, until: float) -> Finding:
    """One trial: skipped with the reason, or judged by its end and what its ranks printed."""
    if missing := [name for name in trial.needs if not _has(name, facts)]:
        return fine(f"skipped: {' and '.join(missing)} not installed")
    limit_s = min(JOB_S, until - time.monotonic())
    no_time = fine(f"skipped: all jobs have {ALL_S:g} s, and those before it took their time")
    if limit_s < 1:
        return no_time
    from muster.local.api import jobs

    together = trial.apart and bool(facts.isolation)
    hosts = 1 if together else HOSTS
    began = time.monotonic()
    output = os.path.join(os.path.dirname(os.path.dirname(script)), trial.name.replace(" ", "-"))
    try:
        result = jobs.run(
            script,
            hosts=hosts,
            processes=HOSTS if together else None,
            distribution=trial.distribution,
            isolation="netns" if trial.apart and not together else "process",
            env={"SELF_TEST": trial.kind},
            timeout_s=limit_s,
            output=output,
            oversubscribe=True,
            quiet=True,
        )
    except ValueError as error:
        headline, _, fix = str(error).partition("\n")
        return _failed(trial, headline, fix.strip())
    if result.exit_code == TIMEOUT_EXIT_CODE and limit_s < JOB_S:
        return no_time
    judged = judge(trial, result, facts)
    if judged.level == FAIL:
        return judged
    where = f"{HOSTS} ranks on one host ({facts.isolation})" if together else f"{HOSTS} hosts"
    return fine(f"{judged.found} on {where} in {time.monotonic() - began:.1f} s")


def _has(name: str, facts: Facts) -> bool:
    if name == MPIRUN:
        return bool(facts.mpi.mpirun)
    from muster.commands.doctor_facts import find_packages

    names = [name, f"{name}-cpu"] if name == "tensorflow" else [name]
    return any(find_packages(names).values())


def judge(trial: Trial, result: Result, facts: Facts) -> Finding:
    """Whether the job ended well, and every rank saw the world that was asked for."""
    if failure := result.failure:
        last = failure.text.strip().splitlines()[-1:] if failure.rank is None else []
        return _failed(trial, " ".join([failure.headline, *last]), failure.fix)
    said = [_document(rank.stdout) for rank in result.ranks]
    numbers = sorted(str(one.get("rank")) for one in said)
    worlds = {one.get("world") for one in said}
    if worlds != {HOSTS} or numbers != [str(number) for number in range(HOSTS)]:
        each = ", ".join(f"{one.get('rank')} of {one.get('world')}" for one in said) or "no ranks"
        return _failed(trial, f"a wrong world: {each} in place of 0 and 1 of {HOSTS}", _fix(facts))
    expected = HOSTS * (HOSTS + 1) / 2
    sums = [one.get("sum") for one in said]
    if any(found not in (expected, None) for found in sums):
        return _failed(trial, f"a wrong sum: {sums} in place of {expected:g}", _fix(facts))
    return fine(f"{counted(HOSTS, 'rank')}" + (f", sum {expected:g}" if sums[0] else ""))


def _document(text: str) -> dict[str, object]:
    """The line of the script; {} where there is none."""
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            return document
    return {}


def _fix(facts: Facts) -> str:
    return mpi4py(facts.mpi, facts.executable).fix


def _failed(trial: Trial, found: str, fix: str) -> Finding:
    again = f"muster local SCRIPT --hosts {HOSTS} --distribution {trial.name.partition(',')[0]}"
    return fail(found, f"every job with {trial.name}", fix or f"see all that it says: {again}")
