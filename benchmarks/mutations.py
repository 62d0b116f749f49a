"""How many small defects the tests notice: `python -m benchmarks.mutations REVISION`.

Changes one token or statement at a time in the launcher's `run/`, in modules of the wire and in the
core in C, in copies of that revision with a .venv each (`.cache/mutations`), and runs the tests
nearest to the changed module within a budget of time: first units, then those of processes. A
mutation is killed by a test that fails with it, twice if it starts processes, and passes without
it. Each is a line of JSON: killed by which test, survived, or invalid (does not compile); `whole`
is false where the budget ended before the tests did. Started again, it continues where it stopped.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from xml.etree import ElementTree

CHECKOUT = Path(__file__).resolve().parents[1]
FOLDER = CHECKOUT / ".cache" / "mutations"
CORE = "toolkit/parallel/csrc"
WIRE = "toolkit/parallel/src/**"
# each group has its share of the mutations in every revision, however much code is in it
TARGETS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "run": (0.5, ("toolkit/launcher/src/muster/run/**/*.py",)),
    "wire": (0.1, (f"{WIRE}/wire*.py", f"{WIRE}/wire/*.py", f"{WIRE}/frames.py",
                   f"{WIRE}/handshake.py")),
    "core": (0.4, (f"{CORE}/**/*.c",)),
}  # fmt: skip
# files of tests by their names, for these have changed their folders: quick ones that start ranks
CORE_TESTS = ("collectives_core", "ops", "nodes", "p2p", "faults_calls", "waits")
CORE_NEAREST = (
    ("kernel|isa", ("collectives_kernels",)),
    ("p2p", ("p2p", "waits")),
    ("inter|nodes|leg", ("nodes",)),
    ("net|fail|abort|epoch|segment|comm", ("faults_calls", "nodes")),
)
RUN_TESTS = ("one_host", "two_hosts", "mpi_one_host", "supervised", "shim_kills", "channel")
_SWAPS = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "and": "or", "or": "and",
    "True": "False", "False": "True", "&&": "||", "||": "&&",
}  # fmt: skip
_PYTEST = (".venv/bin/python", "-m", "pytest", "-q", "-x", "-m", "not long and not effort",
           "-o", "junit_family=xunit1")  # fmt: skip
_SIGINT_S = 20.0  # for fixtures to end what they started
_C_SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*',
    re.DOTALL | re.MULTILINE,
)
_C_TOKEN = re.compile(r"==|!=|<=|>=|&&|\|\||(?<![<-])<(?!<)|(?<![>-])>(?!>)|(?<![\w.])\d+(?![\w.])")
_C_STATEMENT = re.compile(r"^[ \t]+([\w.\[\]>*-]+ *(?:[-+|&]?=|\()[^;{}\n]*;) *$", re.MULTILINE)


class Mutation(NamedTuple):
    """`before` at that offset of the file becomes `after`."""

    group: str
    path: str
    line: int
    offset: int
    before: str
    after: str

    def apply(self, text: str) -> str:
        return text[: self.offset] + self.after + text[self.offset + len(self.before) :]


def picked(tree: Path, count: int, seed: int) -> list[Mutation]:
    """That many of the revision, of each group its share; always the same for a seed."""
    chance, found = random.Random(seed), list[Mutation]()
    for group, (share, globs) in TARGETS.items():
        paths = sorted({str(one.relative_to(tree)) for glob in globs for one in tree.glob(glob)})
        every = [x for path in paths for x in mutations_of(group, path, (tree / path).read_text())]
        found += chance.sample(every, min(round(share * count), len(every)))
    chance.shuffle(found)
    return found


def mutations_of(group: str, path: str, text: str) -> list[Mutation]:
    """All that can be made of one file, in order."""
    sites = _python_sites(text) if path.endswith(".py") else _c_sites(text)
    return [
        Mutation(group, path, text.count("\n", 0, start) + 1, start, text[start:end], after)
        for start, end, after in sorted(set(sites))
    ]


def _python_sites(text: str) -> Iterator[tuple[int, int, str]]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        start = starts[row - 1] + column
        if token.type == tokenize.NUMBER and token.string.isdigit():
            yield start, start + len(token.string), str(int(token.string) + 1)
        elif token.type in (tokenize.OP, tokenize.NAME) and token.string in _SWAPS:
            yield start, start + len(token.string), _SWAPS[token.string]
    for node in ast.walk(ast.parse(text)):
        call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if (call or isinstance(node, ast.Assign | ast.AugAssign)) and text.isascii():
            assert isinstance(node, ast.stmt) and node.end_lineno and node.end_col_offset
            start = starts[node.lineno - 1] + node.col_offset
            yield start, starts[node.end_lineno - 1] + node.end_col_offset, "pass"


def _c_sites(text: str) -> Iterator[tuple[int, int, str]]:
    bare = _C_SKIPPED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for found in _C_TOKEN.finditer(bare):
        word = found[0]
        yield found.start(), found.end(), _SWAPS.get(word) or str(int(word) + 1)
    for found in _C_STATEMENT.finditer(bare):
        if not found[1].startswith("return"):
            yield found.start(1), found.end(1), ";"


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
    others = [test for test in found if re.search("/(process|core|servers)/", test)]
    return [test for test in found if "/unit/" in test], list(dict.fromkeys([*others, *more]))


def _naming(tree: Path, module: str) -> set[str]:
    """The files below tests/ that import the module of this path."""
    package, _, name = module.removesuffix(".py").replace("/", ".").rpartition(".")
    pattern = re.compile(
        rf"\b{re.escape(package)}(?:\.{name}\b|\s+import\s+(?:\([^)]*|[^\n]*)\b{name}\b)"
    )
    files = (tree / "tests").rglob("*.py")
    return {str(one.relative_to(tree)) for one in files if pattern.search(one.read_text())}


class Core:
    """The compiled core of a tree. Its objects are kept, so that a change compiles one file."""

    def __init__(self, tree: Path) -> None:
        self._tree, self._objects = tree, tree / ".cache" / "core-objects"
        self._build = _module(tree / "toolkit" / "parallel" / "hatch_build.py")
        self._compiler = self._build.compiler_of(os.environ)
        self._objects.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = list(pool.map(self._compile, sorted((tree / CORE).rglob("*.c"))))
        if not self._compiler or not all(made) or not self._link():
            raise SystemExit("the core does not compile without a mutation")

    def remade(self, source: Path) -> bool:
        """Whether the core could be made anew after a change of this file."""
        return self._compile(source) and self._link()

    def _compile(self, source: Path) -> bool:
        words = [*self._compiler, *self._build.COMPILING, f"-I{self._tree / CORE}", "-c"]
        return self._runs([*words, str(source), "-o", str(self._object(source))])

    def _object(self, source: Path) -> Path:
        parts = source.relative_to(self._tree / CORE).with_suffix(".o").parts
        return self._objects / "-".join(parts)

    def _link(self) -> bool:
        objects = [str(self._object(one)) for one in sorted((self._tree / CORE).rglob("*.c"))]
        made = self._objects / "libmuster_core.so"
        words = [*self._compiler, *self._build.LINKING, "-o", str(made), *objects, "-lm"]
        if not self._runs(words):
            return False
        made.replace(self._tree / "toolkit" / "parallel" / "src" / self._build.NATIVE)
        return True

    def _runs(self, words: Sequence[str]) -> bool:
        return not subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build_of_a_revision", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Runner:
    """Makes mutations and runs tests in the copy `tree` of a revision."""

    def __init__(self, tree: Path, budget_s: float) -> None:
        self.tree, self.core, self._budget_s = tree, Core(tree), budget_s
        self._known = tree / "unchanged.json"
        known = self._known.read_text() if self._known.exists() else "{}"
        self._passes: dict[str, bool] = json.loads(known)

    def judge(self, number: int, one: Mutation) -> dict[str, object]:
        """What the tests say of it; the tree is afterwards as it was."""
        began_s, groups = time.monotonic(), chosen_tests(self.tree, one.path)
        facts = {"number": number, **one._asdict(), "tests": sum(map(len, groups))}
        if not self._change(one, number):
            self._change(one, None)
            return {**facts, "result": "invalid"}
        killer, end_s, whole = "", time.monotonic() + self._budget_s, True
        for tests in filter(None, groups):
            failed: str | None = "none yet"
            while failed and not killer:
                failed = self._failure(tests, end_s - time.monotonic())
                asked_s = time.monotonic()
                if failed and self._kills(one, number, failed, tests is groups[0]):
                    killer = failed
                end_s += time.monotonic() - asked_s
            whole = whole and failed is not None
        self._change(one, None)
        took = round(time.monotonic() - began_s, 1)
        result = "killed" if killer else "survived"
        return {**facts, "result": result, "by": killer, "whole": whole, "seconds": took}

    def _change(self, one: Mutation, number: int | None) -> bool:
        """Makes the mutation, or with None takes it back; whether that compiles."""
        file = self.tree / one.path
        if number is None:
            text, seconds = self._text, self._seconds
        else:
            self._text, self._seconds = file.read_text(), file.stat().st_mtime
            text, seconds = one.apply(self._text), self._seconds + 2 + number
        file.write_text(text)
        os.utime(file, (seconds, seconds))  # bytecode is told from source by whole seconds and size
        if one.path.endswith(".c"):
            return self.core.remade(file)
        try:
            compile(text, str(file), "exec")
        except SyntaxError:
            return False
        return True

    def _kills(self, one: Mutation, number: int, test: str, unit: bool) -> bool:
        """Whether a test that failed did so by the mutation; else it is left out from now on."""
        limit_s = self._budget_s + _SIGINT_S
        if not unit and self._failure([test], limit_s) == "":
            self._passes[test] = False
        elif test not in self._passes:
            self._change(one, None)
            self._passes[test] = self._failure([test], limit_s) == ""
            self._change(one, number)
        self._known.write_text(json.dumps(self._passes, indent=1))
        return self._passes[test]

    def _failure(self, tests: Sequence[str], limit_s: float) -> str | None:
        """The first test that fails, "" when all pass, None when the time ran out."""
        if limit_s <= 1:
            return None
        report = self.tree / "report.xml"
        report.unlink(missing_ok=True)
        left_out = [f"--deselect={test}" for test, passes in self._passes.items() if not passes]
        timeout = f"--timeout={round(self._budget_s / 3)}"  # for what hangs is noticed as well
        words = [*_PYTEST, timeout, f"--junitxml={report}", *left_out, *tests]
        code = run_in(self.tree, words, limit_s)
        if code is None:
            return None
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                if case.find("failure") is not None or case.find("error") is not None:
                    file = case.get("file")  # none where a file cannot be imported
                    return f"{file}::{case.get('name')}" if file else tests[0]
        return "" if code in (0, 5) else tests[0]


def run_in(tree: Path, words: Sequence[str], limit_s: float) -> int | None:
    """The exit code, None when it had to be ended. What is in /dev/shm after a test is laid to that
    test, so each run has one of its own where it may be mounted."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environ["PATH"] = f"{tree}/.venv/bin:{environ['PATH']}"
    mounted = ("sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    own = ("unshare", "--mount", *mounted) if os.getuid() == 0 else ()
    with (tree / "last.log").open("w") as log:
        done = subprocess.Popen(
            [*own, *words], cwd=tree, env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        return done.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, signal.SIGINT)  # fixtures end what they started
    try:
        done.wait(_SIGINT_S)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, signal.SIGKILL)
        done.wait()
    return None


