"""`python -m muster_collectives.autotune` has become an option of bench."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.exit("autotune: this is `python -m muster_collectives.bench --tune` now")
