"""Shims, steps and early signals: what the supervisor does when one of its own parts breaks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from muster.run.base.logs import Pump
from muster.run.base.loop import Loop
from muster.run.base.reaper import Reaper
from muster.run.child import rank_shim
from muster.run.child.shim_handle import ShimHandle
from muster.run.child.shims import ShimPool
from muster.run.child.steps import Steps
from muster.run.child.stopped import StoppedShims
from muster.types.errors import LaunchError, StoppedError
from muster.types.steps import StepResult
from tests.launcher.support.cluster import Cluster
from tests.launcher.support.sabotage import train_after
from tests.support.effort import collect_garbage
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]


class House:
    """A pool with its loop and reaper, and what it told."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.pump = Pump()
        self.seen: list[ShimHandle] = []
        self.ended: list[ShimHandle] = []
        self.never_registered: list[str] = []
        self.fds: list[int] = []
        self.pool = ShimPool(self.loop)
        self.pool.serve(self, self._changed)
        self.steps = Steps(self.loop, self.pool, self.pump)
        self.reaper = Reaper(
            self.loop,
            self.pool.shims.__contains__,
            self.pool.shim_ended,
            self.pool.adopted,
        )
        self._before = signal.signal(
            signal.SIGCHLD, lambda _number, _frame: self.loop.post(self.reaper.look)
        )

    def registered(self, handle: ShimHandle, out_fd: int, err_fd: int) -> None:
        self.seen.append(handle)
        self.fds += [out_fd, err_fd]

    def exited_before_register(self, role: str) -> None:
        self.never_registered.append(role)

    def _changed(self, handle: ShimHandle) -> None:
        if handle.child is not None:
            handle.child.changed()
        elif handle.ended:
            self.ended.append(handle)

    def until(self, condition: Callable[[], bool], limit_s: float = 10) -> None:
        end = time.monotonic() + limit_s

        def look() -> None:
            if condition() or time.monotonic() >= end:
                self.loop.stop()
            else:
                self.loop.after(0.005, look)

        self.loop.after(0, look)
        self.loop.run()
        assert condition()

    def shim(self) -> socket.socket:
        """A connection that has said a true hello."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.pool.path)
        token = self.pool.variable.partition(" ")[2].encode()
        read, write = os.pipe()
        hello = [b"hello", b"rank:0", token, b"1"]
        rank_shim.send(sock, hello, (read, os.dup(read)))
        os.close(read)
        os.close(write)
        self.until(lambda: bool(self.seen))
        return sock

    def in_thread(self, call: Callable[[], object]) -> list[object]:
        """What a call on the staging thread gave or raised."""
        answer: list[object] = []

        def run() -> None:
            try:
                answer.append(call())
            except Exception as error:
                answer.append(error)

        threading.Thread(target=run, daemon=True).start()
        return answer

    def close(self) -> None:
        self.pool.close()
        end = time.monotonic() + 5
        while self.pool.shims and time.monotonic() < end:
            self.reaper.look()
            time.sleep(0.01)
        signal.signal(signal.SIGCHLD, self._before)
        for fd in self.fds:
            os.close(fd)
        self.pump.close(5)
        self.loop.close()


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.close()
    assert not made.pool.shims
    assert not os.path.exists(made.pool.folder)


@pytest.mark.parametrize(
    "message",
    [
        b"ended\0x",
        b"ended",
        b"ended\0" + b"9" * 40,
        b"started\0-",
        b"started",
        b"failed\0" + b"9" * 12,
        b"orphan\x001",
        b"nonsense\x001",
        b"",
        b"x" * 5000,
    ],
    ids=repr,
)
def test_a_shim_that_talks_nonsense_is_a_shim_that_is_gone(house: House, message: bytes) -> None:
    with house.shim() as sock:
        sock.sendall(len(message).to_bytes(4, "big") + message)
        house.until(lambda: bool(house.ended))
    (handle,) = house.ended
    assert (handle.status, handle.connected) == (127, False)
    assert "gone" in handle.failure


def test_a_shim_that_dies_before_it_started_anything_ends_its_rank(house: House) -> None:
    house.shim().close()
    house.until(lambda: bool(house.ended))
    assert house.ended[0].status == 127


@pytest.mark.promise("S18")
@pytest.mark.parametrize(
    "hello",
    [
        [b"hello", b"rank:0", b"a wrong token", b"1"],
        [b"hello"],
        [b"goodbye", b"rank:0", b"t", b"1"],
        [b""],
    ],
    ids=repr,
)
def test_who_does_not_know_the_token_is_dropped_with_its_descriptors(
    house: House, hello: list[bytes]
) -> None:
    collect_garbage()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(house.pool.path)
        read, write = os.pipe()
        rank_shim.send(sock, hello, (read, write))
        os.close(read)
        os.close(write)
        house.until(lambda sock=sock: is_closed(sock))  # type: ignore[misc]
        sock.close()
    assert not house.seen
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_connection_that_has_said_nothing_yet_is_closed_with_the_pool() -> None:
    house = House()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(house.pool.path)
        before = len(os.listdir("/proc/self/fd"))
        house.until(lambda: len(os.listdir("/proc/self/fd")) > before)  # accepted
        house.close()
        assert is_closed(sock)


def test_descriptors_of_a_hello_that_is_not_whole_are_closed_once() -> None:
    """A job that is broken off closes the pool, and so does its end."""
    house = House()
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as sock, open(os.devnull) as null:
        sock.connect(house.pool.path)
        mine = len(os.listdir("/proc/self/fd"))
        socket.send_fds(sock, [(100).to_bytes(4, "big") + b"half"], [null.fileno()] * 2)
        house.until(lambda: len(os.listdir("/proc/self/fd")) >= mine + 3)  # accepted, and read
        house.pool.close()
        house.close()
        assert is_closed(sock)
    assert len(os.listdir("/proc/self/fd")) <= before


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_orders_wait_for_a_stopped_shim_and_reach_it_whole(house: House) -> None:
    with house.shim() as sock:
        (handle,) = house.seen
        began = time.monotonic()
        handle.start(["true"], {"BIG": "x" * (4 << 20)}, "/")
        handle.signal(signal.SIGTERM)
        handle.kill()
        assert time.monotonic() - began < 1.5  # 4 MiB are copied; nothing is waited for
        got: list[list[bytes] | None] = []
        reader = threading.Thread(
            target=lambda: got.extend(rank_shim.receive(sock) for _ in range(3))
        )
        reader.start()  # it goes on
        house.until(lambda: not reader.is_alive(), 30)
    start, stop, kill = (message or [] for message in got)
    assert start[:4] == [b"start", b"/", b"1", b"true"]
    assert start[4] == b"BIG=" + b"x" * (4 << 20)
    assert stop == [b"signal", b"15", b"script"]
    assert kill == [b"kill"]


@pytest.mark.promise("F67")
def test_a_stopped_shim_is_named_as_long_as_it_is_stopped(house: House) -> None:
    said: list[str] = []
    shims = StoppedShims(house.loop, lambda: house.pool.all, said.append, after_s=0.4)
    house.pool.spawn("rank:0", {"PATH": os.environ["PATH"]}, house)
    house.until(lambda: bool(house.seen))
    (handle,) = house.seen
    shims.begin()
    os.kill(handle.shim_pid, signal.SIGSTOP)
    house.until(lambda: bool(said))
    assert f"the process above rank:0 (PID {handle.shim_pid}) is stopped" in said[0]
    assert f"kill -CONT {handle.shim_pid}" in said[0]
    assert shims.notes == tuple(said)
    os.kill(handle.shim_pid, signal.SIGCONT)
    house.until(lambda: not shims.notes)
    assert len(said) == 1


@pytest.mark.promise("F16")
def test_a_shim_that_ends_before_it_registers_is_noticed_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.run.child.shims.SHIM", "/nonexistent.py")
    house.pool.spawn("rank:0", {"PATH": os.environ["PATH"]}, house)
    house.until(lambda: house.never_registered == ["rank:0"])
    answer = house.in_thread(lambda: house.steps(["true"], {}, "/"))
    house.until(lambda: bool(answer))
    assert isinstance(answer[0], LaunchError)


@pytest.mark.promise("F16")
def test_a_fork_that_fails_is_the_error_of_the_step(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    answer = house.in_thread(lambda: house.steps(["true"], {}, "/"))
    house.until(lambda: bool(answer))
    assert isinstance(answer[0], LaunchError)
    assert "ulimit -u" in answer[0].fix


def test_a_step_s_status_and_last_lines_are_its_result(house: House) -> None:
    environ: Mapping[str, str] = {"PATH": os.environ["PATH"]}
    answer = house.in_thread(
        lambda: house.steps(
            ["sh", "-c", "echo out; echo err >&2; exit 3"], environ, "/", show=False
        )
    )
    house.until(lambda: bool(answer))
    (result,) = answer
    assert isinstance(result, StepResult)
    assert result.status == 3
    assert sorted(result.tail.split()) == ["err", "out"]


@pytest.mark.promise("F06")
@pytest.mark.parametrize("when", ["before it registers", "while it runs", "before it is asked"])
def test_an_aborted_step_leaves_nothing(house: House, when: str) -> None:
    mark = f"1{time.monotonic_ns()}"
    if when == "before it is asked":
        house.steps.abort()
    command = ["sleep", mark]
    answer = house.in_thread(lambda: house.steps(command, {"PATH": os.environ["PATH"]}, "/"))
    if when == "while it runs":
        house.until(lambda: runs(mark))
    elif when == "before it registers":
        house.until(lambda: bool(house.pool.shims))
    house.steps.abort()
    house.until(lambda: bool(answer) and not house.pool.shims)
    assert isinstance(answer[0], StoppedError)
    assert not runs(mark)


def runs(mark: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if mark.encode() in file.read().split(b"\0"):
                    return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("arrived", [False, True])
def test_a_spare_that_nobody_needed_is_gone_at_once(
    house: House, stopped: bool, arrived: bool
) -> None:
    house.pool.warm_up({"PATH": os.environ["PATH"]})
    (pid,) = house.pool.shims
    if arrived:
        house.until(lambda: bool(house.pool.all))
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    house.pool.close()
    assert time.monotonic() - began < 1
    assert not os.path.exists(f"/proc/{pid}")
    house.pool.shims.clear()


@pytest.mark.parametrize("arrived", [False, True])
def test_a_spare_that_died_is_no_spare(house: House, arrived: bool) -> None:
    house.pool.warm_up({"PATH": os.environ["PATH"]})
    (pid,) = house.pool.shims
    if arrived:
        house.until(lambda: bool(house.pool.all))
    os.kill(pid, signal.SIGKILL)
    if arrived:
        house.until(lambda: bool(house.ended))
    else:
        house.until(lambda: not house.pool.shims)
    house.pool.spawn("rank:0", {"PATH": os.environ["PATH"]}, house)
    house.until(lambda: bool(house.seen))
    assert house.seen[0].role == "rank:0"
    assert house.seen[0].shim_pid != pid


def test_a_parent_that_ignores_its_children_changes_no_exit_code(cluster: Make) -> None:
    """SIGCHLD may be inherited as ignored: the kernel then reaps before we can."""
    job = cluster("print('ran', flush=True)\n", hosts=1)
    start = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'muster', 'train'])\n"
    )
    for base, code in ((str(job.base("algo-1")), 0), ("/nonexistent", 100)):
        done = subprocess.run(
            [sys.executable, "-c", start],
            env={**job.environ, "SAGEMAKER_BASE_DIR": base},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == code, done.stderr


def be_stopped_at(name: str) -> None:
    import os
    import signal

    from muster.train import output

    real = getattr(output, name)

    def stopped(*args):  # type: ignore[no-untyped-def]
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    setattr(output, name, stopped)


@pytest.mark.promise("F06")
def test_pid_1_keeps_every_stop_where_it_is_started_with_stops_blocked(cluster: Make) -> None:
    """`ENTRYPOINT ["env", "--block-signal=TERM"]`: without it Python's own start loses them."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    blocks = ["env", "--block-signal=TERM"]
    if subprocess.run([*inside, *blocks, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces and the env of coreutils 8.31 or newer")
    job = cluster("import time\ntime.sleep(600)\n", hosts=1)
    job.start(command=[*inside, *blocks, sys.executable, "-m", "muster", "train"])
    outer = job.processes["algo-1"].pid
    first: list[int] = []

    def is_held() -> bool:
        """As soon as PID 1 there blocks SIGTERM: that is `env`, not Python. Looked at late, it may
        be our supervisor by then, which handles it."""
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        first[:] = map(int, children)
        return any(_keeps_sigterm(pid) for pid in first)

    wait_until(is_held, 10, "nothing blocks SIGTERM")
    os.kill(first[0], signal.SIGTERM)
    result = job.wait(30)["algo-1"]
    assert (result.code, result.success) == (143, False), result.err


def _keeps_sigterm(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"unshare"):
            return False  # it blocks signals as well, for a moment
    except OSError:
        return False
    masks = (status.partition(f"{name}:")[2].split()[0] for name in ("SigBlk", "SigCgt"))
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


@pytest.mark.promise("F06")
def test_a_stop_before_the_supervisor_listens_is_not_lost(cluster: Make) -> None:
    job = cluster("print('ran', flush=True)\nimport time; time.sleep(60)\n", hosts=1)
    job.start(command=train_after(be_stopped_at, "open_output"))
    result = job.wait(30)["algo-1"]
    assert result.code == 143, result.err
    assert "STOPPED by SIGTERM" in result.err


def test_a_stop_after_the_outcome_changes_nothing(cluster: Make) -> None:
    """Compose sends it to the leader when the first follower leaves (protocol.md, End)."""
    job = cluster("print('ran', flush=True)\n", hosts=1)
    job.start(command=train_after(be_stopped_at, "close_output"))
    result = job.wait(30)["algo-1"]
    assert (result.code, result.out) == (0, "ran\n"), result.err


@pytest.mark.promise("F10")
def test_a_script_that_dies_together_with_its_shim_is_not_waited_for(cluster: Make) -> None:
    script = (
        "import os, signal\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    results = [cluster(script, hosts=1).run(limit_s=15)["algo-1"] for _ in range(5)]
    assert {result.code for result in results} == {137}


def test_failures_of_many_ranks_with_long_texts_fit_the_channel(cluster: Make) -> None:
    """Every character of a tail may take 12 bytes of JSON: the report must fit a frame."""
    script = (
        "import os, sys\n"
        "sys.stderr.write('\\U0001f600' * 5000 + '\\n')\n"
        "raise ValueError('\\U0001f600' * 3000)\n"
    )
    results = cluster(script, hosts=2).run(limit_s=20)
    assert {r.code for r in results.values()} == {1}
    assert all(r.first_line.startswith("UserScriptError: ValueError") for r in results.values())
