"""What the kernel says of a process: memory and processor time."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def memory_kib(pid: int, field: str) -> int:
    """`field`: VmRSS for now, VmHWM for the most so far. Raises RuntimeError when it has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"no {field} of process {pid}: it has ended")


def cpu_s(pid: int) -> float:
    """Processor time of the process so far, without that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
