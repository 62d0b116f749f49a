"""One run of the soak on loopback addresses: a job, its faults, and what did not hold."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.types.deadlines import Deadlines, parse_deadlines
from tests.launcher.soak import job_scripts
from tests.launcher.soak.faults import Injector
from tests.launcher.soak.scenario import EVERYONE, PIPELINES, SHORT_S, Fault, Scenario
from tests.launcher.soak.verdict import NotRunError, Verdict, not_run
from tests.launcher.support.cluster import FAST, Cluster
from tests.launcher.support.invariants import Left

SETTINGS = {
    **FAST,
    "MUSTER_LOST_AFTER_S": "5",  # no false loss on a machine that has much else to do
    "MUSTER_RECONNECT_S": "2",  # nor one for a host that only comes back slowly
    "MUSTER_JOIN_S": "5",
    "MUSTER_START_S": "20",
    "MUSTER_DRAIN_S": "1",
    "MUSTER_FINISH_S": "3",
}
TORCH_START_S = 60.0
IMPORTS_TORCH_S = 25.0
LOADED_S = 8.0  # what other work on the machine may cost
TORCHRUN = {"sagemaker_torch_distributed_enabled": "true"}


def run(one: Scenario, folder: Path) -> Verdict:
    """Runs the scenario in a folder of its own, which stays when something did not hold."""
    began_s = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    cluster = _make(one, folder)
    try:
        with _small_disks(one, cluster):
            injector = _start(one, cluster)
            wrong = _watch(one, cluster, injector)
            codes = tuple(
                cluster.processes[n].poll() if n in cluster.processes else None for n in one.names
            )
            story = cluster.story("") if wrong else ""
    except NotRunError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return not_run(one.seed, str(error))
    finally:
        cluster.kill()
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    took_s = time.monotonic() - began_s
    landed = _landed(one, cluster, injector)
    return Verdict(one.seed, took_s, codes, landed, tuple(wrong), story)


def bound_s(one: Scenario) -> float:
    """The latest end of a host: all that must happen, one after the other, each at its limit."""
    limits = deadlines(one)
    last_s = max([0.0, *(f.at_s + f.lasts_s for f in one.faults)])
    work_s = one.works_s + 5 + (IMPORTS_TORCH_S if one.torchrun else 0)
    failing_s = limits.failfast_grace_s + limits.drain_s + 1 + limits.finish_s
    lost_s = limits.lost_after_s + limits.reconnect_s + failing_s
    told_s = (
        limits.refusal_notify_s if any(f.kind in ("absent", "kill") for f in one.faults) else 0.0
    )
    told_s = told_s if one.script in ("bad input", "no program") else 0.0
    ending_s = max(lost_s, limits.stop_total_s) + limits.leave_s
    return last_s + limits.join_s + told_s + work_s + ending_s + LOADED_S


def deadlines(one: Scenario) -> Deadlines:
    """The deadlines that the scenario's hosts are given."""
    return parse_deadlines(_settings(one), local_mode=False)[0]


def _settings(one: Scenario) -> dict[str, str]:
    return SETTINGS | ({"MUSTER_START_S": f"{TORCH_START_S:g}"} if one.torchrun else {})


def _make(one: Scenario, folder: Path) -> Cluster:
    """The hosts' files, with what is bad about one of them."""
    options = TORCHRUN if one.torchrun else {}
    if one.script in PIPELINES:
        parameters = {"partitions": one.hosts, "microbatches": 2}
        options = {**options, "mp_parameters": json.dumps(parameters)}
    cluster = Cluster(
        folder,
        job_scripts.source(one),
        one.hosts,
        options,
        job_scripts.program(one),
        _settings(one),
    )
    base = cluster.base(one.names[one.culprit])
    if one.script == "bad input":
        (base / "input" / "config" / "hyperparameters.json").write_text('{"sagemaker_program": ')
    if one.script == "no program":
        (base / "code" / "train.py").rename(base / "code" / "trian.py")
    if one.script == "bad archive":
        for name in one.names:
            _send_archive(cluster, name, name == one.names[one.culprit])
    if one.script in ("slow install", "bad install"):
        _stand_in_for_pip(one, cluster)
    return cluster


def _send_archive(cluster: Cluster, name: str, bad: bool) -> None:
    from tests.launcher.support.archives import code_archive

    base = cluster.base(name)
    text = (base / "code" / "train.py").read_text()
    (base / "code" / "train.py").unlink()
    folder = base / "input" / "data" / "code"
    folder.mkdir(parents=True)
    archive = code_archive(folder / "sourcedir.tar.gz", train_py=text)
    if bad:
        archive.write_bytes(archive.read_bytes()[:-40])


def _stand_in_for_pip(one: Scenario, cluster: Cluster) -> None:
    for name in one.names:
        bad = one.script == "bad install" and name == one.names[one.culprit]
        tools = cluster.folder / name / "opt" / "tools" / "pip"
        tools.mkdir(parents=True)
        (tools / "__init__.py").touch()
        (tools / "__main__.py").write_text(job_scripts.BAD_PIP if bad else job_scripts.SLOW_PIP)
        (cluster.base(name) / "code" / "requirements.txt").write_text("demo\n")


