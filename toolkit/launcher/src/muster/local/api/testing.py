"""Jobs in tests: what `muster.pytest_plugin` gives to a test that asks for `muster_job`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from muster.local.api import jobs
from muster.local.api.result import RankResult, Result
from muster.report.lines import tail

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STACKS_S = 10.0
SHOWN_RANKS = 16
SHOWN_LINES = 20
TAIL_BYTES = 8192


class TestJobs:
    """Runs the jobs of one test, all within `timeout_s` from its making."""

    __test__ = False  # pytest takes classes of such a name for tests

    def __init__(self, item: pytest.Item, folder: Path, timeout_s: float) -> None:
        self._item = item
        self._folder = folder
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._count = 0

    def __call__(
        self,
        script: str | os.PathLike[str],
        *,
        arguments: Sequence[str] = (),
        **options: object,
    ) -> Result:
        """Runs one job; its options are those of `muster.local.run`. A script that is not in the
        current folder may lie beside the test. Raises ValueError for a request that is wrong."""
        __tracebackhide__ = True
        import pytest

        self._count += 1
        name, stacks, late = f"muster job {self._count}", "", False
        options.setdefault("output", self._folder / f"job-{self._count}")
        with jobs.start(self._found(script), arguments=arguments, **options) as job:
            try:
                job.wait(max(0.0, self._until - time.monotonic()))
            except TimeoutError:
                late, stacks = True, _stacks(job.folder)
                job.end()
            result = job.wait()
        self._say(name, result, stacks)
        if late:
            pytest.fail(f"{name}: {script} did not end within {self._timeout_s:g} s")
        return result

    def _found(self, script: str | os.PathLike[str]) -> str:
        beside = os.path.join(os.path.dirname(self._item.path), script)
        return beside if not os.path.exists(script) and os.path.exists(beside) else str(script)

    def _say(self, name: str, result: Result, stacks: str = "") -> None:
        """For the text of the test, which pytest shows where it fails."""
        blocks = [str(result), *map(_last_lines, result.ranks[:SHOWN_RANKS])]
        if more := len(result.ranks) - SHOWN_RANKS:
            blocks.append(f"and {more} more ranks" if more > 0 else "")
        blocks.append(f"stacks before it was stopped:\n{stacks}" if stacks else "")
        self._item.add_report_section("call", name, "\n".join(filter(None, blocks)) + "\n")


def _last_lines(rank: RankResult) -> str:
    lines = [f"--- rank {rank.number} on {rank.host}, {_ended(rank)}"]
    for kind in ("out", "err"):
        with suppress(OSError):  # it wrote nothing
            found = tail(rank.path(kind), TAIL_BYTES).splitlines()[-SHOWN_LINES:]
            lines += [f"{kind}: {line}" for line in found]
    return "\n".join(lines)


def _ended(rank: RankResult) -> str:
    return "end not known" if rank.exit_code is None else f"exit code {rank.exit_code}"


def _stacks(folder: str) -> str:
    """Where the ranks of a run are, or why that is not known."""
    command = [*jobs.program("muster.cli"), "stacks", folder]
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=STACKS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not known: muster stacks had no answer within {STACKS_S:g} s"
    except OSError as error:
        return f"not known: {error}"
    if asked.returncode == 0:
        return asked.stdout.decode(errors="replace")
    return f"not known: {asked.stderr.decode(errors='replace').strip() or asked.returncode}"
