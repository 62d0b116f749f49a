"""Python scripts as processes forked from one that has imported already what takes seconds.

    server = ForkServer(environ, "torch.distributed")
    process = server.start([script, *arguments], environ, out, err)
    process.wait(10)

A script finds what it would find in a fresh interpreter, but for modules that are imported already
and what an interpreter reads when it starts: its hash seed, PYTHONPATH and other PYTHON* variables.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
# what ranks of torch import, most of it lazily: torch._dynamo comes with the first optimizer
TORCH = (
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "torch.fx.experimental.symbolic_shapes",
)
HOLDERS = ("torch.distributed",)  # modules that hold groups, which come to their end with them
START_S = 300.0  # to compile and import an SDK on a machine that others keep busy


class ForkServer:
    """The process that is forked, started with `environ`: its PYTHONPATH is that of every script.

    It imports `modules` and ends with the process that made it.
    """

    def __init__(
        self, environ: Mapping[str, str], *modules: str, python: str = sys.executable
    ) -> None:
        self._ends: dict[int, int] = {}
        self._heard = b""
        self._process = subprocess.Popen(
            [python, __file__, *modules], env=environ, cwd=CHECKOUT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def start(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        out: Path,
        err: Path | None = None,
        folder: Path = CHECKOUT,
    ) -> Forked:
        """`python argv`, a script or `-m MODULE`, in a session and a working folder of its own,
        without input. `err` None: both streams are one."""
        streams = {"out": str(out), "err": err and str(err)}
        asked = {"argv": list(argv), "environ": dict(environ), "folder": str(folder), **streams}
        assert self._process.stdin
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        end = time.monotonic() + START_S
        while (said := self._said(end - time.monotonic())) is not None:
            if "started" in said:
                self._ends.pop(said["started"], None)  # of an earlier process of that number
                return Forked(self, said["started"], argv)
        raise AssertionError(f"no process was forked within {START_S:g} s")

    def code(self, pid: int, limit_s: float) -> int | None:
        """As `subprocess` has it, None when the process has not ended within that time."""
        end = time.monotonic() + limit_s
        while pid not in self._ends:
            if self._said(max(0.0, end - time.monotonic())) is None:
                return None
        return self._ends[pid]

    def close(self) -> None:
        """Ends the server, not what was forked."""
        for file in (self._process.stdin, self._process.stdout):
            assert file
            file.close()
        self._process.wait(START_S)

    def _said(self, limit_s: float) -> dict[str, Any] | None:
        """One line of the server, None when none comes in time."""
        assert self._process.stdout
        number, end = self._process.stdout.fileno(), time.monotonic() + limit_s
        while b"\n" not in self._heard:
            if not select.select([number], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            some = os.read(number, 65536)
            assert some, f"the fork server ended with {self._process.wait()}"
            self._heard += some
        line, _, self._heard = self._heard.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if "ended" in said:
            self._ends[said["ended"]] = said["code"]
        return said


class Forked:
    """A process of the server, with what tests use of Popen."""

    stdin = None

    def __init__(self, server: ForkServer, pid: int, args: Sequence[str]) -> None:
        self._server, self.pid, self.args = server, pid, [sys.executable, *args]
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self._server.code(self.pid, 0) is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """The exit code, None where it has not ended."""
        self.returncode = self._server.code(self.pid, 0)
        return self.returncode

    def wait(self, limit_s: float = START_S) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        self.returncode = self._server.code(self.pid, limit_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), limit_s)
        return self.returncode


# --- in the server


def serve(tests: int) -> list[str] | None:
    """Forks for each line of stdin: returns argv in the process that runs it, None at the end.
    `tests`: the descriptor that is told of starts and ends."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    asked = b""
    while True:
        readable, _, _ = select.select([0, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _report_ends(tests)
        if 0 in readable:
            asked += (some := os.read(0, 65536))
            if not some:
                return None
            *lines, asked = asked.split(b"\n")
            for line in lines:
                pid = os.fork()
                if not pid:
                    os.close(tests)
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    return _become(**json.loads(line))
                _say(tests, {"started": pid})


def _report_ends(tests: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _say(tests, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(tests: int, line: Mapping[str, int]) -> None:
    os.write(tests, json.dumps(line).encode() + b"\n")


def _become(
    argv: list[str], environ: dict[str, str], folder: str, out: str, err: str | None
) -> list[str]:
    os.setsid()
    os.chdir(folder)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o644) if path else os.dup(1)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[:] = argv
    sys.path[0] = folder if argv[0] == "-m" else str(Path(argv[0]).parent)
    return argv


# A fork ends as any interpreter does: it waits for threads, calls exit handlers, takes apart what
# the script has made and imported. What both functions leave out is the same at every end, writes
# to what all forks share, which is copied then, and takes 0.2 s of a processor.


def _keep(shared: Collection[str]) -> None:
    """The interpreter does not take apart what these modules hold: it is not told of them."""
    modules = [sys.modules.pop(name) for name in shared if name in sys.modules]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))


def _leave_early() -> None:
    """The process is over where the exit handlers of libraries that are loaded by now would begin:
    those of libtorch give back its operators one by one. Libraries to come have theirs called."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # with the status that the process has
    libc.__cxa_atexit(libc.fflush, None, None)  # what C has still to write


if __name__ == "__main__":
    sys.path[0] = str(CHECKOUT)
    to_tests = os.dup(1)
    os.dup2(2, 1)  # what modules say when they are imported
    shared: set[str] = set()
    atexit.register(_keep, shared)  # called after all that modules and scripts register
    before = set(sys.modules)
    for module in sys.argv[1:]:
        importlib.import_module(module)
    shared |= {name for name in set(sys.modules) - before if not name.startswith(HOLDERS)}
    gc.freeze()  # no fork has to look at, and so to copy, what was imported
    _leave_early()
    if script := serve(to_tests):
        if script[0] == "-m":
            sys.argv[:2] = [script[1]]
            runpy.run_module(script[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script[0], run_name="__main__")
