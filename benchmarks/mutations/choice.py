"""Which tests of a revision are near to a changed file."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.mutations.sites import CORE

# files of tests by their names, for these have changed their folders: quick ones that start ranks
CORE_TESTS = ("collectives_core", "ops", "nodes", "p2p", "faults_calls", "waits")
CORE_NEAREST = (
    ("kernel|isa", ("collectives_kernels",)),
    ("p2p", ("p2p", "waits")),
    ("inter|nodes|leg", ("nodes",)),
    ("net|fail|abort|epoch|segment|comm", ("faults_calls", "nodes")),
)
RUN_TESTS = ("one_host", "two_hosts", "mpi_one_host", "supervised", "shim_kills", "channel")


def chosen_tests(tree: Path, path: str) -> tuple[list[str], list[str]]:
    """Files of units and files that start processes, the nearest first. Near are those that import
    the changed module, or a helper that does; of these the ones whose name shares a word with it.
    After them come RUN_TESTS for the launcher and CORE_TESTS for the core in C."""
    tests = sorted(str(one.relative_to(tree)) for one in (tree / "tests").rglob("test_*.py"))
    stems = {Path(test).stem.removeprefix("test_"): test for test in tests}
    if path.startswith(CORE):
        fits = [names for pattern, names in CORE_NEAREST if re.search(pattern, path[len(CORE) :])]
        chosen = dict.fromkeys(name for names in (*fits, CORE_TESTS) for name in names)
        return [], [stems[name] for name in chosen if name in stems]
    names = _naming(tree, path.partition("/src/")[2].removesuffix("/__init__.py"))
    for helper in [one for one in names if "/support/" in one]:
        names |= _naming(tree, helper)
    parts = set(re.split("[/_]", path.rpartition(".")[0])) - {"run"}
    strange = {test: parts.isdisjoint(Path(test).stem.split("_")) for test in names & {*tests}}
    found = sorted(strange, key=lambda test: (strange[test], test))
    more = [stems[name] for name in RUN_TESTS if name in stems and "/muster/run/" in path]
    others = [test for test in found if re.search("/(process|core|servers)/", test)][:3]
    return [test for test in found if "/unit/" in test], list(dict.fromkeys([*others, *more]))


def _naming(tree: Path, module: str) -> set[str]:
    """The files below tests/ that import the module of this path."""
    package, _, name = module.removesuffix(".py").replace("/", ".").rpartition(".")
    pattern = re.compile(
        rf"\b{re.escape(package)}(?:\.{name}\b|\s+import\s+(?:\([^)]*|[^\n]*)\b{name}\b)"
    )
    files = (tree / "tests").rglob("*.py")
    return {str(one.relative_to(tree)) for one in files if pattern.search(one.read_text())}
