"""Jobs of two ranks that hang, each in another way, over torch's backends and mpi4py.

Rank 1 is to blame: in a script of its own, in the line that ends with `# here`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.launcher.support.local.local_runs import PROCESS, LocalRun, Start
from tests.support.mpi import chosen
from tests.support.waiting import wait_until

START_S = 120.0  # importing torch on a busy machine
ROWS = "rows"  # of the mount whose server is silent
_TORCH = """\
import ctypes, os, queue, tempfile, threading, time
import torch
import torch.distributed as dist
if os.environ["SM_HP_BACKEND"] == "muster":
    import muster_collectives.torch
dist.init_process_group(os.environ["SM_HP_BACKEND"])
rank, x, more, large = dist.get_rank(), torch.ones(4), torch.ones(8), torch.ones(1 << 24)
"""
_MPI = """\
import ctypes, os, queue, tempfile, threading, time
from array import array
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, x, y, more = comm.rank, array("f", [1] * 4), array("f", [1] * 8), array("f", [1] * 1000)
"""
_REST = """\
def step():
    {step}
for _ in range(3):
    step()
print("ready on", rank, flush=True)
"""
_OF_TORCH = {
    "step": "dist.all_reduce(x)",
    "broadcast": "dist.broadcast(x, 0)",
    "gather": "dist.all_gather([x.clone(), x.clone()], x)",
    "more": "dist.all_reduce(more)",
    "send": "dist.send(large, 1)",
    "unreceived": "time.sleep(600)",
}
_OF_MPI = {
    "step": "comm.Allreduce(x, y[:4])",
    "broadcast": "comm.Bcast(x, 0)",
    "gather": "comm.Allgather(x, y)",
    "more": "comm.Allreduce(more, array('f', more))",
    "send": "comm.Ssend(x, 1)",
    "unreceived": "comm.Barrier()",
}


class Backend(NamedTuple):
    """`begin`: of the script. `calls`: how it makes each. `options`: by the number of hosts."""

    begin: str
    calls: Mapping[str, str]
    distribution: str
    options: Mapping[int, Sequence[str]]


_PLACES = {1: ("--processes-per-host", "2", *PROCESS), 2: ("--hosts", "2", *PROCESS)}
BACKENDS = {
    "gloo": Backend(_TORCH, _OF_TORCH, "torch_distributed", _PLACES),
    "muster": Backend(_TORCH, _OF_TORCH, "torch_distributed", _PLACES),
    "mpi4py": Backend(
        _MPI,
        _OF_MPI,
        "mpi",
        {**_PLACES, 2: ("--hosts", "2", "--processes-per-host", "1", "--isolation", "netns")},
    ),
}


class Hang(NamedTuple):
    """`guilty`: what rank 1 does. `others`: what rank 0 does. `differs`: they call different
    things, which a library may notice by itself. `works`: rank 1 computes."""

    guilty: str
    others: str = "{step}"
    differs: bool = False
    works: bool = False


HANGS = {
    "skips a call and goes on": Hang("{broadcast}  # here\ntime.sleep(600)", differs=True),
    "calls in another order": Hang("{gather}  # here\n{step}", differs=True),
    "calls with another shape": Hang("{more}  # here", differs=True),
    "sleeps before it": Hang("time.sleep(600)  # here"),
    "loops in Python": Hang("while True: pass  # here", works=True),
    "holds the GIL in C": Hang(  # in a call that no signal ends
        "c, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)\n"
        "c.pthread_mutex_lock(mutex)\nc.pthread_mutex_lock(mutex)  # here"
    ),
    "is stopped": Hang("os.kill(os.getpid(), 19)  # here"),
    "waits for a lock": Hang("lock = threading.Lock()\nlock.acquire()\nlock.acquire()  # here"),
    "waits for its loader": Hang("queue.Queue().get()  # here"),
    "waits for a FIFO": Hang(
        "path = tempfile.mkdtemp() + '/pipe'\nos.mkfifo(path)\nopen(path)  # here"
    ),
    "reads a dead mount": Hang(
        "try:\n    os.read(rows, 4096)  # here\nfinally:\n    time.sleep(600)"
    ),
    "does not receive": Hang("{unreceived}  # here", "{send}"),
}


def script_of(hang: Hang, backend: Backend) -> str:
    """The program of both ranks."""

    def lines(text: str) -> str:
        return "".join(f"    {line}\n" for line in text.format(**backend.calls).splitlines())

    begin = begin_of(backend)
    if "rows" in hang.guilty:
        begin += "rows = os.open(os.environ['SM_HP_ROWS'], os.O_RDONLY) if rank else 0\n"
    return f"{begin}if rank == 1:\n{lines(hang.guilty)}else:\n{lines(hang.others)}"


def begin_of(backend: Backend) -> str:
    """Until the ranks know one another, and have made their first steps."""
    return backend.begin + _REST.format(**backend.calls)


def start_job(
    start: Start, home: Path, backend: str, hosts: int, script: str, **environ: str
) -> LocalRun:
    """Two ranks."""
    made = BACKENDS[backend]
    (home / "train.py").write_text(script)
    options = [*made.options[hosts], "--distribution", made.distribution]
    options += ["--hyperparameter", f"backend={backend}"]
    options += ["--hyperparameter", f"rows={home / 'mount' / ROWS}"]
    if backend == "mpi4py":
        environ = {**chosen("5.0.11").environ, **environ}
    return start(home, ("train.py", *options), environ=environ)


def wait_ready(run: LocalRun) -> None:
    """Until both ranks have made their first steps."""

    def ready() -> bool:
        return run.process.poll() is not None or run.out.count("ready on") == 2

    wait_until(ready, START_S, lambda: run.err)
    run.trace.look()


def here(home: Path) -> str:
    """`train.py:41`: the line that is to be named."""
    lines = (home / "train.py").read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.endswith("# here")]
    return f"train.py:{line}"
