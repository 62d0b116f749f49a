"""`muster local`: a cluster of one or several hosts on this machine.

`run` and `start` are for Python (`api`); `command` and `request` read the command line,
`preparation` and `tree` lay out what SageMaker would give each host, `environment` its variables.
`supervisor` is the process that starts the hosts, as one of `backends` makes them; `hosts` is the
other end of it. `session` waits, `show` shows the run, `record` keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.local.api.jobs import RunningJob as RunningJob
    from muster.local.api.jobs import run as run
    from muster.local.api.jobs import start as start
    from muster.local.api.result import Failure as Failure
    from muster.local.api.result import RankResult as RankResult
    from muster.local.api.result import Result as Result

_MODULES = {
    "jobs": ("RunningJob", "run", "start"),
    "result": ("Failure", "RankResult", "Result"),
}


def __getattr__(name: str) -> object:
    """What a script of yours asks for, imported then: the command and its hosts need none of it."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"muster.local.api.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
