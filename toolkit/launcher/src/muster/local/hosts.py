"""Starts the host supervisor, sends it stop and kill, and reads how the hosts ended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from muster.local.orders import KILL, STOP, HostOrder, Orders, to_line
from muster.types.errors import LaunchError
from muster.types.values import NamedTuple

LIMIT_S = 10.0


class HostStream(NamedTuple):
    """The read end of one host's stdout (`errors` False) or stderr."""

    fd: int
    host: int
    errors: bool


class Hosts:
    """The hosts of one run, as children of a host supervisor.

    `statuses` fills with exit statuses by host index (minus a signal), `error` with the reason when
    the hosts could not be made, or held once they were `ready`, and `error_code` with what the run
    then ends with; `notes` are for people, `lost` says what they saved and nobody has, `facts` are
    for the record. Poll `up` for reading and call `hear` until it returns False. `abandonable`:
    what they run in is an engine's, which may never answer.
    """

    def __init__(
        self, orders: Orders, streams: Sequence[HostStream], supervisor_up: int, up: int
    ) -> None:
        import subprocess

        self.streams = tuple(streams)
        self.up = up
        self.statuses: dict[int, int] = {}
        self.error = ""
        self.error_code = LaunchError.exit_code
        self.ready = False
        self.notes: list[str] = []
        self.lost: list[str] = []
        self.facts: dict[str, object] = {}
        self.abandonable = orders.containers is not None
        self._heard = b""
        passed = [fd for host in orders.hosts for fd in (host.output, host.errors)]
        environ = dict(os.environ)
        environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "muster.local.supervisor", str(supervisor_up)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[supervisor_up, *passed, *([orders.lock] if orders.lock >= 0 else [])],
            start_new_session=True,
            cwd="/",
            env=environ,
        )
        for fd in (supervisor_up, *passed):
            os.close(fd)
        self._down = self._process.stdin
        self._tell(to_line(orders))

    @property
    def pid(self) -> int:
        return self._process.pid

    def _tell(self, data: bytes) -> None:
        if self._down is None:
            return
        try:
            self._down.write(data)
            self._down.flush()
        except OSError:
            self._down = None  # the supervisor is gone; the end of `up` says so

    def stop(self) -> None:
        """SIGTERM to every host."""
        self._tell(STOP)

    def kill(self) -> None:
        """SIGKILL to everything that runs in the cluster."""
        self._tell(KILL)

    def hear(self) -> bool:
        """Reads reports; False once the supervisor has nothing more to say."""
        data = os.read(self.up, 65536)
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._take(*json.loads(line))
        return bool(data)

    def _take(self, kind: str, *fields: Any) -> None:
        if kind == "ready":
            self.ready = True
        elif kind == "ended":
            self.statuses[fields[0]] = fields[1]
        elif kind == "note":
            self.notes.append(fields[0])
        elif kind == "lost":
            self.lost.append(fields[0])
        elif kind == "fact":
            self.facts[fields[0]] = fields[1]
        elif kind == "error" and not self.error:
            self.error, *code = fields
            self.error_code = code[0] if code else LaunchError.exit_code

    def close(self, limit_s: float = LIMIT_S) -> None:
        """Ends the supervisor, by force after `limit_s`, and with it all that may be left."""
        import subprocess

        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        try:
            self._process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self.up)


def start_hosts(orders: Orders, narration: bool = False) -> Hosts:
    """Starts the supervisor with a pipe for every stream; descriptors in `orders` are filled in.

    `narration`: all that the hosts write belongs on stderr. Raises OSError, and leaves none open.
    """
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(2 * len(orders.hosts) + 1):
            pipes.append(os.pipe())
        (up, supervisor_up), *both = pipes
        streams, filled = [], []
        for index, host in enumerate(orders.hosts):
            (out, output), (err, errors) = both[2 * index : 2 * index + 2]
            streams += [HostStream(out, index, narration), HostStream(err, index, True)]
            filled.append(host._replace(output=output, errors=errors))
        return Hosts(orders._replace(hosts=tuple(filled)), streams, supervisor_up, up)
    except OSError:
        for fd in (fd for pipe in pipes for fd in pipe):
            os.close(fd)
        raise


def why_not_isolated(folder: str) -> str:
    """Makes one empty host in namespaces, exactly as for a run: "" or the reason that it failed."""
    import select

    trial = HostOrder("algo-1", "10.77.0.1", (), {}, "/", folder, -1, -1)
    hosts = start_hosts(Orders("netns", (trial,), writable=(folder,)))
    poll = select.poll()
    poll.register(hosts.up, select.POLLIN)
    try:
        while poll.poll(LIMIT_S * 1000):
            if not hosts.hear():
                break
        else:
            hosts.error = f"no answer within {LIMIT_S:g} s"
    finally:  # an interrupt, too
        hosts.close()
        for stream in hosts.streams:
            os.close(stream.fd)
    if hosts.statuses.get(0) == 0:
        return ""
    return hosts.error or "the trial host ended early"
