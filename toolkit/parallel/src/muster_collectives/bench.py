"""`python -m muster_collectives.bench`: see muster_collectives.tools.bench."""

from __future__ import annotations

import sys

from muster_collectives.tools.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