@contextmanager
def _small_disks(one: Scenario, cluster: Cluster) -> Iterator[None]:
    """A tmpfs of 64 KiB on the output folder of every host, for scenarios that ask for it.

    Raises:
        NotRunError: it cannot be had; a script that fills a disk would then fill this machine's.
    """
    outputs = [cluster.base(name) / "output" for name in one.names] if one.small_disk else []
    mounted: list[Path] = []
    try:
        for output in outputs:
            output.mkdir()
            words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(output)]
            if os.getuid() != 0:
                raise NotRunError("only root may mount a small disk")
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NotRunError(f"no small disk: {done.stderr.strip()}")
            mounted.append(output)
        yield
    finally:
        for output in mounted:
            subprocess.run(["umount", "-l", str(output)], check=False)


def _start(one: Scenario, cluster: Cluster) -> Injector:
    late = {one.names[f.host]: f.lasts_s for f in one.faults if f.kind == "late"}
    absent = {one.names[f.host] for f in one.faults if f.kind == "absent"}
    began_s = time.monotonic()
    due = sorted((late.get(name, 0.0), name) for name in one.names if name not in absent)
    injector = Injector(cluster, one.faults, began_s)
    for at_s, name in due:
        if at_s and not injector.started:
            injector.start()
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        tools = cluster.folder / name / "opt" / "tools"
        cluster.start(name, environ={"PYTHONPATH": str(tools)} if tools.exists() else None)
    if not injector.started:
        injector.start()
    return injector


def _landed(one: Scenario, cluster: Cluster, injector: Injector) -> tuple[str, ...]:
    """The kinds of the faults that came about: by the injector, or by how hosts were started."""
    started = {fault for fault in one.faults if one.names[fault.host] in cluster.processes}
    return tuple(
        fault.kind
        for fault in one.faults
        if fault in injector.landed
        or (fault.kind == "late" and fault in started)
        or (fault.kind == "absent" and fault not in started)
    )


def _watch(one: Scenario, cluster: Cluster, injector: Injector) -> list[str]:
    """Waits for the end; what did not hold."""
    limit_s = bound_s(one)
    cluster.expect(limit_s=limit_s, code_writes=("__pycache__", "__pycache__/*"))
    try:
        cluster.wait(limit_s)
    except AssertionError as error:
        injector.finish()
        alive = [n for n, p in cluster.processes.items() if p.poll() is None]
        return [f"not ended {limit_s:.0f} s after the start: {alive}", str(error)[-200:]]
    injector.finish()
    if not cluster.processes:
        return []
    lefts = [cluster.left(name) for name in one.names if name in cluster.processes]
    cluster.expect(apart=frozenset(apart(one, lefts)), no_status_file=False)
    return [*cluster.violations(), *_outcome(one, cluster, lefts, injector)]


def apart(one: Scenario, lefts: list[Left]) -> set[str]:
    """The hosts that need not agree with the others.

    One that stood still for longer than it may; one that was told to stop, or bound to be alone,
    before it was of the job; and all, when that one is the leader.
    """
    frozen = {
        one.names[f.host]
        for f in one.faults
        if f.kind == "freeze" and f.target == "train" and f.lasts_s > SHORT_S
    }
    stops = [f for f in one.faults if f.kind == "stop"]
    alone = set()
    if stops or any(f.kind in ("late", "freeze") for f in one.faults):
        alone = {left.name for left in lefts[1:] if "admitted by" not in left.err}
    if any(f.host in (0, EVERYONE) for f in stops):
        joined = [left for left in lefts[1:] if "admitted by" in left.err]
        alone |= set() if len(joined) == one.hosts - 1 else {one.names[0]}
    result = frozen | alone
    return set(one.names) if one.names[0] in frozen else result


def _outcome(one: Scenario, cluster: Cluster, lefts: list[Left], injector: Injector) -> list[str]:
    """Code 0 only when every rank ended well; a job that nothing happened to ends as it must."""
    done = {
        name: list((cluster.base(name) / "model").glob(job_scripts.DONE + "*"))
        for name in one.names
    }
    wrong = [
        f"{left.name}: exit code 0, but no rank of {name} ended well"
        for left in lefts
        for name in one.names
        if left.code == 0 and not done[name]
    ]
    landed = [f for f in one.faults if f in injector.landed or f.kind == "absent"]
    if not all(harmless(fault) for fault in landed):
        return wrong
    expected = expected_codes(one)
    because = f"but nothing that matters happened to it: {sorted(expected)}"
    return wrong + [
        f"{left.name}: exit code {left.code}, {because}"
        for left in lefts
        if left.code not in expected
    ]


def harmless(fault: Fault) -> bool:
    """Whether a job has to go on as if nothing had happened."""
    if fault.kind == "freeze":
        return fault.target == "rank" or fault.lasts_s <= SHORT_S
    return fault.kind in ("reset", "late")


def expected_codes(one: Scenario) -> set[int]:
    """How the job ends when nothing happens to it."""
    if one.good:
        return {0}
    if one.script == "exits":
        return {1 if one.value in (100, 102, 106, 143) else one.value}
    if one.script == "dies":
        return {1 if one.value == 15 else 128 + one.value}
    ends = {"bad input": 100, "no program": 100, "bad archive": 101, "bad install": 101}
    return {ends.get(one.script, 1)}
