"""Hosts as Linux namespaces (5b): own network, names that resolve, /opt/ml, `train` as PID 1.

Needs no root where the kernel allows user namespaces.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

INSIDE = Path(__file__).with_name("inside.py")
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")
_MAKE_BRIDGE = ("ip", "link", "add", "name", "cluster0", "type", "bridge")
_LIMIT_S = 30.0


@functools.cache
def why_not() -> str:
    """What this machine lacks for isolated hosts; "" when nothing."""
    missing = [tool for tool in ("unshare", "ip", "mount", "hostname") if not shutil.which(tool)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.path.realpath(sys.executable).startswith("/opt/"):
        return "the interpreter lies below /opt, which isolated hosts replace"
    tried = subprocess.run(
        [*_UNSHARE, "--pid", "--fork", "--mount-proc", *_MAKE_BRIDGE],
        capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


class Cluster:
    """The hosts of one run; each is started by `add` and `start`, and ends by itself or `kill`.

    `unshare`: the command that makes the surroundings of all hosts; without a user namespace of
    their own (root only) hosts have all users of this machine.
    """

    def __init__(self, folder: Path, unshare: Sequence[str] = _UNSHARE) -> None:
        self._folder = folder
        self._unshare = unshare
        self._hosts: dict[str, dict[str, str]] = {}

    def add(self, name: str, base: Path, environ: Mapping[str, str], train: str) -> IsolatedHost:
        self._hosts[name] = {
            "address": f"10.77.0.{len(self._hosts) + 1}",
            "base": str(base),
            "place": str(base.parent),
            "train": train,
            "environ": json.dumps(dict(environ)),
        }
        return IsolatedHost(base.parent)

    def start(self, mark: Mapping[str, str]) -> None:
        """Starts all hosts. Raises AssertionError when they do not come up."""
        plan = self._folder / "cluster.json"
        plan.write_text(json.dumps(self._hosts))
        with (self._folder / "cluster.log").open("wb") as log:
            self._child = subprocess.Popen(
                [*self._unshare, sys.executable, "-IS", str(INSIDE), "cluster", str(plan)],
                env={**os.environ, **mark}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + _LIMIT_S
        places = [Path(host["place"]) for host in self._hosts.values()]
        while not all((place / "pid").exists() for place in places):
            if time.monotonic() > end or self._child.poll() is not None:
                raise AssertionError((self._folder / "cluster.log").read_text())
            time.sleep(0.01)

    def kill(self) -> None:
        """Ends what still runs: the end of a host's PID 1 is the end of everything in it."""
        for host in self._hosts.values():
            IsolatedHost(Path(host["place"])).send_signal(signal.SIGKILL)
        if self._child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(5)
            self._child.kill()
        self._child.wait(5)


class IsolatedHost:
    """One host's PID 1, seen from outside."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def poll(self) -> int | None:
        path = self._place / "exit"
        return int(path.read_text()) if path.exists() else None

    def send_signal(self, number: int) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self._place / "pid").read_text()), number)
