"""`python -m muster_collectives.autotune`: see muster_collectives.tools.autotune."""

from __future__ import annotations

import sys

from muster_collectives.tools.autotune.command import main

if __name__ == "__main__":
    sys.exit(main())
