"""`-m package.module`, and the imports of a script that its source folder does not hold.

SageMaker starts files, not modules: a small entry point of the module's name is packed beside the
code, and runs the module as `python -m` would, from the source folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from muster.arguments import UsageError
from muster.types.names import TYPED, did_you_mean

if TYPE_CHECKING:
    import ast

MAX_READ_BYTES = 1 << 20
_ENTRY = """\
import runpy

if __name__ == "__main__":
    runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def entry_point(module: str) -> tuple[str, bytes]:
    """(name, content) of the file that starts the module. No import finds it in the module's place,
    and no file of the module's has its name."""
    name = f"{module}.py" if "." in module else f"{module}.__main__.py"
    return name, _ENTRY.format(module=module).encode()


def check_module(module: str, folder: str) -> None:
    """Raises UsageError where `python -m` in `folder` would not find the module."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UsageError(f"-m: {module!r} is not the name of a module", _without_suffix(module))
    path = os.path.join(folder, *parts)
    if os.path.isfile(f"{path}.py") or os.path.isfile(os.path.join(path, "__main__.py")):
        return
    if os.path.isdir(path):
        raise UsageError(f"-m: the package {module} has no __main__.py", "name a module in it")
    below = os.path.dirname(path)
    known = [name.removesuffix(".py") for name in os.listdir(below)] if os.path.isdir(below) else []
    raise UsageError(
        f"-m: no module {module!r} in {folder}{did_you_mean(parts[-1], known, likeness=TYPED)}",
        "name it from the folder that holds its package, or give that one as --source-dir DIR",
    )


def _without_suffix(module: str) -> str:
    name = module.removesuffix(".py").replace("/", ".")
    return f"did you mean -m {name}?" if name != module else "such as -m package.module"


def imports_from_here(program: str, source_dir: str, here: str) -> list[str]:
    """Modules of the folder `here` that the program imports and its source folder does not hold.

    What is installed, and what cannot be read as Python, is none.
    """
    if source_dir == here or not program.endswith(".py"):
        return []
    import ast

    try:
        with open(os.path.join(source_dir, program), "rb") as file:
            tree = ast.parse(file.read(MAX_READ_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    names = dict.fromkeys(_top_names(tree))
    return [
        name
        for name in names
        if _holds(here, name) and not _holds(source_dir, name) and not _is_installed(name, here)
    ]


def _top_names(tree: ast.Module) -> Iterator[str]:
    import ast

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _holds(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)
    return os.path.isfile(f"{path}.py") or os.path.isdir(path)


def _is_installed(name: str, here: str) -> bool:
    from importlib.machinery import PathFinder

    if name in sys.stdlib_module_names:
        return True
    elsewhere = [path for path in sys.path if os.path.realpath(path) != here]
    return PathFinder.find_spec(name, elsewhere) is not None
