"""F61: the clock of the wall jumps, and nothing depends on it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import muster
from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.records import events, keep_record
from tests.launcher.support.sabotage import train_after

Make = Callable[..., Cluster]


def let_the_clock_jump() -> None:
    import time
    from itertools import cycle

    real, jumps = time.time, cycle((7200, -7200))
    time.time = lambda: real() + next(jumps)


@pytest.mark.promise("F61")
def test_a_clock_that_jumps_by_hours_changes_nothing(cluster: Make) -> None:
    job = cluster("import time\ntime.sleep(1)\nprint('ran')\n")
    keep_record(job)
    job.start(command=train_after(let_the_clock_jump))
    results = job.wait(20)
    stamps = [event["time"] for event in events(job)]
    assert max(stamps) - min(stamps) > 14000  # the clock did jump
    assert {(r.code, r.out) for r in results.values()} == {(0, "ran\n")}
    for result in results.values():
        assert not [*lines(result.err, "lost"), *lines(result.err, "connection of")]


WALL = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime",
             "clock_gettime", "clock_gettime_ns", "clock_settime"},
    "datetime.datetime": {"now", "utcnow", "today"},
    "datetime.date": {"today"},
}  # fmt: skip
READS = {f"{owner}.{name}" for owner, names in WALL.items() for name in names}
READERS = {  # stamps for people and programs, and what `doctor` says of the clock itself
    ("run/base/record.py", "event"),
    ("run/base/console.py", "format_line"),
    ("local/record/runfolder.py", "make_run_folder"),
    ("local/record/command_file.py", "write_command"),  # when a run began, for `muster history`
    ("local/record/history.py", "started"),
    ("commands/sbom.py", "_timestamp"),
    ("commands/doctor_facts.py", "look"),
    ("commands/doctor_checks.py", "clock"),
}


@pytest.mark.promise("F61")
def test_the_wall_clock_is_read_for_stamps_only() -> None:
    root = Path(muster.__file__).parent
    readers = set()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        readers |= {(name, where) for where in wall_clock_readers(path.read_text())}
    assert readers == READERS


@pytest.mark.promise("F61")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("import time\ndef f():\n    return time.time()", "f"),
        ("import time\ndef f():\n    def g(): return time.time_ns()", "g"),
        ("import time\nclass A:\n    async def f(self): return time.localtime()", "f"),
        ("import time\nbegan = time.time()", "<module>"),
        ("import time\nclass A:\n    clock = time.time", "<module>"),
        ("import time\nnow = lambda: time.clock_gettime(0)", "<module>"),
        ("import time\ndef f(now=time.time): pass", "f"),
        ("import time as t\nx = t.time()", "<module>"),
        ("def f():\n    import time as t\n    return t.strftime('%Y')", "f"),
        ("from time import time as now\nx = now()", "<module>"),
        ("from time import time_ns", "<module>"),
        ("from time import *", "<module>"),
        ("import datetime\nx = datetime.datetime.now()", "<module>"),
        ("import datetime as d\nx = d.date.today()", "<module>"),
        ("from datetime import datetime\nx = datetime.utcnow()", "<module>"),
        ("from datetime import datetime as d\nx = d.now", "<module>"),
        ("import time\nx = getattr(time, 'time')()", "<module>"),
    ],
)
def test_the_gate_sees_a_reader(text: str, where: str) -> None:
    assert wall_clock_readers(text) == {where}


@pytest.mark.promise("F61")
@pytest.mark.parametrize(
    "text",
    ["import time\nx = time.monotonic()", "from time import monotonic, sleep",
     "self.time.time()", "time = 3\nx = event.time", "from datetime import timedelta"],
)  # fmt: skip
def test_the_gate_sees_nothing_else(text: str) -> None:
    assert not wall_clock_readers(text)


def wall_clock_readers(text: str) -> set[str]:
    """The innermost functions of a source that refer to the wall clock under any name of it;
    `<module>` for what stands in none."""
    tree = ast.parse(text)
    names = _names_of_modules(tree)
    return set(_readers(tree, "<module>", names))


def _names_of_modules(tree: ast.AST) -> dict[str, str]:
    """What each imported name of a source stands for: `t` for `time`, `d` for `datetime.date`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def _readers(node: ast.AST, where: str, names: dict[str, str]) -> Iterator[str]:
    for inner in ast.iter_child_nodes(node):
        function = isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
        there = inner.name if function else where  # type: ignore[attr-defined]
        if _reads_wall_clock(inner, names):
            yield there
        yield from _readers(inner, there, names)


def _reads_wall_clock(node: ast.AST, names: dict[str, str]) -> bool:
    if isinstance(node, ast.ImportFrom):
        taken = {f"{node.module}.{alias.name}" for alias in node.names}
        return bool(taken & READS) or "time.*" in taken
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
        return names.get(ast.unparse(node.args[0])) in WALL
    if not isinstance(node, ast.Attribute | ast.Name):
        return False
    first, dot, rest = ast.unparse(node).partition(".")
    return first in names and names[first] + dot + rest in READS
