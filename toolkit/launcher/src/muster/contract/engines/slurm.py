"""A step of Slurm with one task on each node, as srun starts it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.contract.engines.values import MAX_COUNT, Files, Values, each_once
from muster.types.engine import Engine
from muster.types.errors import ConfigError
from muster.types.plain import short

STOP_S = 25.0  # KillWait is 30 s
_PART = re.compile(r"([^,\[\]]+|\[[0-9,-]+\])")


def read(environ: Mapping[str, str], files: Files) -> Engine | None:
    """The node's place in its step. Raises ConfigError with several tasks on a node."""
    if "SLURM_NODEID" not in environ or not {"SLURM_STEP_ID", "SLURM_STEPID"} & environ.keys():
        return None
    values = Values(environ)
    text = values.text("hosts", "SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
    where = values.origins.get("hosts", "SLURM_STEP_NODELIST").removeprefix("variable ")
    names = each_once(expanded(text, where), where)
    fix = "start it by srun"
    count = values.needed(
        "count", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", least=1, fix=fix
    )
    if names and len(names) != count:
        what = f"{len(names)} hosts, and {values.origins['count']} says {count}"
        raise ConfigError.of(where, what, fix)
    tasks = values.number("tasks", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if tasks is not None and tasks != count:
        raise ConfigError.of(
            values.origins["tasks"].removeprefix("variable "),
            f"{tasks} tasks on {count} nodes: muster starts the ranks of a node itself",
            "srun --ntasks-per-node=1, and --processes-per-host for the ranks",
        )
    restarts = values.number("attempt", "SLURM_RESTART_COUNT") or 0
    deadline = values.number("deadline", "SLURM_JOB_END_TIME")
    job = values.text("job", "SLURM_JOB_ID", "SLURM_JOBID")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID", "")
    return values.engine(
        "slurm",
        values.needed("index", "SLURM_NODEID", fix=fix),
        count,
        names=names,
        slots=values.number("slots", "SLURM_GPUS_ON_NODE") or None,
        job=f"slurm-{job}-{step}" if job else "",
        attempt=restarts + 1,
        deadline_s=None if deadline is None else float(deadline),
        stop_s=STOP_S,
        signals_all=True,
        logs=("slurm-*.out", "slurm-*.err"),
    )


def expanded(text: str, where: str = "SLURM_STEP_NODELIST") -> tuple[str, ...]:
    """The names of a compressed list: `n[1-3,05],gpu-2` has five. Raises ConfigError."""
    hosts: list[str] = []
    for entry in _entries(text):
        parts = _PART.findall(entry)
        if "".join(parts) != entry:
            raise ConfigError.of(where, f"{short(entry)} is no list of hosts of Slurm")
        names = [""]
        for part in parts:
            ends = _numbers(part, where) if part.startswith("[") else [part]
            if len(names) * len(ends) > MAX_COUNT:
                raise ConfigError.of(where, f"{short(entry)} names more than {MAX_COUNT:,} hosts")
            names = [name + end for name in names for end in ends]
        hosts += names
    return tuple(hosts)


def _entries(text: str) -> list[str]:
    """The parts between commas outside brackets."""
    return [entry for entry in re.split(r",(?![^\[]*\])", text.strip()) if entry]


def _numbers(brackets: str, where: str) -> list[str]:
    found: list[str] = []
    for item in brackets[1:-1].split(","):
        first, dash, last = item.partition("-")
        last = last if dash else first
        good = first.isdecimal() and last.isdecimal() and len(first + last) < 30
        if not good or not 0 <= int(last) - int(first) < MAX_COUNT:
            raise ConfigError.of(where, f"{short(brackets)} is no range of numbers")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return found
