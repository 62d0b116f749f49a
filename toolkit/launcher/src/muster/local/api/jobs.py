"""`muster local` from Python: `run` for a whole job, `start` for one that is waited for later.

The job is a process of its own (`child`), with what makes it independent of the caller: no
descriptor but its pipes, no signal disposition, a session of its own, and an environment without
what a notebook or a test runner put there for itself. So it may be called from any thread, beside a
running event loop, or where a GPU is initialised. Options are those of the command, which reads and
checks them.
"""

from __future__ import annotations

import codecs
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

import muster
from muster.local.api.result import Result, read_result

READ_BYTES = 1 << 16
STOP_S = 10.0  # from a stop until force, where it is not a Ctrl-C that asks for the end
DRAIN_S = 1.0
MOST_S = 86400.0  # in one call of the kernel, which counts milliseconds in 32 bits
_NAMES = {
    "processes": "processes-per-host",
    "timeout_s": "timeout",
    "hyperparameters": "hyperparameter",
    "channels": "channel",
}
_REPEATED = ("hyperparameter", "channel", "env", "fault", "debug", "pdb")
_OF_CALLERS = ("JPY_", "PYTEST_", "PYDEVD_")  # of a notebook's kernel, a test runner, a debugger
# no current folder on the path; the caller's muster where the interpreter alone would find none
_BOOT = (
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; "
    "from {} import main; main()"
)


def run(
    script: str | os.PathLike[str] | None = None,
    *,
    arguments: Sequence[str] = (),
    quiet: bool = False,
    **options: object,
) -> Result:
    """Runs a job on this machine and returns how it ended; a failed job raises nothing.

    `options` are those of `muster local`, spelt with `_`: `hosts=2`, `distribution=...` (a name or
    the SDK's dictionary), `isolation=...`, `module=...` in place of a script. `hyperparameters=`,
    `channels=` and `env=` are dictionaries, what may be repeated may be a list, `processes=` is
    `--processes-per-host`, `timeout_s=` is `--timeout` in seconds. `quiet`: shows nothing; else
    what the command shows goes to `sys.stdout` and `sys.stderr`.

    Raises ValueError with the command's words before anything has started where the request is
    wrong, KeyboardInterrupt after Ctrl-C once the job has ended (a second one ends it by force).
    """
    return finished(RunningJob(_argv(script, arguments, options), quiet))


def start(
    script: str | os.PathLike[str] | None = None,
    *,
    arguments: Sequence[str] = (),
    **options: object,
) -> RunningJob:
    """Starts a job and returns as soon as it has a run folder; shows nothing. See `run`.

    The job ends with its handle, and with the process that started it.
    """
    job = RunningJob(_argv(script, arguments, options), quiet=True)
    with _ending(job):
        job._wait_for_folder()
    return job


def finished(job: RunningJob) -> Result:
    """The end of the job, which does not outlive an exception here, a Ctrl-C among them."""
    with _ending(job):
        return job.wait()


@contextmanager
def _ending(job: RunningJob) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        job.end(isinstance(error, KeyboardInterrupt))
        raise


