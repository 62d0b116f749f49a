"""F61: the clock of the wall jumps, and nothing depends on it."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import muster
from tests.support.cluster import Cluster, lines
from tests.support.sabotage import train_after

Make = Callable[..., Cluster]

JUMPING = (
    "import time\n"
    "real, calls = time.time, []\n"
    "def jumps():\n"
    "    calls.append(1)\n"
    "    return real() + (7200 if len(calls) % 2 else -7200)\n"
    "time.time = jumps\n"
)


@pytest.mark.promise("F61")
def test_a_clock_that_jumps_by_hours_changes_nothing(cluster: Make) -> None:
    job = cluster("import time\ntime.sleep(1)\nprint('ran')\n")
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")
    job.start(command=train_after(JUMPING))
    results = job.wait(20)
    events = (job.folder / "run" / "events.jsonl").read_text().splitlines()
    stamps = [json.loads(line)["time"] for line in events]
    assert max(stamps) - min(stamps) > 14000  # the clock did jump
    assert {(r.code, r.out) for r in results.values()} == {(0, "ran\n")}
    for result in results.values():
        assert not [*lines(result.err, "lost"), *lines(result.err, "connection of")]


@pytest.mark.promise("F61")
def test_the_wall_clock_is_read_for_stamps_only() -> None:
    root = Path(muster.__file__).parent
    readers = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] in ("run", "stage", "train_job", "contract", "plan", "spec"):
            readers += [(name, function) for function in wall_clock_readers(path)]
    assert readers == [("run/record.py", "event")]


@pytest.mark.promise("F61")
def test_the_gate_sees_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("import time\nfrom time import time as now\ndef f():\n    return time.time()\n")
    assert wall_clock_readers(path) == ["import", "f"]


def wall_clock_readers(path: Path) -> list[str]:
    """The functions of a file that read the wall clock; "import" for one by another name."""
    found = []
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += ["import" for alias in node.names if alias.name in ("time", "time_ns")]
        if isinstance(node, ast.FunctionDef):
            found += [node.name for inner in ast.walk(node) if _reads_wall_clock(inner)]
    return found


def _reads_wall_clock(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    owner, name = node.value.id, node.attr
    return (owner == "time" and name in ("time", "time_ns")) or (
        owner in ("datetime", "date") and name in ("now", "utcnow", "today")
    )
