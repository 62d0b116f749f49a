"""The core with its fault points compiled in, and jobs of it: what became of every rank."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.collectives.faults.fault_point_cases import LATE, Case
from tests.collectives.native.driving import CORE
from tests.collectives.support.jobs import CHECKOUT, SOURCES

CONNECT_S, CONNECT_LATE_S = 30.0, 3.0
JOB_S = 40.0
ANSWER_S = 70.0


class Outcome(NamedTuple):
    """`landed_at` on the clock of time.monotonic, None: the point was not passed often enough;
    `said[rank]` what a rank raised, None for one that ended otherwise; `late`: not in time."""

    landed_at: float | None
    codes: list[int | None]
    said: list[dict[str, Any] | None]
    errors: str
    late: list[int]
    stopped: bool
    left: list[str]


class Workshop:
    """The process from which ranks are forked."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder
        self._jobs = 0
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)

    def play(
        self, case: Case, number: int, *, limit_s: float = 25.0, abrupt: bool = False
    ) -> Outcome:
        """Runs the case with signal `number` at its point; calls have the deadline `limit_s`.
        `abrupt`: survivors end without a good-bye, as scripts do that do not expect an error."""
        self._jobs += 1
        folder = self._folder / f"job-{self._jobs}"
        folder.mkdir()
        told = {
            "folder": str(folder), "record": str(folder / "record"), "nodes": case.nodes,
            "victim": case.victim, "play": case.play, "environ": dict(case.environ),
            "fault": f"{case.point}:{case.nth}:{number}", "in_file": case.in_file,
            "connect_s": CONNECT_LATE_S if case.kinds == LATE else CONNECT_S, "limit_s": limit_s,
            "job_s": JOB_S, "abrupt": abrupt,
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        ended = json.loads(self._answers.get(timeout=ANSWER_S))
        return _outcome(folder, ended)

    def children(self) -> str:
        """The processes that it has, by number."""
        pid = self._process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()


def _outcome(folder: Path, ended: dict[str, Any]) -> Outcome:
    record, said = folder / "record", []
    for rank in range(len(ended["codes"])):
        path = folder / f"said-{rank}"
        said.append(json.loads(path.read_text()) if path.exists() else None)
    segments = [
        path.name for pid in ended["pids"] for path in Path("/dev/shm").glob(f"muster-{pid}-*")
    ]
    return Outcome(
        landed_at=int(record.read_text().split()[1]) / 1e9 if record.exists() else None,
        codes=ended["codes"], said=said, late=ended["late"], stopped=ended["stopped"],
        errors="\n".join(path.read_text() for path in sorted(folder.glob("err-*"))), left=segments,
    )  # fmt: skip


@contextmanager
def workshop(core: Path, folder: Path) -> Iterator[Workshop]:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")
    }
    path = os.pathsep.join([str(CHECKOUT), str(SOURCES), environ.get("PYTHONPATH", "")])
    environ |= {
        "PYTHONPATH": path.rstrip(os.pathsep),
        "OMP_NUM_THREADS": "1", "COLLECTIVES_CORE": str(core),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }  # fmt: skip
    argv = [sys.executable, "-m", "tests.collectives.faults.fault_point_worker"]
    with subprocess.Popen(
        argv, env=environ, cwd=CHECKOUT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Workshop(process, folder)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def faulty_core(folder: Path) -> Path:
    """Compiled as a wheel's core is, but for the points and for speed; skips without a compiler."""
    hook = _hatch_build()
    compiler = hook.compiler_of(os.environ)
    if not compiler:
        pytest.skip("no C compiler")
    made = folder / "libmuster_core.so"
    environ = {**os.environ, "MUSTER_CFLAGS": "-DMC_FAULT_POINTS -O0"}
    failed = hook.compile_core(compiler, CORE, made, environ)
    assert not failed, failed
    return made


def _hatch_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", CORE.parent / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
