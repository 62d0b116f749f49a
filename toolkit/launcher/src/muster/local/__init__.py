"""`muster local`: a cluster of one or several hosts on this machine.

`run` and `start` are for Python (`api`); `command` and `request` read the command line,
`preparation` and `tree` lay out what SageMaker would give each host, `environment` its variables.
`supervisor` is the process that starts the hosts, as one of `backends` makes them; `hosts` is the
other end of it. `session` waits, `show` shows the run, `record` keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.local.api import Job as Job
    from muster.local.api import run as run
    from muster.local.api import start as start
    from muster.local.result import Failure as Failure
    from muster.local.result import Rank as Rank
    from muster.local.result import Result as Result

_OF_API = ("Job", "run", "start")
_OF_RESULT = ("Failure", "Rank", "Result")


def __getattr__(name: str) -> object:
    """What a script of yours asks for, imported then: the command and its hosts need none of it."""
    if name in _OF_API:
        from muster.local import api

        return getattr(api, name)
    if name in _OF_RESULT:
        from muster.local import result

        return getattr(result, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
