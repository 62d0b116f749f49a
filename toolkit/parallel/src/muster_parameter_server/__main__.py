"""`python -m muster_parameter_server`: one server, as the environment describes it."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    try:
        from muster_parameter_server.server import main
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.exit(
            "muster_parameter_server: torch is missing\n  Fix: pip install muster-parallel[torch]"
        )
    # threads of lost workers may still be in torch or in a socket: nothing is left to tidy up
    os._exit(main(os.environ))
