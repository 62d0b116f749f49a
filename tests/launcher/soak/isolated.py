"""One run of the soak on hosts with networks of their own: `muster local --isolation netns`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from muster.local.hosts import why_not_isolated
from tests.launcher.soak import job_scripts
from tests.launcher.soak.run import SETTINGS, bound_s, expected_codes
from tests.launcher.soak.scenario import SHORT_S, Fault, Scenario
from tests.launcher.soak.verdict import Verdict, not_run
from tests.launcher.support.local.local_runs import LocalRun, runs
from tests.launcher.support.local.namespaces import Host

EARLY_S = 0.5
STARTS_S = 5.0  # `muster local` itself
LOOKS_EVERY_S = 0.1


def run(one: Scenario, folder: Path) -> Verdict:
    """Runs the scenario; without the rights to make and break networks it runs nothing."""
    began_s = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reason = why_not(folder)
    if reason:
        shutil.rmtree(folder, ignore_errors=True)
        return not_run(one.seed, reason)
    (folder / "train.py").write_text(job_scripts.source(one))
    argv = ["train.py", "--hosts", str(one.hosts), "--isolation", "netns"]
    landed, wrong, story, codes = False, [], "", (-1,)
    try:
        with runs() as start:
            job = start(folder, argv, environ=SETTINGS)
            job.expect(apart=_apart(one))
            try:
                landed = _do(one, job)
                result = job.wait(bound_s(one) + STARTS_S)
                codes = (result.code,)
                wrong = _check(one, job, landed)
            finally:
                story = job.err[-8000:]
    except Exception as error:  # also what `runs` found alive
        wrong = [*wrong, f"{type(error).__name__}: {error}"]
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    took_s = time.monotonic() - began_s
    kinds = (one.faults[0].kind,) if landed else ()
    return Verdict(one.seed, took_s, codes, kinds, tuple(wrong), story if wrong else "")


def why_not(folder: Path) -> str:
    """Why this machine lets us make and break no networks; "" when it does."""
    if os.getuid() != 0:
        return "only root may reach into the hosts' networks"
    missing = [name for name in ("nsenter", "iptables") if shutil.which(name) is None]
    if missing:
        return f"not installed here: {', '.join(missing)}"
    return why_not_isolated(str(folder)) or ""


def _do(one: Scenario, job: LocalRun) -> bool:
    """Does the one fault of the scenario, once the host is there; whether it landed."""
    (fault,) = one.faults
    if fault.kind == "none":
        return False
    early = fault.at_s < EARLY_S  # before the ranks run
    try:
        if not early:
            job.wait_ready(one.hosts)
        host = _host(job, one.names[fault.host])
        if host is None:
            return False
        time.sleep(fault.at_s if early else fault.at_s - EARLY_S)
        return _break(fault, host)
    except (AssertionError, OSError):
        return False  # it had ended


def _host(job: LocalRun, name: str) -> Host | None:
    until = time.monotonic() + STARTS_S
    while time.monotonic() < until and job.process.poll() is None:
        try:
            return Host(job, name)
        except AssertionError:
            time.sleep(0.01)
    return None


def _break(fault: Fault, host: Host) -> bool:
    """Whether it hit: a host that lives, or packets."""
    if fault.kind == "kill":
        if host.pid not in host.processes():
            return False
        os.kill(host.pid, signal.SIGKILL)
        return True
    if fault.kind == "freeze":
        hit = False
        # it may be ended while it stands still
        with contextlib.suppress(AssertionError, OSError), host.frozen():
            hit = True
            time.sleep(fault.lasts_s)
        return hit
    return _cut_off(host, fault.lasts_s)


def _cut_off(host: Host, lasts_s: float) -> bool:
    """Drops what the host hears; whether there was a packet to drop. What it says dies with that:
    a drop in OUTPUT the kernel would report to TCP, which no broken network does.

    Looks from the first moment on: a host that is cut off may end before the rules go, and its
    counters with it.
    """
    until = time.monotonic() + lasts_s
    with host.rule("INPUT", "!", "-i", "lo", "-p", "tcp", "-j", "DROP") as rule:
        while not rule.hits():
            if time.monotonic() > until:
                return False
            time.sleep(LOOKS_EVERY_S)
        time.sleep(max(0.0, until - time.monotonic()))
    return True


def _check(one: Scenario, job: LocalRun, landed: bool) -> list[str]:
    """What did not hold beside what `runs` checks after every job."""
    code = job.process.returncode
    wrong = []
    done = [any((_base(job, n) / "model").glob(job_scripts.DONE + "*")) for n in one.names]
    if code == 0 and not all(done):
        wrong.append("exit code 0, but not every rank ended well")
    if not landed and code not in expected_codes(one):
        wrong.append(f"exit code {code}, but nothing happened: {sorted(expected_codes(one))}")
    return wrong


def _apart(one: Scenario) -> frozenset[str]:
    """The hosts that may end otherwise than the others: cut off, frozen or killed."""
    (fault,) = one.faults
    long = fault.kind in ("freeze", "partition") and fault.lasts_s > SHORT_S
    if not long and fault.kind != "kill":
        return frozenset()
    return frozenset(one.names if fault.host == 0 else (one.names[fault.host],))


def _base(job: LocalRun, name: str) -> Path:
    return job.folder / name / "opt" / "ml"
