"""Thin stand-ins for packages that public training scripts import: `find` says where they are.

The line of `muster_compat.pth` asks here when no other finder of Python has the package, so one
that is installed always wins, and a start of Python that imports none of them loads nothing.
"""

from __future__ import annotations

import os
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location

_HERE = os.path.dirname(os.path.abspath(__file__))


def find(name: str) -> ModuleSpec | None:
    """The package of that name; its modules are found by Python itself."""
    folder = os.path.join(_HERE, name)
    file = os.path.join(folder, "__init__.py")
    return spec_from_file_location(name, file, submodule_search_locations=[folder])
