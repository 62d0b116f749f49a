"""What `--debug` and `--pdb` ask for, and whether the job can be debugged so. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

from muster.arguments import UsageError
from muster.types.debug import PDB, WAIT
from muster.types.values import NamedTuple

INSTALL = "pip install 'muster-training[debug]'"
LIMITS_OFF = {  # of hosts whose ranks wait for one that is debugged
    f"MUSTER_{name}_S": "0" for name in ("HANG", "STALL_WAIT", "STALL_IDLE", "IDLE")
}
ALONE = "debug one rank: the others wait for it in their first collective"


class DebugRequest(NamedTuple):
    """`mode`: WAIT or PDB of `types.debug`. `port`: the one asked for; None: the usual one, or any
    that is free."""

    mode: str
    rank: int
    port: int | None = None

    @property
    def option(self) -> str:
        return "--debug" if self.mode == WAIT else "--pdb"


def read_debug(
    debug: Sequence[str], pdb: Sequence[str], timeout_s: float | None
) -> DebugRequest | None:
    """The request of a command line; None for none. Raises UsageError."""
    if debug and pdb:
        raise UsageError("--debug and --pdb are two ways to look into a job", ALONE)
    given = [*debug, *pdb]
    if not given:
        return None
    option = "--debug" if debug else "--pdb"
    if len(given) > 1 or "," in given[0]:
        raise UsageError(f"{option} takes one rank, got {' and '.join(given)}", ALONE)
    number, colon, port = given[0].partition(":")
    example = f"for example {option} 3" + (" or --debug 3:5679" if debug else "")
    if not _is_number(number) or (colon and (pdb or not _is_number(port))):
        expected = "RANK or RANK:PORT" if debug else "RANK"
        raise UsageError(f"{option}: expected {expected}, got {given[0]!r}", example)
    if colon and not 0 < int(port) < 1 << 16:
        raise UsageError(f"{option}: no port {port}", "ports are 1 to 65535")
    if timeout_s is not None:
        raise UsageError(
            f"--timeout would end the job while you debug rank {number}",
            f"leave out --timeout: a run with {option} has no time limit, Ctrl-C ends it",
        )
    return DebugRequest(WAIT if debug else PDB, int(number), int(port) if colon else None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def check_debug(request: DebugRequest, ranks: int, exact: bool, isolation: str) -> None:
    """Raises UsageError where the job has no such rank, or this machine not what it takes. `ranks`:
    as many as the job has, at least so many if not `exact`."""
    if exact and request.rank >= ranks:
        fix = f"its ranks are 0 to {ranks - 1}" if ranks > 1 else "its only rank is 0"
        raise UsageError(f"{request.option}: the job has no rank {request.rank}", fix)
    if request.mode == PDB and not (os.isatty(0) and os.isatty(2)):
        raise UsageError(
            "--pdb gives a rank your terminal, and there is none here",
            f"use --debug {request.rank}, to which an editor attaches",
        )
    # the ranks of a container have the image's, and say it themselves
    if request.mode == WAIT and isolation != "docker" and find_spec("debugpy") is None:
        raise UsageError("--debug needs debugpy, which is not installed", INSTALL)
