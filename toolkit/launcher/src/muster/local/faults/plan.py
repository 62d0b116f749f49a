"""Faults against what the job will be: who there is, and what its hosts can suffer. Pure.

A random fault is chosen here, so that the same seed gives the same fault to the same job.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from muster.arguments import UsageError
from muster.local.faults.spec import (
    CUT,
    DISK,
    FREEZE,
    KILL,
    RANDOM,
    SLOW,
    STOP,
    Fault,
    parse_fault,
)
from muster.types.names import TYPED, did_you_mean, listed

_CAN = {
    "process": (KILL, FREEZE, SLOW, STOP),
    "netns": (KILL, FREEZE, SLOW, CUT, DISK, STOP),
    "docker": (KILL, FREEZE, SLOW, CUT, STOP),
}
_WHY_NOT = {
    ("process", CUT): "hosts that are plain processes have no network of their own to cut",
    ("process", DISK): "they share this machine's disk, and filling it would fill yours",
    ("docker", DISK): "the engine's disk is this machine's, and filling it would fill yours",
}
LATEST_S, SHORTEST_S, LONGEST_S = 10.0, 1.0, 8.0  # of random faults


def read_faults(texts: Sequence[str], hosts: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of a command line, for hosts of these names. Raises UsageError."""
    faults = tuple(map(parse_fault, texts))
    for fault in faults:
        for name in fault.hosts:
            if name not in hosts:
                guess = did_you_mean(name, hosts, likeness=TYPED)
                raise UsageError(
                    f"--fault {fault.spec}: the job has no host {name!r}{guess}",
                    f"its hosts are {listed(hosts)}",
                )
    return faults


def settle(
    faults: Sequence[Fault], hosts: Sequence[str], ranks: int, exact: bool, isolation: str
) -> tuple[Fault, ...]:
    """The faults as they will be done, each possible and none random any more.

    `ranks`: how many the job has, at least so many if not `exact`. `isolation`: the backend's name.
    Raises UsageError.
    """
    settled = []
    for given in faults:
        fault = _choose(given, hosts, ranks, isolation) if given.kind == RANDOM else given
        if fault.kind not in _CAN[isolation]:
            why = _WHY_NOT[isolation, fault.kind]
            able = [name for name, kinds in _CAN.items() if fault.kind in kinds]
            raise UsageError(
                f"--fault {fault.spec}: not with --isolation {isolation}: {why}",
                f"use --isolation {' or '.join(able)}; here faults are "
                f"{', '.join(_CAN[isolation])}",
            )
        if fault.kind == CUT and isolation == "docker" and len(hosts) != 2:
            raise UsageError(
                f"--fault {fault.spec}: an engine takes a container off its whole network, so it "
                f"cannot part two of {len(hosts)} hosts",
                "use --isolation netns, or --hosts 2",
            )
        if exact and fault.rank is not None and fault.rank >= ranks:
            raise UsageError(
                f"--fault {fault.spec}: the job has no rank {fault.rank}",
                f"its ranks are 0 to {ranks - 1}" if ranks > 1 else "its only rank is 0",
            )
        settled.append(fault)
    return tuple(settled)


def _choose(fault: Fault, hosts: Sequence[str], ranks: int, isolation: str) -> Fault:
    """One fault of those that this job can suffer; only `random()` draws, which is the same in
    every version of Python."""
    draw = Random(fault.seed if fault.seed != -1 else None).random
    at_s = round(1 + draw() * (LATEST_S - 1), 1)
    lasts_s = round(SHORTEST_S + draw() * (LONGEST_S - SHORTEST_S), 1)
    rank, host = f"rank={int(draw() * ranks)}", f"host={hosts[int(draw() * len(hosts))]}"
    percent = 10 + int(draw() * 80)
    when, period = f"@{at_s:g}s", f"@{at_s:g}s+{lasts_s:g}s"
    found = [f"{KILL}:{rank}{when}", f"{FREEZE}:{rank}{period}", f"{STOP}{when}"]
    found.append(f"{SLOW}:{rank}:{percent}%{period}")
    if len(hosts) > 1:
        found += [f"{KILL}:{host}{when}", f"{FREEZE}:{host}{period}"]
        if isolation == "netns" or (isolation == "docker" and len(hosts) == 2):
            found.append(f"{CUT}:{hosts[0]}/{hosts[1 + int(draw() * (len(hosts) - 1))]}{period}")
    return parse_fault(found[int(draw() * len(found))])
