"""How many small defects the tests notice: `python -m benchmarks.mutations REVISION`.

Changes one token or statement at a time in the launcher's `run/`, in modules of the wire and in the
core in C, in copies of that revision with a .venv each (`.cache/mutations`), and runs the tests
nearest to the changed module within a budget of time: first units, then those of processes, quick
ones first. A mutation is killed by a test that fails with it, twice if it starts processes, and
passes without it. Each is a line of JSON: killed by which test, survived, or invalid (does not
compile); `whole` is false where the budget ended before the tests did. Started again, it continues
where it stopped.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from benchmarks.mutations.choice import chosen_tests
from benchmarks.mutations.runner import Runner, run_in
from benchmarks.mutations.sites import TARGETS, Mutation, picked

T = TypeVar("T")
CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / ".cache" / "mutations"


def copy_of(revision: str, tree: Path) -> Path:
    """A copy of the revision with a .venv of its own; one that is there gets its files anew, for a
    run that was killed may have left a mutation in it."""
    git = ["git", "-C", str(CHECKOUT)]
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run([*git, "archive", revision], stdout=-1, check=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    if run_in(tree, ["make", "-s", "setup"], 1200) != 0:
        raise SystemExit(f"no .venv could be made: see {tree / 'last.log'}")
    return tree


def commit_of(revision: str) -> str:
    words = ["git", "-C", str(CHECKOUT), "rev-parse", f"{revision}^{{commit}}"]
    return subprocess.run(words, stdout=-1, check=True, text=True).stdout.strip()[:12]


class Session:
    """The mutations of a revision, and the file of results."""

    def __init__(self, folder: Path, seed: int, every: Sequence[Mutation]) -> None:
        self._file, self._lock, self._count = (
            folder / f"results-{seed}.jsonl",
            threading.Lock(),
            len(every),
        )
        self._file.touch()
        self.done = [json.loads(line) for line in self._file.read_text().splitlines()]
        known = {one["number"] for one in self.done}
        self.left = [pair for pair in enumerate(every) if pair[0] not in known]

    def judge(self, runner: Runner, pair: tuple[int, Mutation]) -> None:
        found = runner.judge(*pair)
        with self._lock:
            self.done.append(found)
            with self._file.open("a") as file:
                file.write(json.dumps(found) + "\n")
            where = f"{found['path']}:{found['line']}"
            print(f"{len(self.done)}/{self._count}", found["result"], where, flush=True)


def share(runners: Sequence[Runner], work: Callable[[Runner, T], None], items: Sequence[T]) -> None:
    """Each runner does the next item until none is left."""
    left = list(reversed(items))

    def some(runner: Runner) -> None:
        while left:
            work(runner, left.pop())

    with ThreadPoolExecutor(len(runners)) as pool:
        try:
            list(pool.map(some, runners))
        finally:
            left.clear()  # after an interrupt the last ones take their mutations back


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("revision")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=18.0, help="seconds of tests for each")
    parser.add_argument("--jobs", type=int, default=2, help="copies that are tested at a time")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of a job in the background
    folder = FOLDER / commit_of(chosen.revision)
    trees = [copy_of(folder.name, folder / str(number)) for number in range(chosen.jobs)]
    kept = folder / "tests.json"
    known: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else {}
    runners = [Runner(tree, chosen.budget, known) for tree in trees]
    every = picked(trees[0], chosen.count, chosen.seed)
    paths = sorted({one.path for one in every})
    files = {test for path in paths for tests in chosen_tests(trees[0], path) for test in tests}
    lock = threading.Lock()

    def measure(runner: Runner, file: str) -> None:
        runner.measure(file)
        with lock:
            kept.write_text(json.dumps({**known}, indent=1))
            print(f"{len(known)}/{len(files)} {file}: {len(known[file])} tests", flush=True)

    share(runners, measure, sorted(files - {*known}))
    session = Session(folder, chosen.seed, every)
    share(runners, session.judge, session.left)
    for group in TARGETS:
        print(group, dict(Counter(x["result"] for x in session.done if x["group"] == group)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
