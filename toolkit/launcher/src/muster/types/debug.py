"""How `muster local` has the ranks of its job debugged."""

from __future__ import annotations

from muster.types.plain import whole_number
from muster.types.values import NamedTuple

WAIT, PDB, HOLD, HINT, PASS = "wait", "pdb", "hold", "hint", "pass"


class Debug(NamedTuple):
    """What MUSTER_DEBUG asks for. `mode`: of `rank`, "" where nothing was asked for; its other
    ranks pass by every `breakpoint()`. Without a rank: with HINT all say at one how a rank
    is debugged, with HOLD the first that fails waits for a debugger. `folder`:
    of this host in the record."""

    mode: str = ""
    rank: int | None = None
    folder: str = ""

    def of(self, rank: int) -> str:
        """The words for a rank's agent, after a space; "" for none."""
        mode = self.mode if self.rank in (None, rank) else PASS
        return f" {mode} {rank} {self.folder}" if mode else ""


def parse_debug(text: str) -> Debug:
    """`hint`, `hold`, `wait:3` or `pdb:0`. Raises ValueError."""
    mode, colon, rank = text.partition(":")
    if mode in (HINT, HOLD) and not colon:
        return Debug(mode)
    number = whole_number(rank)
    if mode not in (WAIT, PDB) or number is None:
        raise ValueError(f"expected {HINT}, {HOLD}, {WAIT}:RANK or {PDB}:RANK")
    return Debug(mode, number)
