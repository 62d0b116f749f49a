"""The servers of this host, which ranks of all hosts need: how their ends are judged."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from muster.plan.launchplan import Service
from muster.run.base.evidence import looks_like_lost_peer
from muster.run.base.memory import KillWatch
from muster.run.channel.messages import HostError
from muster.run.child.auxiliary import SERVER, AuxiliaryProcess, Surrounding
from muster.run.child.shim_handle import ShimHandle
from muster.types.outcome import said_code

VICTIM_S = 3.0  # how long a rank that a server has lost may take to end


class Servers:
    """The servers of this host.

    A server may exit with 0 once its work is done; any other end is reported, also when only ranks
    of other hosts still need it.
    """

    def __init__(self, around: Surrounding, kills: KillWatch) -> None:
        self._around = around
        self._kills = kills
        self._all: list[AuxiliaryProcess] = []
        self._endless: set[str] = set()  # servers that never end by themselves

    def start(self, services: Sequence[Service], at_start: Mapping[str, str]) -> None:
        """`at_start`: variables of every process. Raises LaunchError when a fork fails."""
        self._endless = {one.name for one in services if not one.may_end}
        for one in services:
            command = one.command.with_variables(at_start)
            new = AuxiliaryProcess(self._around, one.name, SERVER, command, self._ended)
            self._all.append(new)

    def find(self, role: str) -> AuxiliaryProcess | None:
        """The server that a shim of this role stands for."""
        return next((server for server in self._all if server.role == role), None)

    @property
    def handles(self) -> list[ShimHandle]:
        """Of those whose shims are there."""
        return [server.handle for server in self._all if server.handle is not None]

    @property
    def all_ran(self) -> bool:
        """Whether each has been started, and perhaps has ended."""
        return all(one.ran for one in self._all)

    def kill(self) -> None:
        for server in self._all:
            server.kill()

    def release(self) -> None:
        """Ends them and all that is left below them."""
        for server in self._all:
            server.release()

    def _ended(self, server: AuxiliaryProcess) -> None:
        if server.status > 0 and looks_like_lost_peer(server.words()):
            # whom it lost may take its time to end, and is to end by itself
            self._around.loop.after(VICTIM_S, lambda: self._judge(server, victim=True))
        else:
            self._judge(server, victim=False)

    def _judge(self, server: AuxiliaryProcess, victim: bool) -> None:
        host_error = server.never_ran()
        well = host_error is None and server.status == 0 and server.name not in self._endless
        if self._around.over() or well:
            return
        self._around.report(host_error or self._host_error(server, victim))

    def _host_error(self, server: AuxiliaryProcess, victim: bool) -> HostError:
        what = f"{server.how_it_ended()} while ranks ran (on {self._around.host})"
        words = server.words()
        fix = "see its lines below" if words else "it wrote nothing that says why"
        note = ""
        if server.status == -signal.SIGKILL and server.handle is not None:
            note = self._kills.killed(server.handle.pid, server.ended_s)
        if note:
            what = f"{what}: {note}"
            fix = "use more servers or hosts, or an instance with more memory"
        return HostError("UserScriptError", said_code(server.status), what, fix, words, victim)
