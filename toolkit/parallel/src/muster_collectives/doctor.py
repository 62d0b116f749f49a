"""`python -m muster_collectives.doctor`: see muster_collectives.tools.doctor."""

from __future__ import annotations

import sys

from muster_collectives.tools.doctor import main

if __name__ == "__main__":
    sys.exit(main())
