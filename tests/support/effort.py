"""How hard the fuzz tests try: once in `make test`, TEST_EFFORT times in `make test-long`."""

from __future__ import annotations

import os


def effort() -> int:
    return int(os.environ.get("TEST_EFFORT", "1"))
