"""How many small defects the tests notice: `python -m benchmarks.mutations REVISION --budget 60`.

Changes one token or statement at a time in the launcher's `run/`, in modules of the wire and in the
core in C, in a copy of that revision with a .venv of its own (`.cache/mutations`), and runs the
tests that name the changed module. A test file counts only if it passes without the change. Each
mutation is a line of JSON: killed by which test, survived, or invalid (does not compile); `whole`
is false where the budget ended before the tests did. Started again, it continues where it stopped.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

CHECKOUT = Path(__file__).resolve().parents[1]
FOLDER = CHECKOUT / ".cache" / "mutations"
CORE = "toolkit/parallel/csrc"
CORE_TESTS = ("faults", "links", "meetings", "nodes", "ops", "p2p")
TARGETS = (
    "toolkit/launcher/src/muster/run/**/*.py",
    "toolkit/parallel/src/**/wire*.py",
    "toolkit/parallel/src/**/frames.py",
    "toolkit/parallel/src/**/handshake.py",
    f"{CORE}/**/*.c",
)
_SWAPS = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "and": "or", "or": "and",
    "True": "False", "False": "True", "&&": "||", "||": "&&",
}  # fmt: skip
_PYTEST = (".venv/bin/python", "-m", "pytest", "-q", "-x", "-m", "not long", "--timeout", "60")
_C_SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*',
    re.DOTALL | re.MULTILINE,
)
_C_TOKEN = re.compile(r"==|!=|<=|>=|&&|\|\||(?<![<-])<(?!<)|(?<![>-])>(?!>)|(?<![\w.])\d+(?![\w.])")
_C_STATEMENT = re.compile(r"^[ \t]+([\w.\[\]>*-]+ *(?:[-+|&]?=|\()[^;{}\n]*;) *$", re.MULTILINE)


class Mutation(NamedTuple):
    """`before` at that offset of the file becomes `after`."""

    path: str
    line: int
    offset: int
    before: str
    after: str


def mutations_of(path: str, text: str) -> list[Mutation]:
    """All that can be made of one file, in order."""
    sites = _python_sites(text) if path.endswith(".py") else _c_sites(text)
    return [
        Mutation(path, text.count("\n", 0, start) + 1, start, text[start:end], after)
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


def chosen_tests(tree: Path, path: str) -> list[str]:
    """Test files that import the changed module, or a helper that does; where there is none, those
    of whole processes; for the core in C those of CORE_TESTS. First the ones whose name shares a
    word with the file's, then units."""
    tests = sorted(str(one.relative_to(tree)) for one in (tree / "tests").rglob("test_*.py"))
    if path.startswith(CORE):
        found = [x for x in tests if "/collectives/" in x and Path(x).stem[5:] in CORE_TESTS]
    else:
        names = _naming(tree, path.partition("/src/")[2].removesuffix("/__init__.py"))
        for helper in [one for one in names if "/support/" in one]:
            names |= _naming(tree, helper)
        found = [test for test in tests if test in names and "/soak/" not in test]
        found = found or [test for test in tests if "/process/" in test]
    parts = set(re.split("[/_]", path.removeprefix(CORE).rpartition(".")[0])) - {"run"}
    strange = {test: parts.isdisjoint(Path(test).stem.split("_")) for test in found}
    return sorted(found, key=lambda test: (strange[test], "/unit/" not in test, test))


def _naming(tree: Path, module: str) -> set[str]:
    """The files below tests/ that import the module of this path."""
    package, _, name = module.removesuffix(".py").replace("/", ".").rpartition(".")
    pattern = re.compile(
        rf"\b{re.escape(package)}(?:\.{name}\b|\s+import\s+(?:\([^)]*|[^\n]*)\b{name}\b)"
    )
    files = (tree / "tests").rglob("*.py")
    return {str(one.relative_to(tree)) for one in files if pattern.search(one.read_text())}


