"""What a trivial job costs beside the same job under an earlier revision, in turns.

`make bench-launcher ROWS=parent PARENT=REVISION`: the default is the commit where this branch left
main, or the one before, when this is main.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.launcher.jobs import TrivialJob
from benchmarks.launcher.software import Software, launcher_of
from benchmarks.table import Row, under
from tests.support.venvs import CHECKOUT

PAIRS = 40
BOUND_S = 0.005


def rows(folder: Path, parent: str) -> Iterator[Row]:
    revision = _git("rev-parse", "--short", parent) if parent else _default()
    launchers = (launcher_of(CHECKOUT, "bench-muster"), _launcher_of(revision))
    nobody = Path()  # no peer is run
    jobs = [TrivialJob(folder, Software(ours, nobody, nobody, nobody)).ours for ours in launchers]
    pairs = []
    for turn in range(PAIRS + 2):
        first = turn % 2
        seconds = [0.0, 0.0]
        for which in (first, 1 - first):
            seconds[which] = jobs[which]()
        pairs.append(seconds)
    differences = sorted(ours - its for ours, its in pairs[2:])  # what was cold does not count
    upper = differences[upper_rank(PAIRS) - 1]
    ours, its = (statistics.median(column) for column in zip(*pairs[2:], strict=True))
    yield Row(
        f"trivial one-host job over that of {revision}, upper 95 % of the median difference",
        "s",
        upper,
        {},
        (under(upper, BOUND_S, "s"),),
        f"{PAIRS} pairs in turns: median difference {statistics.median(differences) * 1000:.1f} ms "
        f"(0.025 to 0.975: {differences[PAIRS - upper_rank(PAIRS)] * 1000:.1f} to "
        f"{upper * 1000:.1f}); medians ours {ours:.3f}, then {its:.3f} s",
    )


def upper_rank(count: int) -> int:
    """Which of `count` sorted values bounds their median from above with 97.5 % (with the same
    from below: the interval of 95 %), whatever their distribution: the sign test's."""
    below = 0.0
    for rank in range(1, count + 1):
        below += math.comb(count, rank - 1) / 2**count
        if below >= 0.975:
            return rank
    return count


def _launcher_of(revision: str) -> Path:
    """The executables of that revision, built in a worktree that goes again."""
    with tempfile.TemporaryDirectory(prefix="muster-parent-") as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            return launcher_of(tree, "bench-parent")
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _default() -> str:
    base = _git("merge-base", "main", "HEAD")
    chosen = f"{base}~1" if base == _git("rev-parse", "HEAD") else base
    return _git("rev-parse", "--short", chosen)


def _git(*words: str) -> str:
    command: Sequence[str] = ["git", "-C", str(CHECKOUT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()
