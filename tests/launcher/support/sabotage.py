"""A `train` in whose process something was changed from outside before it began."""

from __future__ import annotations

import sys

_TRAIN = "import sys\nsys.argv = ['train']\nfrom muster.cli import train\ntrain()\n"
_RAISE = (
    "import importlib, sys\n"
    "module, _, names = {where!r}.partition(':')\n"
    "*owners, last = names.split('.')\n"
    "holder = importlib.import_module(module)\n"
    "for owner in owners:\n"
    "    holder = getattr(holder, owner)\n"
    "def broken(*args, **kwargs):\n"
    "    import shutil\n"
    "    print({said!r}, file=sys.stderr, flush=True)\n"
    "    raise {error}\n"
    "setattr(holder, last, broken)\n"
)
SAID = "sabotaged"  # what a broken function says on stderr: the fault has landed


def train_after(code: str) -> list[str]:
    """The command of a `train` that runs `code` first, and is otherwise as it is."""
    return [sys.executable, "-c", code + _TRAIN]


def train_with_broken(where: str, error: str) -> list[str]:
    """The command of a `train` in which `where` (`module:name.name`) raises the expression
    `error`, and says SAID before."""
    return train_after(_RAISE.format(where=where, error=error, said=SAID))
