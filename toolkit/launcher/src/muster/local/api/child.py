"""The process of a run that `muster.local.run` started: `muster local`, without a command line.

On stdin: one line, a JSON object with `argv` (what would follow `muster local`), `report` (a
descriptor) and `parent` (the process that wants the run); then nothing, until that closes it or is
gone, which ends the run. Reports are JSON lists, one a line: `["folder", path]` once the run is
sure to begin, `["usage", text]` when it cannot, `["exit", code]` at the end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from typing import Any

from muster.arguments import USAGE_EXIT_CODE, HelpShown, UsageError
from muster.local.signals import STOPPING

READ_BYTES = 1 << 16


def main() -> None:
    """Runs the job and ends the process with its exit code."""
    for number in STOPPING:  # the caller's thread may have blocked them, and ignore them
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    order = _read_order()
    report = order["report"]
    os.set_inheritable(report, False)
    _end_with(order["parent"])
    code = _run(order["argv"], report)
    _tell(report, "exit", code)
    os._exit(code)


def _read_order() -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(0, READ_BYTES)
        if not piece:
            os._exit(USAGE_EXIT_CODE)
        data += piece
    order: dict[str, Any] = json.loads(data)
    return order


def _end_with(parent: int) -> None:
    """Stops the run when the caller closes stdin or is gone. Not by the kernel's signal at a
    parent's death, which comes when the *thread* ends that started this process. A copy of the pipe
    may live on in a child that the caller forked, so the caller itself is watched, too."""
    poll = select.poll()
    poll.register(os.dup(0), select.POLLIN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        poll.register(os.pidfd_open(parent), select.POLLIN)
    except (AttributeError, OSError):  # another system, an old kernel, a filter: the pipe alone
        pass
    if os.getppid() != parent:
        os._exit(USAGE_EXIT_CODE)

    def watch() -> None:
        poll.poll()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _run(argv: list[str], report: int) -> int:
    from muster.local.command import run_line

    try:
        return run_line(argv, lambda path: _tell(report, "folder", path))
    except UsageError as error:
        text = f"{error.message}\n  {error.fix}".rstrip()
    except HelpShown:
        text = "--help starts nothing"
    _tell(report, "usage", text)
    return USAGE_EXIT_CODE


def _tell(report: int, *fields: object) -> None:
    try:
        os.write(report, json.dumps(fields).encode() + b"\n")
    except OSError:
        pass  # the caller is gone, and the run is being stopped
