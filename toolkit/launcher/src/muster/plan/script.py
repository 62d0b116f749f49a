"""The command of one rank, and the same command as all hosts must agree on it."""

from __future__ import annotations

import os

from muster.types.job import Program, Staged

# Their paths are named, not imported: planning knows nothing of what runs.
_MUSTER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RANK_SHIM = os.path.join(_MUSTER, "run/child/rank_shim_main.py")
SPAWN_AGENT = os.path.join(_MUSTER, "run/child/spawn_agent.py")
PYTHON_MAIN = os.path.join(_MUSTER, "rank_bootstrap/python_main.py")
TENSORFLOW_SERVER = os.path.join(_MUSTER, "rank_bootstrap/tensorflow_ps.py")

_CALL = (
    "import functools, importlib, sys; module, function = sys.argv[1:]; sys.argv[:] = ['train']; "
    "functools.reduce(getattr, function.split('.'), importlib.import_module(module))()"
)


def script_argv(staged: Staged) -> tuple[str, ...]:
    """What runs in the code folder; names stay relative to it, so all hosts run equal lines."""
    program = staged.program
    if program.kind == "script":
        return (staged.python, program.name, *program.arguments)
    if program.kind == "module":
        return (staged.python, "-m", program.name, *program.arguments)
    if program.kind == "function":
        return (staged.python, "-c", _CALL, *program.name.split(":"))
    if program.kind != "command":
        raise ValueError(f"no kind of program is called {program.kind!r}")
    if program.interpreter:
        return (*program.interpreter, program.name, *program.arguments)
    return (f"./{program.name}", *program.arguments)


def bound_argv(staged: Staged) -> tuple[str, ...]:
    """The same for a rank that is bound to others at its end: one that ends with an error while
    they wait inside a library would wait for them (MPI_Finalize, MXNet's barrier at exit). Python
    programs run in `rank_bootstrap/python_main.py`, which says how that is avoided."""
    argv, kind = script_argv(staged), staged.program.kind
    if kind == "script":
        return (argv[0], PYTHON_MAIN, "script", *argv[1:])
    if kind == "module":
        return (argv[0], PYTHON_MAIN, *("module", *argv[2:]))
    return argv


def shim_argv(staged: Staged) -> tuple[str, ...]:
    """What a launcher starts in place of a rank: its waiting shim, which starts the script."""
    return (staged.python, "-I", "-S", RANK_SHIM)


def is_python(program: Program) -> bool:
    return program.kind in ("script", "module", "function")


def agreed_argv(staged: Staged, base: str) -> tuple[str, ...]:
    """The command with placeholders for what may differ from host to host.

    The interpreter and the base folder are a host's own. A host name is not replaced: an argument
    that names the leader is equal on all hosts, and would differ with the own name taken out.
    """
    first, *rest = script_argv(staged)
    if is_python(staged.program):
        first = "{python}"
    return (first, *(without_base(text, base.rstrip("/")) for text in rest))


def without_base(text: str, base: str) -> str:
    """`text` with `{base}` for the folder `base` itself and before everything below it."""
    if not base:
        return text
    text = text.replace(f"{base}/", "{base}/")
    return text.removesuffix(base) + "{base}" if text.endswith(base) else text
