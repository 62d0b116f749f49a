"""What a seed means: a job and what happens to it. Pure: the same seed is the same scenario."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

EVERYONE = -1
HOSTS = (1, 2, 2, 3, 3)
WORKS_S = (0.0, 0.3, 1.0, 2.5)  # how long a script has work
CODES = (1, 2, 3, 42, 99, 100, 102, 106, 127, 143, 200, 255)
SIGNALS = (4, 6, 8, 9, 11, 15)  # of which a rank may die
STOPS = (15, 2, 1)  # SIGTERM, SIGINT, SIGHUP
TORCHRUN_SHARE = 0.08  # importing torch takes seconds
NETNS_SHARE = 0.1
SHORT_S, LONG_S = 0.6, 7.0  # a host that stands still is lost after 5 s

GOOD_SCRIPTS = ("quick", "works", "saves", "ignores", "floods", "daemon", "forks", "shell")
BAD_SCRIPTS = ("exits", "dies", "raises", "all raise", "fills")
# a model in as many stages as there are hosts; the second has one that raises
PIPELINES = ("pipeline", "pipeline raises")
STAGED = ("slow install", "bad install", "bad archive", "bad input", "no program")
TARGETS = ("train", "shim", "rank", "launcher")


class Fault(NamedTuple):
    """`kind`: stop, kill, freeze, reset, partition, absent, late, none. `host`: its place, or
    EVERYONE. `target`: whom a kill or freeze hits. `number`: the signal of a stop.
    `at_s`: after the start of the hosts; `lasts_s`: of a freeze, a partition or a late start."""

    kind: str
    host: int = 0
    target: str = "train"
    number: int = 0
    at_s: float = 0.0
    lasts_s: float = 0.0


class Scenario(NamedTuple):
    """`culprit`: the host on which a bad script, archive, input or installer is bad.

    `value`: the exit code or signal of a script that exits or dies.
    """

    seed: int
    hosts: int
    torchrun: bool
    netns: bool
    script: str
    culprit: int
    value: int
    works_s: float
    small_disk: bool
    faults: tuple[Fault, ...]

    @property
    def names(self) -> list[str]:
        return [f"algo-{number + 1}" for number in range(self.hosts)]

    @property
    def good(self) -> bool:
        """Whether nothing is wrong with the job itself."""
        return self.script in (*GOOD_SCRIPTS, "slow install", "pipeline")


def seeds(first: int, runs: int) -> list[int]:
    """The seeds of the scenarios of a soak that is itself begun with a seed."""
    chance = random.Random(first)
    return [chance.randrange(1, 10**6) for _ in range(runs)]


def scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(seed)
    netns = chance.random() < NETNS_SHARE
    hosts = chance.choice((2, 3)) if netns else chance.choice(HOSTS)
    torchrun = not netns and chance.random() < TORCHRUN_SHARE
    script = chance.choice(("works", "saves", "exits") if netns else _scripts(torchrun))
    small_disk = script == "fills" or (not netns and chance.random() < 0.05)
    plain = Scenario(
        seed=seed,
        hosts=hosts,
        torchrun=torchrun,
        netns=netns,
        script=script,
        culprit=chance.randrange(hosts),
        value=chance.choice(SIGNALS if script == "dies" else CODES),
        works_s=chance.choice(WORKS_S),
        small_disk=small_disk,
        faults=(),
    )
    return plain._replace(faults=_faults(plain, chance))


def _scripts(torchrun: bool) -> Sequence[str]:
    if torchrun:
        return ("works", "saves", "exits", "raises", "dies", *PIPELINES)
    return (*GOOD_SCRIPTS, *GOOD_SCRIPTS, *BAD_SCRIPTS, *STAGED)


def _faults(plain: Scenario, chance: random.Random) -> tuple[Fault, ...]:
    if plain.netns:
        return (_network_fault(plain, chance),)
    how_many = chance.choices((0, 1, 2), (0.15, 0.65, 0.2))[0]
    made = [_fault(plain, chance) for _ in range(how_many)]
    return tuple(made) if _go_together(made) else (made[0],)


def _go_together(made: Sequence[Fault]) -> bool:
    """Not two late hosts; nor a `train` and its shim killed: nobody is left to tidy up."""
    kinds = [one.kind for one in made]
    killed = {(one.host, one.target) for one in made if one.kind == "kill"}
    both = any((host, "train") in killed and (host, "shim") in killed for host, _ in killed)
    return kinds.count("absent") + kinds.count("late") <= 1 and not both


def _network_fault(plain: Scenario, chance: random.Random) -> Fault:
    kind = chance.choice(("partition", "partition", "kill", "freeze", "none"))
    lasts_s = chance.choice((SHORT_S, LONG_S))
    return Fault(kind, chance.randrange(plain.hosts), at_s=_moment(chance, 1.5), lasts_s=lasts_s)


def _fault(plain: Scenario, chance: random.Random) -> Fault:
    kinds = ["stop", "stop", "kill", "kill", "freeze", "freeze"]
    if plain.hosts > 1:
        kinds += ["reset", "late", "absent"]
    kind = chance.choice(kinds)
    host = chance.randrange(plain.hosts)
    targets = TARGETS if plain.torchrun else TARGETS[:3]
    target = chance.choice((*targets, "train"))
    at_s = _moment(chance, _lives_s(plain))
    lasts_s = chance.choice((SHORT_S, LONG_S))
    if kind == "stop":
        host = chance.choice((host, EVERYONE))
        return Fault(kind, host, number=chance.choice(STOPS), at_s=at_s)
    if kind == "late":
        return Fault(kind, host, lasts_s=round(chance.uniform(0.2, 2.0), 2))
    if kind == "absent":
        return Fault(kind, host)
    return Fault(kind, host, target, 0, at_s, lasts_s if kind == "freeze" else 0.0)


def _lives_s(plain: Scenario) -> float:
    """About how long the job lives when nothing happens to it: a fault is to find it alive."""
    if plain.torchrun:
        return plain.works_s + (5.0 if plain.script in PIPELINES else 4.0)
    if plain.script in STAGED:
        return plain.works_s + 1.5 if plain.script == "slow install" else 0.6
    return plain.works_s + (3.5 if plain.script == "ignores" else 0.6)


def _moment(chance: random.Random, most_s: float) -> float:
    """Often early, when much happens in a short time."""
    early: float = chance.random() ** 1.5
    return round(most_s * early, 3)


def told(one: Scenario) -> str:
    """The scenario in a line."""
    words = [f"{one.hosts} host{'s' * (one.hosts > 1)}"]
    words += ["torchrun"] * one.torchrun + ["namespaces"] * one.netns
    words.append(_told_script(one) + " on a small disk" * one.small_disk)
    return ", ".join([*words, *map(_told_fault, one.faults)])


def _told_script(one: Scenario) -> str:
    where = f" on algo-{one.culprit + 1}"
    if one.script in ("exits", "dies"):
        return f"script {one.script} {one.value}{where}"
    if one.good or one.script in ("all raise", "fills"):
        return f"script {one.script} {one.works_s:g} s"
    return one.script + where


def _told_fault(fault: Fault) -> str:
    host = "all hosts" if fault.host == EVERYONE else f"algo-{fault.host + 1}"
    whose = host if fault.target == "train" else f"the {fault.target} of {host}"
    at = f"at {fault.at_s:.2f} s"
    sentences = {
        "stop": f"signal {fault.number} to {host} {at}",
        "kill": f"SIGKILL of {whose} {at}",
        "freeze": f"{whose} frozen for {fault.lasts_s:g} s {at}",
        "reset": f"connections of {host} reset {at}",
        "partition": f"{host} cut off for {fault.lasts_s:g} s {at}",
        "late": f"{host} starts {fault.lasts_s:g} s late",
        "absent": f"{host} never starts",
        "none": "no fault",
    }
    return sentences[fault.kind]