class Runner:
    """Runs tests in the copy `tree` of a revision."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._known = tree / "unchanged.json"
        known = self._known.read_text() if self._known.exists() else "{}"
        self._passes: dict[str, bool] = json.loads(known)

    def set_up(self) -> bool:
        """Makes .venv, or compiles the core anew; whether that worked."""
        (self.tree / ".venv" / ".ready").unlink(missing_ok=True)
        return self._run(["make", "-s", "setup"], 1200) == 0

    def passes_unchanged(self, test: str, limit_s: float) -> bool:
        """Whether nothing fails in that time without a mutation; asked once for each file."""
        if test not in self._passes:
            self._passes[test] = not self.failure(test, limit_s)
            self._known.write_text(json.dumps(self._passes, indent=1))
        return self._passes[test]

    def failure(self, test: str, limit_s: float) -> str | None:
        """The first test of the file that fails, "" when all pass, None when the time ran out.
        Ends the run when pytest leaves no report."""
        report = self.tree / "report.xml"
        report.unlink(missing_ok=True)
        code = self._run([*_PYTEST, f"--junitxml={report}", test], limit_s)
        if code is None:
            return None
        if not report.exists():
            raise SystemExit(f"{test}: pytest exited with {code} and left no report")
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                return f"{case.get('classname')}.{case.get('name')}"
        return "" if code in (0, 5) else f"{test}: exit code {code}"

    def _run(self, words: Sequence[str], limit_s: float) -> int | None:
        """The exit code, None when it had to be ended."""
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        environ["PATH"] = f"{self.tree}/.venv/bin:{environ['PATH']}"
        with (self.tree / "last.log").open("w") as log:
            done = subprocess.Popen(
                words, cwd=self.tree, env=environ, stdout=log, stderr=log, start_new_session=True
            )
        try:
            return done.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGINT)  # fixtures end what they started
        try:
            done.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            done.wait()
        return None


def judge(runner: Runner, number: int, one: Mutation, budget_s: float) -> dict[str, object]:
    """Makes the mutation, runs its tests, takes it back."""
    tests = chosen_tests(runner.tree, one.path)
    tests = [test for test in tests if runner.passes_unchanged(test, budget_s)]
    file = runner.tree / one.path
    text, times = file.read_text(), file.stat()
    facts: dict[str, object] = {"number": number, **one._asdict(), "tests": len(tests)}
    invalid = {**facts, "result": "invalid"}
    began_s, whole, killer = time.monotonic(), bool(tests), ""
    try:
        file.write_text(text[: one.offset] + one.after + text[one.offset + len(one.before) :])
        # bytecode is told from source by whole seconds and size
        os.utime(file, (times.st_mtime + 2 + number, times.st_mtime + 2 + number))
        if one.path.endswith(".c") and not runner.set_up():
            return invalid
        if one.path.endswith(".py"):
            compile(file.read_text(), str(file), "exec")
        began_s = time.monotonic()  # compiling the core is no part of the budget
        for test in tests:
            left_s = began_s + budget_s - time.monotonic()
            failed = runner.failure(test, left_s) if left_s > 0 else None
            whole = whole and failed is not None
            killer = failed or ""
            if killer or not whole:
                break
    except SyntaxError:
        return invalid
    finally:
        file.write_text(text)
        os.utime(file, (times.st_atime, times.st_mtime))
        if one.path.endswith(".c") and not runner.set_up():
            raise SystemExit("the core does not compile without the mutation")
    took = round(time.monotonic() - began_s, 1)
    result = "killed" if killer else "survived"
    return {**facts, "result": result, "by": killer, "whole": whole, "seconds": took}


def copy_of(revision: str) -> Path:
    """A copy of the revision with a .venv of its own; one that is there gets its files anew, for a
    run that was killed may have left a mutation in it."""
    git = ["git", "-C", str(CHECKOUT)]
    done = subprocess.run([*git, "rev-parse", f"{revision}^{{commit}}"], stdout=-1, check=True)
    tree = FOLDER / done.stdout.decode().strip()[:12]
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run([*git, "archive", revision], stdout=-1, check=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    if not Runner(tree).set_up():
        raise SystemExit(f"no .venv could be made: see {tree / 'last.log'}")
    return tree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("revision")
    for name, kind, default in (("count", int, 200), ("seed", int, 1), ("budget", float, 60.0)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of a job in the background
    tree = copy_of(chosen.revision)
    paths = sorted({str(one.relative_to(tree)) for glob in TARGETS for one in tree.glob(glob)})
    every = [one for path in paths for one in mutations_of(path, (tree / path).read_text())]
    picked = random.Random(chosen.seed).sample(every, min(chosen.count, len(every)))
    results = tree / f"results-{chosen.seed}.jsonl"
    results.touch()
    done = [json.loads(line) for line in results.read_text().splitlines()]
    known = {one["number"] for one in done}
    runner = Runner(tree)
    for number, one in enumerate(picked):
        if number in known:
            continue
        done.append(judge(runner, number, one, chosen.budget))
        with results.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        print(f"{number + 1}/{len(picked)} {done[-1]['result']} {one.path}:{one.line}", flush=True)
    print(Counter(one["result"] for one in done), f"of {len(every)} possible ones: {results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
