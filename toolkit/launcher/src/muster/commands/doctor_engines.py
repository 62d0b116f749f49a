"""`muster doctor --engine`: what an engine lacks that `muster submit` and its jobs need.

Each check asks the engine's own client, so it sees what the person at this desk may see.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from muster.arguments import UsageError
from muster.commands.doctor_finding import Finding, fail, fine, warn
from muster.contract.engines import slurm
from muster.submit import client
from muster.types.files import find_program
from muster.types.names import TYPED, did_you_mean, listed

RESERVE_S = 5.0  # from the end of a stop to SIGKILL
OLDEST_KUBERNETES = (1, 24)  # Indexed Jobs without a feature gate
SUBMITS = "every `muster submit`"
ELSEWHERE = "ask the people who run the cluster"


def checked(engine: str) -> list[Finding]:
    """The findings about an engine. Raises UsageError for one that is unknown."""
    checks = {"slurm": _slurm, "kubernetes": _kubernetes, "batch": _batch, "hosts": _hosts}
    if engine not in checks:
        guess = did_you_mean(engine, checks, likeness=TYPED)
        raise UsageError(f"--engine {engine}: no such engine{guess}", f"known: {listed(checks)}")
    return [finding._replace(name=name) for name, finding in checks[engine]()]


def _slurm() -> Iterator[tuple[str, Finding]]:
    clients = _programs("sbatch", "squeue", "scontrol", "scancel", "srun")
    yield "commands", clients
    if clients.level == "OK":
        code, ping = _said(["scontrol", "ping"])
        config, nodes = _said(["scontrol", "show", "config"]), _said(["sinfo", "-h", "-o", "%T %D"])
        yield from slurm_findings(code, ping, config[1], nodes[1])


def slurm_findings(code: int, ping: str, config: str, nodes: str) -> Iterator[tuple[str, Finding]]:
    """Of what the controller says. Pure."""
    if code or "UP" not in ping:
        found = client.in_a_sentence(ping)
        yield "controller", fail(found, SUBMITS, "scontrol ping")
        return
    said = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", config, re.M))
    yield "controller", fine(f"Slurm {said.get('SLURM_VERSION', 'of an unknown version')}")
    rows = [row.split() for row in nodes.splitlines()]
    able = sum(int(count) for state, count in rows if state in ("idle", "mixed", "allocated"))
    every = sum(int(count) for _, count in rows)
    text = f"{able} of {every} nodes can run jobs"
    yield "nodes", fine(text) if able else fail(text, "every job waits", "sinfo -R")
    wait = said.get("KillWait", "").split()[:1]
    if wait and wait[0].isdecimal():
        text, needs = f"{wait[0]} s from SIGTERM to SIGKILL", slurm.STOP_S + RESERVE_S
        if int(wait[0]) < needs:
            breaks = (
                f"what ranks save when a job is cancelled: muster gives them {slurm.STOP_S:g} s"
            )
            yield (
                "KillWait",
                warn(text, breaks, f"muster submit --grace {max(1, int(wait[0]) - 5)}"),
            )
        else:
            yield "KillWait", fine(text)


def _kubernetes() -> Iterator[tuple[str, Finding]]:
    clients = _programs("kubectl")
    yield "commands", clients
    if clients.level != "OK":
        return
    code, said = _said(["kubectl", "version", "--output=json", "--request-timeout=10s"])
    version = re.search(r'"serverVersion".*?"major": "(\d+)".*?"minor": "(\d+)', said, re.S)
    if code or version is None:
        fix = "kubectl config get-contexts"
        yield "cluster", fail(client.in_a_sentence(said), SUBMITS, fix)
        return
    found = (int(version[1]), int(version[2]))
    text = f"Kubernetes {found[0]}.{found[1]}"
    old = "jobs whose pods have numbers: they came in 1.24"
    yield "cluster", fine(text) if found >= OLDEST_KUBERNETES else fail(text, old, ELSEWHERE)
    for what in ("jobs.batch", "services", "secrets", "configmaps"):
        code, said = _said(["kubectl", "auth", "can-i", "create", what, "--request-timeout=10s"])
        allowed = not code and said.startswith("yes")
        fix = f"kubectl auth can-i create {what}; another --namespace by kubectl config"
        yield what, fine("may be made") if allowed else fail("may not be made", SUBMITS, fix)


def _batch() -> Iterator[tuple[str, Finding]]:
    from importlib.util import find_spec

    if find_spec("boto3") is None:
        yield "boto3", fail("not installed", SUBMITS, "pip install boto3")
        return
    yield "boto3", fine("installed")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    what = "jobs, unless ~/.aws/config names a region"
    fix = "export AWS_DEFAULT_REGION=eu-west-1"
    yield "region", fine(region) if region else warn("not set", what, fix)


def _hosts() -> Iterator[tuple[str, Finding]]:
    yield "commands", _programs("ssh")


def _programs(*names: str) -> Finding:
    folders = os.environ.get("PATH", "").split(os.pathsep)
    found: Mapping[str, str] = {name: find_program(folders, name) for name in names}
    if lacking := [name for name, path in found.items() if not path]:
        fix = "go to a machine that has them"
        return fail(f"there is no {listed(lacking)} here", SUBMITS, fix)
    return fine(", ".join(sorted(set(map(os.path.dirname, found.values())))))


def _said(argv: Sequence[str]) -> tuple[int, str]:
    """(exit code, all that it said); 1 and why where it cannot be asked."""
    try:
        code, out, err = client.outcome(argv, limit_s=20.0)
    except UsageError as error:
        return 1, error.message
    return code, (err or out) if code else (out or err)
