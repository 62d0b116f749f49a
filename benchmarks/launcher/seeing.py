"""Who is stuck, on request: of a real job of 2 x 2 ranks, beside py-spy once per rank,
which names nobody; of 1,000 hosts; and `muster.local.run` over the command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import muster.local
from benchmarks.launcher.jobs import environ
from benchmarks.table import Row, under
from benchmarks.timing import interleaved, wall
from muster.run.channel.messages import Reply
from muster.run.observe import codec
from muster.run.observe.query import ROLL, Collector, to_json
from muster.run.observe.rollcall import call_roll
from tests.launcher.support.looks import call, look
from tests.support.venvs import CHECKOUT, locked_environment
from tests.support.waiting import wait_until

HOSTS, EACH = 1000, 8
LATE = 4321  # the rank that has not come
READY_S, LIMIT_S = 120.0, 60.0
NUMBER = 7
# rank 2, the first of the second host, stays out of the second sum
_HANGS = """\
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(2):
    if step and dist.get_rank() == 2:
        time.sleep(600)
    print("step", step, flush=True)
    dist.all_reduce(torch.ones(4))
"""


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    folder.mkdir(exist_ok=True)
    yield _guilty(folder / "guilty", rounds)
    yield from _thousand_hosts()
    yield _python(folder / "python", rounds)


def _guilty(folder: Path, rounds: int) -> Row:
    folder.mkdir()
    script = folder / "hangs.py"
    script.write_text(_HANGS)
    spy = locked_environment("peers", CHECKOUT / "constraints" / "peers.txt") / "bin" / "py-spy"
    with muster.local.start(
        str(script), hosts=2, processes=2, distribution="torch_distributed", isolation="process",
        output=str(folder / "run"),
    ) as job:  # fmt: skip
        pids: list[int] = []

        def stuck() -> bool:
            done = _muster("stacks", job.folder)
            if done.returncode or json.loads(done.stdout)["verdict"]["guilty"] != [2]:
                return False
            pids[:] = [row["pid"] for row in json.loads(_muster("ps", job.folder).stdout)["ranks"]]
            return True

        wait_until(stuck, READY_S)

        def ours() -> float:
            began = time.monotonic()
            done = _muster("stacks", job.folder)
            took = time.monotonic() - began
            guilty = json.loads(done.stdout)["verdict"]["guilty"]
            if guilty != [2]:
                raise RuntimeError(f"rank 2 is stuck, and {guilty} are named")
            return took

        def peer() -> float:
            env = environ(Path(sys.executable).parent)
            return sum(wall([str(spy), "dump", "--pid", str(pid)], env) for pid in pids)

        times = interleaved({"ours": ours, "py-spy": peer}, rounds)
    peers = {"py-spy, once per rank": times["py-spy"].median}
    value = times["ours"].median
    return Row(
        "guilty rank named, 2 hosts x 2, on request", "s", value, peers,
        (under(value, 5.0, "s"),),
        f"median of {rounds} `muster stacks --json`, with the start of Python; py-spy shows stacks "
        "and names no rank",
    )  # fmt: skip


def _muster(name: str, folder: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "muster", name, folder, "--json"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def _thousand_hosts() -> Iterator[Row]:
    world = tuple(range(HOSTS * EACH))
    lines = tuple(f"/usr/lib/python3/site-packages/p/m{n}.py:{n} f{n}" for n in range(30))
    sent = {}
    for host in range(HOSTS):
        looks = [
            look(
                rank,
                call(5 if rank == LATE else 6, running=rank != LATE, ranks=world),
                at=("data.py:12 load",) if rank == LATE else ("train.py:41 main", *lines),
            )
            for rank in range(host * EACH, host * EACH + EACH)
        ]
        parts = codec.pack(to_json(looks, {one.rank: 1.5 for one in looks}, ROLL))
        sent[host] = [Reply(NUMBER, at, len(parts), text) for at, text in enumerate(parts)]
    size_kb = sum(len(reply.text) for parts in sent.values() for reply in parts) / 1000
    took_s = _roll(sent)
    tracemalloc.start()
    _roll(sent)
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    what = f"{HOSTS:,} simulated hosts x {EACH}: signatures and verdict"
    detail = f"{size_kb:,.0f} kB of answers, from packed to the verdict, in one process"
    yield Row(what, "s", took_s, {}, (under(took_s, 15.0, "s"),), detail)
    yield Row(f"{what}, memory", "MB", peak_mb, {}, (under(peak_mb, 256.0, "MB"),),
              "peak of what Python allocated, in another pass")  # fmt: skip


def _roll(sent: dict[int, list[Reply]]) -> float:
    """Seconds."""
    began = time.monotonic()
    of_host = {host: (f"algo-{host + 1}", range(host * EACH, host * EACH + EACH)) for host in sent}
    asked = Collector(NUMBER, of_host, HOSTS * EACH, LIMIT_S)
    for host, parts in sent.items():
        for reply in parts:
            asked.take(host, reply)
    guilty = call_roll(asked.looks, asked.silent()).guilty
    if guilty != (LATE,):
        raise RuntimeError(f"rank {LATE} has not come, and {guilty} are named")
    return time.monotonic() - began


def _python(folder: Path, rounds: int) -> Row:
    code = folder / "code"
    code.mkdir(parents=True)
    script = code / "noop.py"
    script.write_text("pass\n")
    numbers = count()

    def output() -> str:
        return str(folder / f"run-{next(numbers)}")

    def command() -> float:
        argv = [sys.executable, "-m", "muster", "local", str(script), "--isolation", "process"]
        return wall([*argv, "--output", output()], environ(Path(sys.executable).parent))

    def function() -> float:
        began = time.monotonic()
        result = muster.local.run(str(script), isolation="process", quiet=True, output=output())
        if result.exit_code:
            raise RuntimeError(f"muster.local.run ended with {result.exit_code}")
        return time.monotonic() - began

    times = interleaved({"command": command, "function": function}, rounds)
    more = times["function"].median - times["command"].median
    return Row(
        "`muster.local.run` from a warm Python over the command", "s", more, {},
        (under(more, 0.1, "s"),),
        f"medians of {rounds} in turns: {times['function'].median:.3f} and "
        f"{times['command'].median:.3f} s",
    )  # fmt: skip
