"""Floods of output, and readers that stop or go away (promises F58, F59)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.sabotage import SAID, train_with_broken
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]
TRAIN = [sys.executable, "-m", "muster", "train"]

MIXED_MB, ONE_LINE_MB = 300, 200
FLOOD = (
    "import os, sys, time\n"
    "text = 'loss 0.5 é中😀 Error: no\\n' * 50 + 'bar 10%\\rbar 20%\\r\\n' + 'x' * 70000 + '\\n'\n"
    "block = (text.encode() + bytes(range(256)) * 40) * 12\n"
    "print('ready', file=sys.stderr, flush=True)\n"
    "go = os.environ['FLOOD_GO']\n"
    "until = time.monotonic() + 60\n"
    "def wait(n):\n"
    "    while not os.path.exists(go + n) and time.monotonic() < until:\n"
    "        time.sleep(0.005)\n"
    "def put(data):\n"
    "    view = memoryview(data)\n"
    "    while view:\n"
    "        view = view[os.write(1, view):]\n"
    "wait('1')\n"
    "for _ in range(int(sys.argv[2]) * 1000000 // len(block)):\n"
    "    put(block)\n"
    "for _ in range(int(sys.argv[4])):\n"
    "    put(b'y' * 1000003)\n"
    "print('flooded', file=sys.stderr, flush=True)\n"
    "wait('2')\n"
)


@pytest.mark.promise("F58")
def test_a_flood_passes_unchanged_in_constant_memory(cluster: Make) -> None:
    sizes = {"a": str(MIXED_MB), "b": str(ONE_LINE_MB)}
    job = cluster(FLOOD, hosts=1, hyperparameters=sizes)
    job.environ["FLOOD_GO"] = str(job.folder / "go")
    pipe, reader = stdout_into_a_pipe(job, "algo-1")
    found = hashlib.sha256()
    total = [0]

    def read() -> None:
        while data := os.read(reader, 1 << 20):
            found.update(data)
            total[0] += len(data)

    job.wait_for("algo-1", "ready", "err")
    thread = threading.Thread(target=read)
    thread.start()
    before = memory_kb(job.processes["algo-1"].pid, "VmRSS")
    (job.folder / "go1").touch()
    job.wait_for("algo-1", "flooded", "err", limit_s=60)
    peak = memory_kb(job.processes["algo-1"].pid, "VmHWM")
    (job.folder / "go2").touch()
    assert job.wait(20)["algo-1"].code == 0
    thread.join(10)
    os.close(reader)
    text = "loss 0.5 é中😀 Error: no\n" * 50 + "bar 10%\rbar 20%\r\n" + "x" * 70000 + "\n"
    block = (text.encode() + bytes(range(256)) * 40) * 12
    expected = hashlib.sha256()
    for _ in range(MIXED_MB * 1000000 // len(block)):
        expected.update(block)
    for _ in range(ONE_LINE_MB):
        expected.update(b"y" * 1000003)
    assert total[0] > (MIXED_MB + ONE_LINE_MB) * 990000
    assert found.digest() == expected.digest()
    assert peak - before < 5 * 1024, f"{pipe}: {before} KiB before, {peak} KiB at most"


@pytest.mark.promise("F59")
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_reader_that_stops_reading_loses_no_host(cluster: Make, host: str) -> None:
    script = "import os\nfor _ in range(64):\n    os.write(1, b'z' * 65535 + b'\\n')\n"
    job = cluster(script)
    _, reader = stdout_into_a_pipe(job, host)
    job.start(*[name for name in job.names if name != host])
    wait_until(lambda: waiting_bytes(reader) >= 60000, 20, "the pipe never filled up")
    time.sleep(3)  # the fault, longer than MUSTER_LOST_AFTER_S
    assert job.processes[host].poll() is None
    total = 0
    while data := os.read(reader, 1 << 16):
        total += len(data)
    os.close(reader)
    results = job.wait(20)
    assert {r.code for r in results.values()} == {0}, results[host].err
    assert total == 64 * 65536
    for result in results.values():
        assert not [*lines(result.err, "lost"), *lines(result.err, "connection of")]


@pytest.mark.promise("F59")
def test_a_reader_that_goes_away_does_not_end_the_job(cluster: Make) -> None:
    script = (
        "import os, sys\nfor _ in range(64):\n    os.write(1, b'z' * 65535 + b'\\n')\n"
        "print('wrote all', file=sys.stderr)\n"
    )
    job = cluster(script, hosts=1)
    _, reader = stdout_into_a_pipe(job, "algo-1")
    wait_until(lambda: waiting_bytes(reader) >= 60000, 20, "the pipe never filled up")
    os.close(reader)
    result = job.wait(20)["algo-1"]
    assert (result.code, result.success) == (0, True)
    assert "wrote all" in result.err


def stdout_into_a_pipe(job: Cluster, name: str) -> tuple[Path, int]:
    """Starts the host with its stdout in a pipe; gives back the end that the test may read."""
    path = job.folder / f"{name}.pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    job.start(name, command=["sh", "-c", 'exec "$@" > "$0"', str(path), *TRAIN])
    os.set_blocking(reader, True)
    return path, reader


def waiting_bytes(fd: int) -> int:
    """How much a pipe holds."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0])


def memory_kb(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1])


FLOODS = "import time\nfor _ in range(4096):\n    print('x' * 255)\ntime.sleep(600)\n"


@pytest.mark.promise("F68")
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("OSError(28, 'No space left on device')", 106, "LaunchError"),
        ("ValueError('x')", 105, "InternalError"),
    ],
)
def test_a_job_whose_output_nobody_passes_on_fails_and_says_why(
    cluster: Make, error: str, code: int, said: str
) -> None:
    """Without it every rank would block on a full pipe for ever."""
    job = cluster(FLOODS, hosts=1)
    job.expect(internal_error=True)
    job.start(command=train_with_broken("muster.run.base.logs:Stream.complete", error))
    result = job.wait(30)["algo-1"]
    assert SAID in result.err  # the fault
    assert result.code == code, result.err
    assert result.first_line.startswith(f"{said}: the output of ranks can no longer be passed on")
    assert result.err.rstrip().endswith(f"exit code {code}")
