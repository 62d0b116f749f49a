"""How hard the fuzz tests try: once in `make test`, TEST_EFFORT times in `make test-long`."""

from __future__ import annotations

import os


def effort() -> int:
    return int(os.environ.get("TEST_EFFORT", "1"))


def collect_garbage() -> None:
    """So that a count begins clean; what other tests left open is not this test's to report."""
    import gc
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
