"""`smddprun` and `smddpmprun`: they start their arguments, and nothing else.

Scripts and containers of the SageMaker data parallel library call them before the program. Here a
launcher has set up everything already, so their own options are read and have no effect. Where
that launcher is mpirun alone, the program gets the variables that torch.distributed looks for, so
that `init_process_group("smddp")` needs no more there than elsewhere. Under any launcher it gets
those that scripts of that library read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from muster_collectives.runtime import environment

_USAGE = 2
_NOT_FOUND = 127
_NOT_RUN = 126
# options of the two that take a value, in both spellings
_WITH_VALUE = frozenset(("-i", "--instance-type", "--instance_type"))


def smddprun() -> int:
    """The console script: runs its arguments in this process's place."""
    return _run("smddprun", sys.argv[1:])


def smddpmprun() -> int:
    """The console script: `smddpmprun -i TYPE [--allow-bypass] PROGRAM ...`."""
    return _run("smddpmprun", sys.argv[1:])


def program_of(arguments: Sequence[str]) -> list[str]:
    """What is left once the wrapper's own options before the program are gone (pure)."""
    left = list(arguments)
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option == "--":
            break
        if option in _WITH_VALUE and left:
            left.pop(0)
    return left


def _run(name: str, arguments: Sequence[str]) -> int:
    program = program_of(arguments)
    if not program:
        print(f"{name}: no program given\n  Fix: {name} [options] PROGRAM [ARGUMENTS]",
              file=sys.stderr)  # fmt: skip
        return _USAGE
    sys.stdout.flush()
    sys.stderr.flush()
    environ = {**os.environ, **environment.for_torch(os.environ)}
    environ.update(environment.for_data_parallel(environ))
    try:
        os.execvpe(program[0], program, environ)
    except FileNotFoundError:
        print(f"{name}: {program[0]} is not there", file=sys.stderr)
        return _NOT_FOUND
    except OSError as error:
        print(f"{name}: {program[0]} cannot be run: {error.strerror}", file=sys.stderr)
    return _NOT_RUN
