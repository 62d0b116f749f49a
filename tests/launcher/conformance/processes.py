"""Processes of one run: found by a mark in their environment, ended one by one."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "CONFORMANCE_RUN"


def marked(run: str) -> list[int]:
    """The living processes (no zombies) that carry the mark of `run`."""
    wanted = f"{MARK}={run}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def survivors(run: str, settle_s: float = 2.0) -> list[int]:
    """Those still alive after `settle_s`; returns at once when there are none."""
    end = time.monotonic() + settle_s
    while (alive := marked(run)) and time.monotonic() < end:
        time.sleep(0.02)
    return alive


def end_all(run: str, limit_s: float = 10.0) -> None:
    """SIGKILL to every process of the run until none is left."""
    end = time.monotonic() + limit_s
    while alive := marked(run):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise AssertionError(f"processes {alive} of run {run} do not end")
        time.sleep(0.02)
