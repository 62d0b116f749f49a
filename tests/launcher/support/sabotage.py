"""A `train` in whose process something was changed from outside before it began."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

_TRAIN = "import sys\nsys.argv = ['train']\nfrom muster.cli import train\ntrain()\n"
_RAISE = (
    "import importlib, sys\n"
    "module, _, names = {where!r}.partition(':')\n"
    "*owners, last = names.split('.')\n"
    "holder = importlib.import_module(module)\n"
    "for owner in owners:\n"
    "    holder = getattr(holder, owner)\n"
    "getattr(holder, last)\n"  # or there is nothing to break
    "def broken(*args, **kwargs):\n"
    "    import shutil\n"
    "    print({said!r}, file=sys.stderr, flush=True)\n"
    "    raise {error}\n"
    "setattr(holder, last, broken)\n"
)
SAID = "sabotaged"  # what a broken function says on stderr: the fault has landed


def train_after(change: Callable[..., None], *arguments: object) -> list[str]:
    """The command of a `train` that calls `change` first, and is otherwise as it is.

    Only the function's own source goes to that process: it imports what it uses. `arguments` are
    what `repr` can write down.
    """
    called = f"{change.__name__}({', '.join(map(repr, arguments))})\n"
    return [sys.executable, "-c", inspect.getsource(change) + called + _TRAIN]


def train_with_broken(where: str, error: str) -> list[str]:
    """The command of a `train` in which `where` (`module:name.name`) raises the expression
    `error`, and says SAID before."""
    code = _RAISE.format(where=where, error=error, said=SAID)
    return [sys.executable, "-c", code + _TRAIN]
