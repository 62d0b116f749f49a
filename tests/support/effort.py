"""How hard the fuzz tests try: once in `make test`, TEST_EFFORT times in `make test-long`."""

from __future__ import annotations

import os
import random


def effort() -> int:
    return int(os.environ.get("TEST_EFFORT", "1"))


def fuzz_s() -> float:
    """How long the join port is attacked: 20 s in `make test-all`, 600 s in `make test-long`."""
    return max(20.0, 10.0 * effort())


def chance() -> random.Random:
    """Other numbers in each run; TEST_SEED repeats those of a run that failed."""
    seed = int(os.environ.get("TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"TEST_SEED={seed}")  # pytest shows it when the test fails
    return random.Random(seed)


def collect_garbage() -> None:
    """So that a count begins clean; what other tests left open is not this test's to report."""
    import gc
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
