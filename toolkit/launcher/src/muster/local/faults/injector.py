"""Does the faults of a run, each at its moment, in a thread of `muster local`.

It reads what everybody may read, the hosts' events and the ranks' metrics, and touches the job by
`Means` alone. Nothing it meets ends the run: what goes wrong is in a `Landing`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from muster.local.faults.means import Means, NotLandedError, Target
from muster.local.faults.spec import CUT, DISK, FREEZE, KILL, LASTING, SLOW, STOP, Fault
from muster.local.record.runfolder import RunFolder
from muster.local.show.progress import Progress, Tail
from muster.run.base.record import SCHEMA
from muster.types.run_files import METRICS
from muster.types.values import NamedTuple

POLL_S = 0.02
CLOSE_S = 8.0
_DONE = {KILL: "killed", FREEZE: "froze", SLOW: "slowed"}


class Landing(NamedTuple):
    """What became of a fault. `text`: what landed on whom and when, or why nothing did. `t`: the
    moment on the monotonic clock, 0 for none; `time`: the same in seconds since 1970."""

    spec: str
    landed: bool
    text: str
    t: float = 0.0
    time: float = 0.0


class Injector(threading.Thread):
    """`ended`: index of each host that has ended, with its status. `said`: lines for the screen;
    `stops`: faults that want the job to be stopped, to be taken by the session; `killed`: hosts
    that were, of which an engine tells no more than 137."""

    def __init__(
        self,
        faults: Sequence[Fault],
        folder: RunFolder,
        hosts: Sequence[str],
        means: Means,
        ended: Mapping[int, int],
    ) -> None:
        super().__init__(name="faults", daemon=True)
        self.said: deque[str] = deque()
        self.stops: deque[str] = deque()
        self.killed: list[str] = []
        self._broken = ""
        self._folder = folder
        self._hosts = hosts
        self._means = means
        self._statuses = ended
        self._over = threading.Event()
        self._shots = [_Shot(fault) for fault in faults]
        self._progress = Progress(hosts)
        self._tail = Tail([folder.events(name) for name in hosts])
        self._metrics: dict[int, Tail] = {}
        self._steps: dict[int, int] = {}
        self._pids: dict[int, tuple[int, int | None]] = {}
        self._began: float | None = None  # when the last rank started

    def run(self) -> None:
        try:
            while not self._over.wait(POLL_S):
                self._look()
                for shot in self._shots:
                    self._advance(shot)
        except Exception as error:  # a defect, or a disk that cannot be read: the job goes on
            self._broken = f"muster failed: {error!r}"
            self.said.append(f"fault: no more will come: {self._broken}")

    def close(self) -> list[Landing]:
        """Ends what still lasts; a report for every fault. Waits for `CLOSE_S` at most."""
        self._over.set()
        self.join(CLOSE_S)
        for shot in self._shots:
            if shot.lasts:
                self._undo(shot)
        with suppress(OSError):
            self._look()
        self._tail.close()
        for tail in self._metrics.values():
            tail.close()
        return [shot.report or self._tell(shot, self._missed(shot.fault)) for shot in self._shots]

    def _ended(self) -> list[str]:
        """By their names."""
        return [self._hosts[index] for index in list(self._statuses)]

    def _look(self) -> None:
        for event in self._tail.read():
            self._progress.take(event)
            rank, pid, namespace = (event.get(n) for n in ("rank", "pid", "pid_namespace"))
            if event.get("kind") == "rank_started" and isinstance(rank, int):
                known = namespace if isinstance(namespace, int) else None
                self._pids[rank] = (pid if isinstance(pid, int) else 0, known)
        ranks = self._progress.ranks
        if self._began is None and ranks and len(ranks) >= self._progress.planned:
            self._began = max(rank.started for rank in ranks.values())
        if self._began is not None and any(s.fault.at_step is not None for s in self._shots):
            self._read_steps()

    def _read_steps(self) -> None:
        for number, rank in self._progress.ranks.items():
            path = self._folder.host(rank.host, METRICS, f"rank-{number}.jsonl")
            for entry in self._metrics.setdefault(number, Tail([path])).read():
                step = entry.get("step")
                if isinstance(step, int):
                    self._steps[number] = max(step, self._steps.get(number, -1))

    def _step_of(self, fault: Fault) -> int:
        """The last step that one of those whom it is for has reported, -1 for none."""
        hit = fault.hosts if fault.kind != CUT else ()
        return max(
            (
                step
                for number, step in self._steps.items()
                if fault.rank in (None, number)
                and (not hit or self._progress.ranks[number].host in hit)
            ),
            default=-1,
        )

    def _advance(self, shot: _Shot) -> None:
        now, fault = time.monotonic(), shot.fault
        if shot.report is None:
            if self._began is None:
                return
            due = now >= self._began + fault.at_s
            if fault.at_step is not None:
                due = self._step_of(fault) >= fault.at_step
            if due:
                self._land(shot)
        elif shot.lasts:
            others = set(self._hosts) - set(fault.hosts)
            alone = bool(others) and others <= set(self._ended()) and not fault.disks
            if (shot.until is not None and now >= shot.until) or alone:
                self._undo(shot)

    def _land(self, shot: _Shot) -> None:
        fault = shot.fault
        try:
            target = self._aim(fault)
            what = self._do(shot, target)
        except NotLandedError as error:
            self._tell(shot, Landing(fault.spec, False, str(error)))
            return
        except Exception as error:  # a defect: the job is not to pay for it
            self._tell(shot, Landing(fault.spec, False, f"muster failed: {error!r}"))
            return
        now = time.monotonic()
        assert self._began is not None
        after = f"{now - self._began:.1f} s after the ranks started"
        if fault.at_step is not None:
            after += f", at step {self._step_of(fault)}"
        shot.until = None if fault.lasts_s is None else now + fault.lasts_s
        shot.lasts = fault.kind in LASTING
        report = Landing(fault.spec, True, f"{what} {after}", now, time.time())
        self._tell(shot, report, target.in_words() if target else "/".join(fault.hosts))

    def _aim(self, fault: Fault) -> Target | None:
        """Whom it is for, None for all. Raises NotLandedError."""
        if fault.rank is not None:
            rank = self._progress.ranks.get(fault.rank)
            if rank is None:
                most = max(self._progress.ranks)
                raise NotLandedError(f"there is no rank {fault.rank}: the last one is {most}")
            target = Target(rank.host, fault.rank, *self._pids.get(fault.rank, (0, None)))
            if rank.ended is not None or not target.pid:
                raise NotLandedError(f"{target.in_words()} had ended")
            return target
        for name in fault.hosts:
            if name in self._ended():
                raise NotLandedError(f"{name} had ended")
        return Target(fault.hosts[0]) if len(fault.hosts) == 1 else None

    def _do(self, shot: _Shot, target: Target | None) -> str:
        """Does it; what was done to whom. Raises NotLandedError."""
        fault = shot.fault
        if fault.kind == STOP:
            self.stops.append(fault.spec)
            return "stopped the job"
        if target is None:
            self._means.cut(*fault.hosts)
            return f"cut {' and '.join(fault.hosts)} off from one another"
        if fault.kind == DISK:
            self._means.fill(target.host)
            return f"filled the disk of {target.host}"
        if fault.kind != KILL:
            self._refuse_both(fault, target)
        if fault.kind == KILL:
            self._means.kill(target)
            self.killed += [target.host] if target.rank is None else []
        elif fault.kind == SLOW:
            shot.hurry = self._means.slow(target, fault.percent)
        else:
            self._means.freeze(target)
        shot.target = target
        share = f" to {fault.percent} %" if fault.kind == SLOW else ""
        return f"{_DONE[fault.kind]} {target.in_words()}{share}"

    def _refuse_both(self, fault: Fault, target: Target) -> None:
        """Raises NotLandedError where another fault would let the target go on, or this one's end
        end that. What is slow for two reasons is slow until the last is over."""
        for other in self._shots:
            hit, kind = other.target, other.fault.kind
            if not other.lasts or hit is None or hit.host != target.host:
                continue
            if hit.rank is not None and self._progress.ranks[hit.rank].ended is not None:
                continue
            same = None in (hit.rank, target.rank) or hit.rank == target.rank
            if same and FREEZE in (fault.kind, kind):
                already = "slowed" if kind == SLOW else "frozen"
                raise NotLandedError(f"{hit.in_words()} is {already} already by {other.fault.spec}")

    def _undo(self, shot: _Shot) -> None:
        shot.lasts = False
        with suppress(Exception):  # what has ended needs nothing more
            if shot.fault.kind == DISK:
                self._means.empty(*shot.fault.hosts)
            elif shot.hurry is not None:
                shot.hurry()
            elif shot.target is not None:
                self._means.thaw(shot.target)
            else:
                self._means.heal(*shot.fault.hosts)
        if shot.report is not None and not self._over.is_set():
            lasted = time.monotonic() - shot.report.t
            self.said.append(f"fault: {shot.fault.spec} is over after {lasted:.1f} s")

    def _tell(self, shot: _Shot, report: Landing, target: str = "") -> Landing:
        """On the screen and in the record."""
        shot.report = report
        self.said.append(f"fault: {report.text}" if report.landed else _not_landed(report))
        fault = shot.fault
        host = shot.target.host if shot.target else (*fault.hosts, self._hosts[0])[0]
        event = {
            "schema": SCHEMA, "t": report.t or time.monotonic(), "time": report.time or time.time(),
            "host": host, "rank": fault.rank, "kind": "fault", "spec": fault.spec,
            "what": fault.kind, "target": target, "landed": report.landed, "text": report.text,
        }  # fmt: skip
        with suppress(OSError):  # a container's record may be its own: the run's summary has it
            _append(self._folder.events(host), event)
        return report

    def _missed(self, fault: Fault) -> Landing:
        """Of a fault whose moment never came."""
        if self._broken:
            why = self._broken
        elif self._began is None:
            why = "its ranks never all ran"
        elif fault.at_step is None:
            why = f"the job ended before @{fault.when}"
        else:
            last = self._step_of(fault)
            said = f"the last step reported was {last}" if last >= 0 else (
                "no step was reported (muster.metrics(step=...) does)"
            )  # fmt: skip
            why = f"never reached @{fault.when}: {said}"
        return Landing(fault.spec, False, why)


class _Shot:
    """One fault on its way."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.report: Landing | None = None
        self.target: Target | None = None
        self.hurry: Callable[[], None] | None = None  # of what is slow: its end
        self.until: float | None = None
        self.lasts = False


def _not_landed(report: Landing) -> str:
    """What is told of a fault that did not come."""
    return f"fault: {report.spec} did not land: {report.text}"


def _append(path: str, event: Mapping[str, object]) -> None:
    """One line, whole, between those of the host itself. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, json.dumps(event).encode() + b"\n")
    finally:
        os.close(fd)
