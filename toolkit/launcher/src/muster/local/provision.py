"""What hosts without a way out will need, installed before they are made.

Installed once, then copied to every host's own site folder, where the host's own install finds all
of it satisfied. Installers run under a host supervisor like hosts do, so that no signal leaves one
running.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from muster.contract.findings import Findings
from muster.contract.request.settings import flag
from muster.local.hosts import start_hosts
from muster.local.orders import HostOrder, Orders
from muster.local.record.layout import SOURCE
from muster.local.record.runfolder import RunFolder
from muster.local.record.summary import TIMEOUT_EXIT_CODE
from muster.local.request import Request
from muster.local.session import HostSession, Timeout
from muster.local.show.progress import Progress, Tail
from muster.local.show.screen import Screen
from muster.local.signals import Signals
from muster.types.errors import StoppedError
from muster.types.steps import StepResult

INSTALLER_STOP_S = 5.0
ASKING = ("requirements.txt", "setup.py", "pyproject.toml")


def provision_hosts(
    request: Request, folder: RunFolder, screen: Screen, signals: Signals, timeout: Timeout | None
) -> None:
    """Fills every host's site folder. Does nothing when the code asks for nothing.

    Raises InstallError, or StoppedError when a signal or the timeout ended it.
    """
    if not any(os.path.isfile(os.path.join(request.source_dir, name)) for name in ASKING):
        return
    from muster.stage.code.archive import unpack
    from muster.stage.python.install import provision

    code = folder.host("source", "code")
    sites = [folder.host(name, "site") for name in request.host_names]
    os.makedirs(code)
    unpack(os.path.join(folder.path, SOURCE), "of the source folder", code)
    steps = _Steps(screen, signals, timeout)

    def log(component: str, message: str, /, level: str = "INFO", **facts: object) -> None:
        words = [message, *(f"{name}={value}" for name, value in facts.items())]
        screen.say(f"muster local: {' '.join(words)}")

    environ = {**os.environ, **request.environ}
    replace_torch = flag(environ, "MUSTER_REPLACE_TORCH", Findings())
    provision(
        code, sites[0], request.program, dict(os.environ), steps, log,
        replace_torch=replace_torch,
    )  # fmt: skip
    for site in sites[1:]:
        shutil.copytree(sites[0], site, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(code)


class _Steps:
    """Runs each step like a host. Satisfies `types.steps.StepRunner`."""

    def __init__(self, screen: Screen, signals: Signals, timeout: Timeout | None) -> None:
        self._screen = screen
        self._signals = signals
        self._timeout = timeout

    def __call__(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: str, show: bool = True
    ) -> StepResult:
        order = HostOrder("install", "", tuple(argv), dict(environ), cwd, cwd, -1, -1)
        hosts = start_hosts(Orders("process", (order,)), narration=True)
        session = HostSession(
            self._signals,
            hosts,
            Progress(()),
            Tail(()),
            self._screen,
            self._timeout,
            INSTALLER_STOP_S,
        )
        try:
            ending = session.run()
        finally:
            hosts.close()
        if ending.timed_out and self._timeout:
            error = StoppedError(f"stopped by --timeout {self._timeout.seconds:g} s reached")
            error.exit_code = TIMEOUT_EXIT_CODE
            raise error
        if ending.by:
            raise StoppedError(f"stopped by {ending.by} while requirements were installed")
        return StepResult(
            hosts.statuses.get(0, -9), self._screen.pump.recent.decode(errors="replace")
        )