def copy_of(revision: str, number: int) -> Path:
    """A copy of the revision with a .venv of its own; one that is there gets its files anew, for a
    run that was killed may have left a mutation in it."""
    git = ["git", "-C", str(CHECKOUT)]
    tree = FOLDER / f"{revision}-{number}"
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
    """The mutations that are left to judge, and the file of results."""

    def __init__(self, results: Path, every: Sequence[Mutation]) -> None:
        self._file, self._lock = results, threading.Lock()
        results.touch()
        self.done = [json.loads(line) for line in results.read_text().splitlines()]
        known = {one["number"] for one in self.done}
        self._count = len(every)
        self.left = [(number, one) for number, one in enumerate(every) if number not in known]
        self.left.reverse()

    def work(self, runner: Runner) -> None:
        """Judges one after the other until none is left."""
        while self.left:
            number, one = self.left.pop()
            found = runner.judge(number, one)
            with self._lock:
                self.done.append(found)
                with self._file.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                progress = f"{len(self.done)}/{self._count}"
                print(progress, found["result"], f"{one.path}:{one.line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("revision")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=18.0, help="seconds of tests for each")
    parser.add_argument("--jobs", type=int, default=2, help="copies that are tested at a time")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of a job in the background
    commit = commit_of(chosen.revision)
    trees = [copy_of(commit, number) for number in range(chosen.jobs)]
    runners = [Runner(tree, chosen.budget) for tree in trees]
    results = FOLDER / f"{commit}-{chosen.seed}.jsonl"
    session = Session(results, picked(trees[0], chosen.count, chosen.seed))
    with ThreadPoolExecutor(chosen.jobs) as pool:
        try:
            list(pool.map(session.work, runners))
        finally:
            session.left.clear()
    for name in TARGETS:
        print(name, dict(Counter(one["result"] for one in session.done if one["group"] == name)))
    print(f"in all {dict(Counter(one['result'] for one in session.done))}: {results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
