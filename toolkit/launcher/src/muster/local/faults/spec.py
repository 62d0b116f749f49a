"""The grammar of `--fault`: KIND[:TARGET][@WHEN][+SECONDS] as one frozen value. Pure."""

from __future__ import annotations

import re

from muster.arguments import UsageError
from muster.types.names import TYPED, did_you_mean
from muster.types.values import NamedTuple

KINDS = ("kill", "freeze", "slow", "cut", "disk", "stop", "random")
KILL, FREEZE, SLOW, CUT, DISK, STOP, RANDOM = KINDS
LASTING = (FREEZE, SLOW, CUT, DISK)
_PARTS = re.compile(r"([^:@+]*)(?::([^@+]*))?(?:@([^+]*))?(?:\+(.*))?", re.DOTALL)
_SECONDS = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s)")
_WHOLE = re.compile(r"[0-9]{1,9}")
EXAMPLES = {
    KILL: "kill:rank=1@10s or kill:host=algo-2@step=40",
    FREEZE: "freeze:rank=1@5s+5s or freeze:host=algo-2@5s",
    SLOW: "slow:rank=3:50% or slow:rank=3:50%@5s+10s",
    CUT: "cut:algo-1/algo-2@5s+5s",
    DISK: "disk:algo-2@10s or disk:algo-2@step=40+5s",
    STOP: "stop@30s",
    RANDOM: "random:seed=7",
}


class Fault(NamedTuple):
    """One fault.

    `spec`: what repeats it. `rank` or one of `hosts`: whom it hits; a cut has two hosts, a stop
    none. `percent`: of its speed that is left to what is slow. It comes `at_s` seconds after all
    ranks run, or at `at_step`, the first step of at least that number that a rank reports.
    `lasts_s` None: to the end. `seed` of a random one that is still to be chosen, -1 for any.
    """

    spec: str
    kind: str
    rank: int | None = None
    hosts: tuple[str, ...] = ()
    percent: int = 100
    at_s: float = 0.0
    at_step: int | None = None
    lasts_s: float | None = None
    seed: int | None = None

    @property
    def when(self) -> str:
        """As the command line has it."""
        return f"{self.at_s:g}s" if self.at_step is None else f"step={self.at_step}"

    @property
    def disks(self) -> tuple[str, ...]:
        """Hosts that need a disk of their own for it."""
        return self.hosts if self.kind == DISK else ()


def parse_fault(text: str) -> Fault:
    """The fault of one `--fault`. Raises UsageError with what may stand there."""
    match = _PARTS.fullmatch(text)
    kind, target, when, lasts = match.groups() if match else (text, None, None, None)
    if kind not in EXAMPLES:
        guess = did_you_mean(kind, KINDS, likeness=TYPED)
        raise UsageError(
            f"--fault {text!r}: no fault is called {kind!r}{guess}",
            f"faults are {', '.join(KINDS)}; for example --fault {EXAMPLES[KILL]}",
        )
    fault = _aimed(Fault(text, kind), target)
    if when is not None:
        fault = _timed(fault, when)
    if lasts is not None:
        if kind not in LASTING:
            raise _wrong(fault, f"{kind} does not last: +{lasts} cannot follow")
        fault = fault._replace(lasts_s=_seconds(fault, lasts))
    return fault


def _wrong(fault: Fault, why: str) -> UsageError:
    return UsageError(f"--fault {fault.spec!r}: {why}", f"for example {EXAMPLES[fault.kind]}")


def _aimed(fault: Fault, target: str | None) -> Fault:
    """With its target, in the words of its kind."""
    kind = fault.kind
    if kind == STOP:
        if target is not None:
            raise _wrong(fault, "stop is for the whole job, as the platform stops one")
        return fault
    if kind == RANDOM:
        name, equals, number = (target or "seed=").partition("=")
        if name != "seed" or not equals or (target and not _WHOLE.fullmatch(number)):
            raise _wrong(fault, f"expected random or random:seed=NUMBER, got {target!r}")
        return fault._replace(seed=int(number) if number else -1)
    if target is None:
        raise _wrong(fault, "whom it hits is missing")
    if kind == CUT:
        names = tuple(target.split("/"))
        if len(names) != 2 or names[0] == names[1]:
            raise _wrong(fault, f"expected two hosts, HOST/HOST, got {target!r}")
        return fault._replace(hosts=names)
    if kind == DISK:
        name = target.removeprefix("host=")
        if not name or "=" in name:
            raise _wrong(fault, f"a disk is a host's: expected its name, got {target!r}")
        return fault._replace(hosts=(name,))
    if kind == SLOW:
        target, _, share = target.rpartition(":")
        number = share.removesuffix("%")
        if share == number or not _WHOLE.fullmatch(number) or not 1 <= int(number) <= 99:
            raise _wrong(fault, f"expected the speed that is left, 1% to 99%, got {share!r}")
        fault = fault._replace(percent=int(number))
    what, _, name = target.partition("=")
    if what == "rank" and _WHOLE.fullmatch(name):
        return fault._replace(rank=int(name))
    if what == "host" and name:
        return fault._replace(hosts=(name,))
    guess = "" if what in ("rank", "host") else did_you_mean(what, ("rank", "host"), likeness=TYPED)
    raise _wrong(fault, f"expected rank=NUMBER or host=NAME, got {target!r}{guess}")


def _timed(fault: Fault, when: str) -> Fault:
    if fault.kind == RANDOM:
        raise _wrong(fault, "its moment is chosen too: nothing may follow @")
    name, equals, number = when.partition("=")
    if not equals:
        return fault._replace(at_s=_seconds(fault, when))
    if name != "step" or not _WHOLE.fullmatch(number):
        guess = "" if name == "step" else did_you_mean(name, ("step",), likeness=TYPED)
        raise _wrong(fault, f"expected @SECONDSs or @step=NUMBER, got @{when}{guess}")
    return fault._replace(at_step=int(number))


def _seconds(fault: Fault, text: str) -> float:
    match = _SECONDS.fullmatch(text)
    if not match:
        raise _wrong(fault, f"expected seconds such as 10s, 1.5s or 200ms, got {text!r}")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)
