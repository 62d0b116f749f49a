"""The launcher's table of keys and the library's: the same kinds, ranges, words and rules.

The launcher refuses before a start what the library would refuse in the script. Neither imports the
other, so their answers to thousands of requests are compared, word for word.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from muster.contract.findings import Findings
from muster.contract.request import model_parallel as launcher
from muster.plan.degrees import check_degrees
from muster.types.distribution import MODEL_PARALLEL, SMP_BOTH, SMP_VERSION_2, Torchrun
from muster.types.errors import ConfigError
from muster.types.job import Documents
from muster_modelparallel.errors import NotBuiltError, SettingsError
from muster_modelparallel.settings.config import Reading, check_world, read_config
from muster_modelparallel.settings.keys import ALIASES, KEYS, NAMES, KeyKind, key_of
from muster_modelparallel.settings.rules import problems_of
from tests.launcher.support.jobs import make_job

SEEDS = range(20)
OF_A_SEED = 300
STRANGE = (None, True, False, 0, 1, -1, 1 << 20, (1 << 20) + 1, 1 << 53, (1 << 53) + 1, 0.0, 0.5,
           1.0, 1.5, float("nan"), float("inf"), "", "1", "true", "DPT", "spread", "x" * 300,
           "'", [1], {"a": 1})  # fmt: skip
DEGREES = ("partitions", "pipeline_parallel_degree", "tensor_parallel_degree", "ddp",
           "microbatches", "sharded_data_parallel_degree", "hybrid_shard_degree",
           "random_seed")  # fmt: skip
COUNTS = (1, 1, 2, 3, 4, 8)


def fitting(name: str, chance: random.Random) -> object:
    """A value that the key takes."""
    key = key_of(name)
    assert key is not None
    if key.kind is KeyKind.FLAG:
        return chance.random() < 0.6
    if key.kind is KeyKind.TEXT:
        return chance.choice(key.words or ("plan.json",))
    low, high = key.bounds
    if key.kind is KeyKind.NUMBER:
        return chance.choice((low, low + 0.5, 1))
    return max(low, min(high, chance.choice(COUNTS)))


def any_request(chance: random.Random) -> dict[str, Any]:
    """A few keys, most of them with values that fit; some misspelt."""
    names = chance.sample(NAMES, chance.randint(0, 8))
    sent = {
        name: chance.choice(STRANGE) if chance.random() < 0.2 else fitting(name, chance)
        for name in names
    }
    if chance.random() < 0.1:
        sent["partitons"] = 2
    return sent


def same_version(chance: random.Random) -> dict[str, Any]:
    """Values that fit, of keys of one version, so that the rules between keys decide."""
    version = chance.choice((1, 2))
    names = [name for name in NAMES if _key_version(name) in (0, version)]
    return {name: fitting(name, chance) for name in chance.sample(names, chance.randint(1, 8))}


def _key_version(name: str) -> int:
    key = key_of(name)
    return key.version if key else 0


def of_the_launcher(sent: dict[str, Any]) -> list[tuple[str, str, str]]:
    findings = Findings()
    launcher.check_parameters(sent, "where", findings)
    return [tuple(problem) for problem in findings.problems]


def of_the_library(sent: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [tuple(problem) for problem in problems_of(sent, "where")]


def test_both_tables_have_the_same_keys_of_the_same_kinds_ranges_and_words() -> None:
    assert set(launcher._KNOWN) == set(NAMES)
    for name, there in launcher._KNOWN.items():
        key = key_of(name)
        assert key is not None
        assert key.kind.value == there.type, name
        if there.type in ("integer", "number"):
            assert key.bounds == (there.low, there.high), name
        assert key.words == there.words, name


def test_both_say_alike_which_version_has_a_key() -> None:
    assert {key.name for key in KEYS.values() if key.version == 2} == SMP_VERSION_2
    assert {key.name for key in KEYS.values() if key.version == 0} == SMP_BOTH


@pytest.mark.parametrize("make", [any_request, same_version])
@pytest.mark.parametrize("seed", SEEDS)
def test_both_say_the_same_of_a_request(
    make: Callable[[random.Random], dict[str, Any]], seed: int
) -> None:
    chance = random.Random(seed)
    refused = 0
    for _ in range(OF_A_SEED):
        sent = make(chance)
        assert of_the_launcher(sent) == of_the_library(sent), sent
        refused += bool(of_the_library(sent))
    assert 0 < refused < OF_A_SEED  # both answers were compared


def test_each_value_that_anybody_could_send_is_judged_alike() -> None:
    for name in NAMES:
        for value in STRANGE:
            assert of_the_launcher({name: value}) == of_the_library({name: value})


def degrees(chance: random.Random) -> dict[str, Any]:
    names = chance.sample(DEGREES, chance.randint(0, 5))
    sent = {name: fitting(name, chance) for name in names}
    return {} if of_the_library(sent) else sent


def before_a_start(sent: dict[str, Any], size: int) -> str:
    """What the launcher has against this many ranks."""
    job = make_job(1, Torchrun(MODEL_PARALLEL))
    job = job._replace(documents=Documents({}, {}, {"mp_parameters": sent}, {}))
    try:
        check_degrees(job, size)
    except ConfigError as error:
        (first, *_) = error.problems
        return f"{len(error.problems)}: {first}; {first.fix}"
    return ""


def in_the_script(sent: dict[str, Any], size: int) -> str:
    try:
        check_world(read(sent).config, size)
    except SettingsError as error:
        many, _, rest = error.what.partition(" problems:\n  ")
        if rest:
            return f"{many}: " + rest.splitlines()[0]
        return f"1: {error.what}; {error.fix}"
    return ""


def read(sent: dict[str, Any]) -> Reading:
    return read_config({}, [], sent)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_say_the_same_of_degrees_and_ranks(seed: int) -> None:
    """But for one case: keys that both versions have, alone. Of these the launcher does not know
    which version will read them, and version 2 has no `ddp`."""
    chance = random.Random(seed)
    refused = 0
    for _ in range(OF_A_SEED):
        sent, size = degrees(chance), chance.choice((1, 2, 3, 4, 6, 8, 12))
        here, there = in_the_script(sent, size), before_a_start(sent, size)
        if sent.keys() <= SMP_BOTH and "ddp is not true" in here:
            assert there == "", sent
        else:
            assert here == there, (sent, size)
        refused += bool(here)
    assert OF_A_SEED // 10 < refused < OF_A_SEED * 9 // 10


def test_what_the_launcher_takes_the_library_reads() -> None:
    """But for keys that nothing honours yet: those are none of the launcher's business."""
    chance = random.Random(1)
    for _ in range(1000):
        sent = same_version(chance)
        if of_the_launcher(sent):
            continue
        try:
            config = read(sent).config
        except NotBuiltError:
            assert {"context_parallel_degree", "expert_parallel_degree"} & sent.keys()
            continue
        except SettingsError as error:
            # the script may have said how many partitions and microbatches there are
            if "are no multiple of" not in error.what:
                assert "default_partition" in error.what
                assert not {"pipeline_parallel_degree", *ALIASES} & sent.keys()
            continue
        for name, value in sent.items():
            field = ALIASES.get(name, name)
            assert not hasattr(config, field) or getattr(config, field) == value
