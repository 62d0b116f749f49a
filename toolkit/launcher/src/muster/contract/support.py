"""Whether this interpreter can run muster at all.

Asked before anything else is imported, so this file and those that import it must be readable by
Python 3.6: annotations are neither postponed nor newer than it.
"""

import sys

EXIT_CODE = 100
OLDEST = (3, 10)


def unsupported() -> str:
    """What is missing here, in one line with the fix; "" when nothing is."""
    version = tuple(map(int, sys.version_info[:2]))  # at run time, not as type checkers take it
    if version < OLDEST:
        found = ".".join(map(str, version))
        fix = "install it under a newer one"
        return f"muster needs Python 3.10 or newer, this is {found}; Fix: {fix}"
    system = str(sys.platform)
    if system != "linux":
        return (
            f"muster runs on Linux only, this is {system}; Fix: run it in a container or on Linux"
        )
    return ""
