"""Which frameworks the script's Python has, and which of them the script names.

Looks at the disk and imports nothing: importing TensorFlow takes seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from muster.types.files import read_text
from muster.types.job import Program, Staged
from muster.types.tools import MODULES, Frameworks

SCRIPT_BYTES = 1 << 20  # of a script that are read
_IMPORT = r"(?m)^[ \t]*(?:import[ \t]+([^#;\n]+)|from[ \t]+([\w.]+)[ \t]+import\b)"


def find_frameworks(staged: Staged) -> Frameworks:
    """What a rank of this host would find when it imports."""
    return Frameworks(installed(staged.environ), imports(read_script(staged.program)))


def installed(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Of MODULES, those that are on PYTHONPATH or this interpreter's own path, which is the
    script's too. A folder without code, which Python calls a namespace, does not count."""
    from importlib import invalidate_caches

    invalidate_caches()  # packages may have been installed a moment ago
    path = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return tuple(name for name in MODULES if is_there(name, path))


def is_there(name: str, path: list[str]) -> bool:
    """Below `path`, or as this interpreter would find it, which knows editable installs too."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    try:
        spec = PathFinder.find_spec(name, path) or find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def imports(text: str) -> tuple[str, ...]:
    """Of MODULES, those that a line of the script imports, wherever the line stands."""
    named: set[str] = set()
    for plain, source in re.findall(_IMPORT, text):
        for item in plain.split(",") if plain else [source]:
            words = item.split()
            if words:
                named.add(words[0].partition(".")[0])
    return tuple(name for name in MODULES if name in named)


def read_script(program: Program) -> str:
    """The beginning of the entry script, "" where there is no such file to read."""
    name = program.name
    if program.kind == "module":
        name = name.replace(".", "/") + ".py"
    return read_text(os.path.join(program.code_dir, name), SCRIPT_BYTES)
