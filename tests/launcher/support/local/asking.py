"""Asks a run what a person would: `muster ps`, `muster stacks`, `muster stop`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.launcher.support.local.local_runs import LocalRun
from tests.support.waiting import wait_until, within

ASK_S = 15.0


def asked(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """One command of `muster`, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "muster", *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=within(ASK_S),
        check=False,
    )


def answer(run: LocalRun, *argv: str) -> Any:
    """What a command answers about the run, as soon as it can be asked."""
    name, *rest = argv
    last: list[str] = []

    def answered() -> bool:
        assert run.process.poll() is None, run.err
        done = asked(name, str(run.folder), "--json", *rest)
        last[:] = [done.stdout, done.stderr]
        return done.returncode == 0

    wait_until(answered, ASK_S, lambda: "\n".join([*last, run.err]))
    return json.loads(last[0])


def verdict_of(run: LocalRun) -> Any:
    return answer(run, "stacks")["verdict"]
