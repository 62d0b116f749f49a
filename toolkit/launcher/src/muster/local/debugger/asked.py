"""What `--debug` and `--pdb` ask for, and whether the job can be debugged so. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

from muster.arguments import UsageError
from muster.types.debug import HOLD, PDB, WAIT
from muster.types.plain import whole_number
from muster.types.values import NamedTuple

INSTALL = "pip install 'muster-training[debug]'"
LIMITS_OFF = {  # of hosts whose ranks wait for one that is debugged
    f"MUSTER_{name}_S": "0" for name in ("HANG", "STALL_WAIT", "STALL_IDLE", "STRAGGLERS", "IDLE")
}
ALONE = "debug one rank: the others wait for it in their first collective"


class DebugRequest(NamedTuple):
    """`mode`: WAIT, PDB or HOLD of `types.debug`; the last without a rank. `port`: the one
    asked for; None: the usual one, or any that is free."""

    mode: str
    rank: int | None
    port: int | None = None

    @property
    def option(self) -> str:
        """As the person wrote it."""
        return {WAIT: "--debug", PDB: "--pdb", HOLD: "--debug-on-failure"}[self.mode]

    @property
    def who(self) -> str:
        """In sentences. Which rank --debug-on-failure will hold, nobody knows before."""
        return "the rank that failed first" if self.rank is None else f"rank {self.rank}"

    @property
    def setting(self) -> str:
        """MUSTER_DEBUG, see `types.debug`."""
        return self.mode if self.rank is None else f"{self.mode}:{self.rank}"


def read_debug(
    debug: Sequence[str], pdb: Sequence[str], timeout_s: float | None, on_failure: bool = False
) -> DebugRequest | None:
    """The request of a command line; None for none. Raises UsageError."""
    if bool(debug) + bool(pdb) + on_failure > 1:
        ways = "--debug, --pdb and --debug-on-failure are different ways to look into a job"
        raise UsageError(ways, "choose one")
    if on_failure:
        _refuse_limit(timeout_s, "the rank that failed")
        return DebugRequest(HOLD, None)
    given = [*debug, *pdb]
    if not given:
        return None
    option = "--debug" if debug else "--pdb"
    if len(given) > 1 or "," in given[0]:
        raise UsageError(f"{option} takes one rank, got {' and '.join(given)}", ALONE)
    number, colon, port = given[0].partition(":")
    example = f"for example {option} 3" + (" or --debug 3:5679" if debug else "")
    rank, chosen = whole_number(number), whole_number(port)
    if rank is None or (colon and (pdb or chosen is None)):
        expected = "RANK or RANK:PORT" if debug else "RANK"
        raise UsageError(f"{option}: expected {expected}, got {given[0]!r}", example)
    if chosen is not None and not 0 < chosen < 1 << 16:
        raise UsageError(f"{option}: no port {port}", "ports are 1 to 65535")
    _refuse_limit(timeout_s, f"rank {number}")
    return DebugRequest(WAIT if debug else PDB, rank, chosen)


def _refuse_limit(timeout_s: float | None, who: str) -> None:
    if timeout_s is not None:
        raise UsageError(
            f"--timeout would end the job while you debug {who}",
            "leave out --timeout: a job that is debugged has no time limit, Ctrl-C ends it",
        )


def check_debug(request: DebugRequest, ranks: int, exact: bool, isolation: str) -> None:
    """Raises UsageError where the job has no such rank, or this machine not what it takes. `ranks`:
    as many as the job has, at least so many if not `exact`."""
    if exact and request.rank is not None and request.rank >= ranks:
        fix = f"its ranks are 0 to {ranks - 1}" if ranks > 1 else "its only rank is 0"
        raise UsageError(f"{request.option}: the job has no rank {request.rank}", fix)
    if request.mode == PDB and not (os.isatty(0) and os.isatty(2)):
        raise UsageError(
            "--pdb gives a rank your terminal, and there is none here",
            f"use --debug {request.rank}, to which an editor attaches",
        )
    # the ranks of a container have the image's, and say it themselves
    if request.mode != PDB and isolation != "docker" and find_spec("debugpy") is None:
        raise UsageError(f"{request.option} needs debugpy, which is not installed", INSTALL)