class RunningJob:
    """A job that runs. As a context it is stopped at the end of it.

    `folder`: its run folder, "" until it has one.
    """

    def __init__(self, argv: Sequence[str], quiet: bool = False) -> None:
        self.folder = ""
        self._usage = ""
        self._code: int | None = None
        self._heard = b""
        self._lock = threading.Lock()
        self._sinks: dict[int, tuple[IO[bytes], Callable[[bytes], None]]] = {}
        report, theirs = os.pipe()
        out, err = (_Output(None if quiet else stream) for stream in (sys.stdout, sys.stderr))
        try:
            self._process = subprocess.Popen(
                program("muster.local.api.child"),
                stdin=subprocess.PIPE,
                stdout=out.target,
                stderr=err.target,
                pass_fds=[theirs],
                start_new_session=True,
                env=_environ(os.environ),
            )
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(theirs)
        self._report = report
        self._sinks[report] = os.fdopen(report, "rb", buffering=0), self._hear
        for output, pipe in ((out, self._process.stdout), (err, self._process.stderr)):
            if pipe is not None:
                self._sinks[pipe.fileno()] = pipe, output.write
        order = {"argv": list(argv), "report": theirs, "parent": os.getpid()}
        self._send(json.dumps(order).encode() + b"\n")

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._code is None and self._process.poll() is None

    def wait(self, timeout_s: float | None = None) -> Result:
        """The end of the job. Raises TimeoutError when it runs on for that long; ValueError where
        the request was wrong."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self._take_in(until, lambda: False)
        if self._usage:
            raise ValueError(self._usage)
        code = self._process.wait() if self._code is None else self._code
        return read_result(code if code >= 0 else 128 - code, self.folder)

    def stop(self) -> None:
        """Asks it to stop, as SIGTERM does to `muster local`; a second time by force. `wait`
        returns its end."""
        self._process.send_signal(signal.SIGTERM)

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *raised: object) -> None:
        if self.alive:
            self.end()

    def _wait_for_folder(self) -> None:
        self._take_in(None, lambda: bool(self.folder))
        if self._usage:
            raise ValueError(self._usage)

    def end(self, interrupted: bool = False) -> None:
        """Stops it and waits for its end: after 10 s by force, after 10 more by SIGKILL.

        `interrupted`: by Ctrl-C. It has the time to save that `muster local` gives it, each further
        Ctrl-C goes on to it, and the third is SIGKILL.
        """
        number = signal.SIGINT if interrupted else signal.SIGTERM
        limit_s = None if number == signal.SIGINT else STOP_S
        for wanted in (number, number, signal.SIGKILL):
            self._process.send_signal(wanted)
            try:
                until = None if limit_s is None else time.monotonic() + limit_s
                self._take_in(until, lambda: False)
                return
            except (KeyboardInterrupt, TimeoutError, OSError, ValueError):
                continue  # also of a stream that cannot be written any more

    def _send(self, data: bytes) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError:  # it is gone, which its report says
            pass

    def _take_in(self, until: float | None, enough: Callable[[], bool]) -> None:
        """Reads until the end of the report, or `enough`. Raises TimeoutError."""
        left_s = -1.0 if until is None else min(MOST_S, max(0.0, until - time.monotonic()))
        if not self._lock.acquire(timeout=left_s):
            raise TimeoutError("the job still runs")
        try:
            self._read(until, enough)
        finally:
            self._lock.release()

    def _read(self, until: float | None, enough: Callable[[], bool]) -> None:
        while self._sinks and not enough():
            poll = select.poll()
            for fd in self._sinks:
                poll.register(fd, select.POLLIN)
            left_s = MOST_S if until is None else min(MOST_S, max(0.0, until - time.monotonic()))
            ready = poll.poll(left_s * 1000)
            if not ready and left_s == MOST_S:
                continue
            if not ready and self._report in self._sinks:
                raise TimeoutError("the job still runs")
            for fd in [fd for fd, _ in ready] or list(self._sinks):
                data = os.read(fd, READ_BYTES) if ready else b""
                file, sink = self._sinks[fd]
                if not data:
                    del self._sinks[fd]
                    file.close()
                    if fd == self._report:  # its end; the outputs are read as far as they are there
                        until = time.monotonic() + DRAIN_S
                        self._reap()
                sink(data)

    def _reap(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _hear(self, data: bytes) -> None:
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            kind, value = json.loads(line)
            if kind == "folder":
                self.folder = value
            elif kind == "usage":
                self._usage = value
            elif kind == "exit":  # true also where another part of the caller reaps its children
                self._code = value


class _Output:
    """Where one stream of the job goes: to the caller's own descriptor where `sys.stdout` is still
    that, so that a terminal has its live table, else through a pipe into what has taken its place
    (a notebook's cell, what a test captures). None: nowhere."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.target = subprocess.DEVNULL if stream is None else subprocess.PIPE
        own = any(stream is one for one in (sys.__stdout__, sys.__stderr__))
        if stream is not None and own:
            stream.flush()
            self.target = stream.fileno()

    def write(self, data: bytes) -> None:
        if (stream := self._stream) is None:
            return
        self._stream = None  # where it cannot be written, what follows is read and lost
        stream.write(self._decoder.decode(data, final=not data))
        stream.flush()
        self._stream = stream


def program(module: str) -> list[str]:
    """The command that calls `main` of a module of this muster, in this Python."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(muster.__file__)))
    return [sys.executable, "-c", _BOOT.format(module), root]


def _argv(
    script: str | os.PathLike[str] | None, arguments: Sequence[str], options: Mapping[str, object]
) -> list[str]:
    """What would follow `muster local`."""
    argv = [] if script is None else [os.fspath(script)]
    for given, value in options.items():
        name = _NAMES.get(given, given).replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            argv.append(f"--{name}")
        elif name in _REPEATED and isinstance(value, Mapping):
            argv += [f"--{name}={key}={_word(given, one)}" for key, one in value.items()
                     if one is not None or name != "env"]  # fmt: skip
        elif name in _REPEATED and isinstance(value, list | tuple):
            argv += [f"--{name}={_word(given, one)}" for one in value]
        else:
            argv.append(f"--{name}={_word(given, value)}")
    if arguments:
        argv += ["--", *map(str, arguments)]
    return argv


def _word(option: str, value: object) -> str:
    """The value as one would type it: a text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option}: expected text, a number or a dictionary: {error}") from None


def _environ(caller: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in caller.items()
        if not name.startswith(_OF_CALLERS)
        and not (name == "MPLBACKEND" and value.startswith("module://"))  # draws into a cell
    }
