"""What the pods of a job print, by one `kubectl logs --follow` for each.

kubectl can follow pods by a label itself, but only those that run when it begins: not the ones that
wait for a node, and none of a second attempt.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from contextlib import suppress

from muster.arguments import tell

EVERY_S = 2.0  # the pods are asked for
REST_S = 30.0  # for what is left of a job that has ended
MOST = 16  # pods; the others of a larger job are left to the cluster's own tools
MAX_READ_BYTES = 1 << 16


class PodLogs:
    """A `JobOutput`. `pods`: asks for the pods as JSON. `logs`: follows one, by its name."""

    def __init__(self, pods: list[str], logs: list[str]) -> None:
        self._pods, self._logs = pods, logs
        self._known: set[str] = set()
        self._asking: subprocess.Popen[bytes] | None = None
        self._asked = -EVERY_S
        self._text = b""  # of the answer, as far as it has come
        self._followed: list[_Followed] = []
        self._cut_off: dict[str, float | None] = {}  # pod -> when it was last heard

    def more(self) -> None:
        """Passes on whole lines that are there; asks for new pods meanwhile."""
        now = time.monotonic()
        if self._asking is None and now - self._asked >= EVERY_S:
            self._asked, self._asking = now, _started(self._pods)
        elif self._asking is not None and self._answer(self._asking):
            self._asking = None
        for one in self._followed:
            one.more()
            if one.ended and one.process.returncode:
                self._cut_off[one.name] = one.heard
        self._followed = [one for one in self._followed if not one.ended]

    def rest(self) -> None:
        """Asks for the pods once more; ends its children whatever they do."""
        until = time.monotonic() + REST_S
        try:
            while self._asking is not None and time.monotonic() < until:
                self._pause()
            self._asked = -EVERY_S
            self.more()
            while (self._asking or self._followed) and time.monotonic() < until:
                self._pause()
        finally:
            self.close()

    def close(self) -> None:
        """Ends all that was started."""
        for one in (self._asking, *(each.process for each in self._followed)):
            if one is not None:
                one.kill()
                one.communicate()
        self._asking, self._followed = None, []

    def _pause(self) -> None:
        self._asked = time.monotonic()
        self.more()
        time.sleep(0.02)

    def _answer(self, asking: subprocess.Popen[bytes]) -> bool:
        """Whether the client has answered; follows the pods that it names."""
        self._text += _read(asking)
        if asking.poll() is None:
            return False
        self._text += _read(asking)
        asking.communicate()
        text, self._text = self._text, b""
        with suppress(ValueError, KeyError, TypeError):
            for pod in json.loads(text)["items"]:
                self._follow(pod["metadata"]["name"], pod["status"].get("phase"))
        return True

    def _follow(self, name: str, phase: str) -> None:
        """A log that was cut off, as by a server that restarts, goes on: rather with a line twice
        than without one."""
        if name in self._cut_off:
            heard = self._cut_off.pop(name)
            ago = [] if heard is None else [f"--since={math.ceil(time.monotonic() - heard) + 1}s"]
            self._followed.append(_Followed(name, [*self._logs, *ago]))
        if name in self._known or phase in (None, "Pending"):
            return
        if len(self._known) == MOST:
            tell(f"muster submit: the output of the first {MOST} pods is shown\n")
        self._known.add(name)
        if len(self._known) <= MOST:
            self._followed.append(_Followed(name, self._logs))


class _Followed:
    """One pod's log. `heard`: when something of it came; None before."""

    def __init__(self, name: str, logs: list[str]) -> None:
        self.name, self.process = name, _started([*logs, name])
        self.ended, self._begun = False, b""
        self.heard: float | None = None

    def more(self) -> None:
        last = self.process.poll() is not None
        found = _read(self.process)
        self.heard = time.monotonic() if found else self.heard
        data = self._begun + found
        whole, end, self._begun = data.rpartition(b"\n")
        if last and self._begun:
            whole, end, self._begun = data, b"\n", b""
        sys.stdout.buffer.write(whole + end)
        sys.stdout.buffer.flush()
        if last:
            self.ended = True
            self.process.communicate()


def _started(argv: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


def _read(process: subprocess.Popen[bytes]) -> bytes:
    """What is there."""
    found = []
    assert process.stdout is not None
    with suppress(BlockingIOError):
        while data := os.read(process.stdout.fileno(), MAX_READ_BYTES):
            found.append(data)
    return b"".join(found)
