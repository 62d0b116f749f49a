"""Makes mutations in a copy of a revision, compiles them, and runs tests there."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks.mutations.choice import chosen_tests
from benchmarks.mutations.sites import CORE, Mutation

_PYTEST = (".venv/bin/python", "-m", "pytest", "-q", "-x", "-m", "not long and not effort",
           "-o", "junit_family=xunit1")  # fmt: skip
_MEASURED_S = 45.0  # for the tests of one file without a mutation
_SIGINT_S = 20.0  # for fixtures to end what they started


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


class Case(NamedTuple):
    """A test that ran."""

    name: str
    passed: bool
    took_s: float


class Runner:
    """Makes mutations and runs tests in the copy `tree` of a revision. `known`: of each file of
    tests those that pass without a mutation, and what they take; all copies share it."""

    def __init__(self, tree: Path, budget_s: float, known: dict[str, dict[str, float]]) -> None:
        self.tree, self._core, self._budget_s, self._known = tree, Core(tree), budget_s, known

    def measure(self, file: str) -> None:
        """Notes which tests of the file pass; what does not end in time is left out."""
        code, cases = self._cases(["--maxfail=1000", file], _MEASURED_S)
        if code == 4:  # of pytest: what it was asked makes no sense; with a mutation: no import
            raise SystemExit(f"pytest takes no such tests: see {self.tree / 'last.log'}")
        self._known[file] = {one.name: one.took_s for one in cases if one.passed}

    def judge(self, number: int, one: Mutation) -> dict[str, object]:
        """What the tests say of it; the tree is afterwards as it was."""
        began_s = time.monotonic()
        units, files = chosen_tests(self.tree, one.path)
        groups = [self._passing(units), self._passing(files, self._budget_s / 3)]
        killer, whole = "", False
        with self._mutated(one, number) as valid:
            if valid:
                killer, whole = self._killer(*groups)
        return {
            "number": number, **one._asdict(), "tests": sum(map(len, groups)),
            "result": "killed" if killer else "survived" if valid else "invalid",
            "by": killer, "whole": whole, "seconds": round(time.monotonic() - began_s, 1),
        }  # fmt: skip

    def _passing(self, files: Sequence[str], longest_s: float = 0.0) -> list[str]:
        """The tests of the files in order; with a limit the quickest first."""
        found = [pair for file in files for pair in self._known.get(file, {}).items()]
        if longest_s:
            found = sorted((x for x in found if x[1] < longest_s), key=lambda pair: pair[1])
        return [name for name, _ in found]

    @contextmanager
    def _mutated(self, one: Mutation, number: int) -> Iterator[bool]:
        """Whether what was made of the file compiles."""
        file = self.tree / one.path
        text, times = file.read_text(), file.stat()
        new_s = (
            times.st_mtime + 2 + number
        )  # bytecode is told from source by whole seconds and size
        try:
            file.write_text(one.apply(text))
            os.utime(file, (new_s, new_s))
            yield self._compiles(file)
        finally:
            file.write_text(text)
            os.utime(file, (times.st_atime, times.st_mtime))
            assert self._compiles(file), f"{one.path} does not compile without a mutation"

    def _compiles(self, file: Path) -> bool:
        if file.suffix == ".c":
            return self._core.remade(file)
        try:
            compile(file.read_text(), str(file), "exec")
        except SyntaxError:
            return False
        return True

    def _killer(self, units: Sequence[str], others: Sequence[str]) -> tuple[str, bool]:
        """The test that fails, and whether the budget was enough for all."""
        end_s = time.monotonic() + self._budget_s
        for tests in (units, others):
            left = tests
            while left:
                failed = self._failure(left, end_s - time.monotonic())
                if failed is None:
                    return "", False
                if not failed:
                    break
                if tests is units or self._failure([failed], self._budget_s) != "":
                    return failed, True
                left = [test for test in left if test != failed]  # it was the machine's
        return "", True

    def _failure(self, tests: Sequence[str], limit_s: float) -> str | None:
        """The first test that fails, "" when all pass, None when the time ran out."""
        code, cases = self._cases(tests, limit_s) if limit_s > 1 else (None, [])
        if failed := [one.name for one in cases if not one.passed]:
            return failed[0]
        return None if code is None else "" if code == 0 else tests[0]

    def _cases(self, words: Sequence[str], limit_s: float) -> tuple[int | None, list[Case]]:
        report = self.tree / "report.xml"
        report.unlink(missing_ok=True)
        timeout = f"--timeout={round(self._budget_s / 3)}"  # a test that hangs has noticed as well
        code = run_in(self.tree, [*_PYTEST, timeout, f"--junitxml={report}", *words], limit_s)
        found = ElementTree.parse(report).iter("testcase") if report.exists() else ()
        return code, [
            Case(f"{one.get('file') or words[0]}::{one.get('name')}",
                 not {"failure", "error"} & {part.tag for part in one}, float(one.get("time") or 0))
            for one in found if one.get("name") and one.find("skipped") is None
        ]  # fmt: skip


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
