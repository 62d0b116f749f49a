"""The desk's side of a job on hosts: from the first connection to the last record.

Of each host it sees HELLO, READY; then, once all are ready, ENDED, PACKED and the end of the
connection. REFUSED, or an end before READY, ends it all; an end after that is one host's loss.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Thread

from muster.arguments import UsageError, tell
from muster.local import frames
from muster.local.paths import shown
from muster.local.record import layout, runfolder
from muster.local.record.artifacts import gather
from muster.local.record.runfolder import in_words
from muster.local.signals import STOPPING
from muster.submit import folder
from muster.submit.hosts.link import GONE, Event, Link, Printed
from muster.submit.hosts.listed import Destination, attended, ssh
from muster.submit.hosts.records import Unpacker
from muster.submit.hosts.request import give, stop_s
from muster.submit.values import Submission, Submitted
from muster.types.errors import STOPPED_EXIT_CODE
from muster.types.names import counted
from muster.types.plain import shortened
from muster.version import __version__

GREET_AT_ONCE = 8  # a sshd, as that of a jump host, refuses some from the 10th login at a time on
GREET_S = 90.0  # until all hosts have the code, or one of them says something
FIRST_END_S = 5.0  # for the others, once a host's part has ended
END_S = 30.0  # beyond a stop's time, until hosts send their records
PART_S = 20.0  # until they have removed what lay there
LOST_CODE = 102
SIGNAL = -1  # in place of a host's index


class Attendance:
    """One job, from this one thread: what hosts say, and signals, come to it as events.

    No rank starts before every host has greeted, has the code and has found room for it; so a host
    that cannot be reached costs nothing on the others. From then on all ends by itself: a host that
    is late, lost or silent is given up after a time, and what nobody took over stays where it is.
    """

    def __init__(self, job: Submission, hosts: Sequence[Destination]) -> None:
        self._job = job
        self._hosts = hosts
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._links: list[Link] = []
        self._pythons: dict[int, str] = {}
        self._machines: dict[str, str] = {}  # -> name of the host
        self._ready: set[int] = set()
        self._codes: dict[int, int] = {}  # in the order in which they came
        self._over: dict[int, str] = {}  # hosts that need nothing more -> why there is no record
        self._gone: set[int] = set()
        self._beat = 0.0  # when hosts are to hear the next one
        self._stops = 0
        self._hurried = False  # ended hosts wait no longer for the others

    def run(self) -> Submitted:
        """The job as it ended. Raises UsageError where nothing was started, KeyboardInterrupt where
        a person changed their mind before that."""
        before = {number: signal.getsignal(number) for number in STOPPING}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup, a shell's background job
                signal.signal(
                    number, lambda n, frame: self._events.put(Event(SIGNAL, b"%d" % n, b""))
                )
        try:
            self._connect()
            submitted = self._submitted()
            folder.keep(submitted)
            # may take minutes; what is left then `muster submit` deletes at its end
            Thread(target=runfolder.drop_earlier, args=(self._job.run,), daemon=True).start()
            for name in (layout.SECRET, layout.ENVIRON):  # all hosts have them
                with suppress(OSError):
                    os.unlink(os.path.join(self._job.run, name))
            self._each(frames.START)
            hosts = counted(len(self._hosts), "host")
            tell(f"muster submit: started on {hosts}, in {shown(self._job.run)}\n")
            self._hold()
            self._part()
            self._tell_what_is_missing()
            submitted = submitted._replace(code=self._code())
            try:
                folder.keep(submitted)
            except UsageError as error:  # too late for one: the job has run
                tell(f"muster submit: {error.message}\n")
            return submitted
        finally:
            for link in self._links:
                link.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _connect(self) -> None:
        """Every host has request and code, or none starts."""
        screen = Printed()
        last = time.monotonic()
        while len(self._ready) < len(self._hosts):
            room = len(self._pythons) + GREET_AT_ONCE
            for index in range(len(self._links), min(room, len(self._hosts))):
                self._links.append(self._link(index, screen))
            event = self._next(last + GREET_S)
            if event is None:
                if time.monotonic() < last + GREET_S:
                    continue
                asked = self._hosts[: len(self._links)]
                silent = [h.name for i, h in enumerate(asked) if i not in self._ready]
                what = f"{', '.join(silent)} did not answer within {GREET_S:.0f} s"
                raise UsageError(shortened(what), "nothing was started on any host")
            last = time.monotonic()
            if event.host == SIGNAL:
                raise KeyboardInterrupt
            self._greeted(event)

    def _link(self, index: int, screen: Printed) -> Link:
        host = self._hosts[index]
        argv = [*ssh(host, self._job.settings), attended(self._job.python)]
        unpacker = Unpacker(self._job.run, host.name, leads=not index)
        moved = partial(self._events.put, Event(index, frames.CODE, b""))
        task = partial(give, self._job, self._hosts, index, moved)
        try:
            return Link(index, host, argv, task, unpacker, screen, self._events)
        except OSError as error:
            raise UsageError(f"ssh cannot be started: {in_words(error)}") from None

    def _greeted(self, event: Event) -> None:
        """One step of a host towards the start. Raises UsageError for one that will not start."""
        host = self._hosts[event.host]
        if event.kind == frames.HELLO:
            hello = frames.fields_of(event.content)
            self._pythons[event.host] = str(hello.get("python"))
            machine = str(hello.get("machine"))
            if (first := self._machines.setdefault(machine, host.name)) != host.name and machine:
                what = f"{first} and {host.name} are the same host"
                raise UsageError(what, "name every host once; nothing was started on any host")
            if (other := hello.get("muster")) != __version__:
                what = f"{host.name} has muster {other}, this is {__version__}"
                raise UsageError(what, f"install the same there: muster-training=={__version__}")
        elif event.kind == frames.READY:
            self._ready.add(event.host)
        elif event.kind == frames.REFUSED:
            said = frames.fields_of(event.content)
            fix = f"{said.get('fix')}; nothing was started on any host"
            raise UsageError(f"{host.name}: {said.get('why')}", fix)
        elif event.kind == GONE:
            why = event.content.decode()
            fix = "nothing was started on any host"
            if why.startswith("no muster"):
                fix = f"install it there, or name its Python: --python FILE; {fix}"
            raise UsageError(f"{host.name}: {why}", fix)

    def _submitted(self) -> Submitted:
        """What other commands need to find the job: who attends it, and how to ask its leader."""
        where = {
            "leader": self._hosts[0].destination,
            "python": self._pythons[0],
            "run": self._links[0].run,
            "machine": os.uname().nodename,
            "process": str(os.getpid()),
            "folder": os.getcwd(),  # of the files that options of ssh name
        }
        where |= {f"set {name}": value for name, value in self._job.settings.items()}
        name = os.path.basename(os.path.dirname(self._links[0].run))
        return Submitted("hosts", name, self._job.name, len(self._hosts), self._job.run, where)

    def _each(self, kind: bytes) -> None:
        """To hosts that have all they were given: nothing may come between the pieces of code."""
        for index in self._ready - self._over.keys():
            self._links[index].send(kind)

    def _next(self, limit: float) -> Event | None:
        """The next event; None where there is none for a while. Hosts hear a BEAT in time, however
        many events there are."""
        now = time.monotonic()
        if now >= self._beat:
            self._beat = now + frames.BEAT_S
            for index in self._ready:
                self._links[index].beat()
        try:
            return self._events.get(timeout=max(0.0, min(self._beat, limit) - now))
        except queue.Empty:
            return None

    def _hold(self) -> None:
        """Until every host has ended and was heard, or is lost."""
        limit = float("inf")  # for the next step towards the end
        while len(self._over) < len(self._hosts):
            event = self._next(limit)
            if event is None:
                if time.monotonic() >= limit:
                    limit = self._hurry()
            elif event.host == SIGNAL:
                if not (self._stops and int(event.kind) == signal.SIGHUP):
                    limit = self._stop()
            elif event.kind == frames.ENDED:
                self._codes[event.host] = int(frames.fields_of(event.content).get("code", 1))
                if limit == float("inf"):
                    limit = time.monotonic() + FIRST_END_S
            elif event.kind == frames.PACKED:
                self._close(event)
            elif event.kind == GONE:
                self._lost(event)

    def _part(self) -> None:
        """Hosts whose record is here remove their folder, and then end by themselves."""
        for index, trouble in self._over.items():
            if trouble:
                self._links[index].end()
        limit = time.monotonic() + PART_S
        while len(self._gone) < len(self._links) and time.monotonic() < limit:
            event = self._next(limit)
            if event is not None and event.host != SIGNAL and event.kind == GONE:
                self._gone.add(event.host)

    def _unended(self) -> list[int]:
        """Hosts whose `train` runs, as far as one knows here."""
        return [i for i in range(len(self._links)) if i not in self._codes and i not in self._over]

    def _stop(self) -> float:
        """A person wants the end; twice, at once; of the records, too, once all ranks have ended.
        When to hurry."""
        self._stops += 1
        if not self._unended():
            tell("muster submit: what is not here yet stays where it is\n")
            for link in self._links:
                link.end()
            return float("inf")
        again = "stopping; ranks have time to save, unless you press Ctrl-C again"
        tell(f"muster submit: {again if self._stops == 1 else 'ending the ranks at once'}\n")
        self._each(frames.STOP if self._stops == 1 else frames.KILL)
        return time.monotonic() + stop_s(self._job) + END_S

    def _hurry(self) -> float:
        """Hosts that wait for one whose part has ended are stopped; after a stop they are left."""
        late = self._unended()
        if not late or self._stops or self._hurried:
            for index in late:
                self._links[index].end()
            return float("inf")
        self._hurried = True
        index, code = next(iter(self._codes.items()))
        name = self._hosts[index].name
        tell(f"muster submit: {name} has ended with exit code {code}: stopping the others\n")
        for index in late:
            self._links[index].send(frames.STOP)
        return time.monotonic() + stop_s(self._job) + END_S

    def _close(self, event: Event) -> None:
        """A host has sent all; it may remove what lies there only once it is on the disk here."""
        link = self._links[event.host]
        left_out = frames.fields_of(event.content).get("left_out") or []
        trouble = link.unpacker.trouble
        if not trouble and left_out:
            trouble = shortened(f"left out: {', '.join(map(str, left_out))}")
        self._over[event.host] = trouble
        if not trouble:
            link.send(frames.DONE)

    def _lost(self, event: Event) -> None:
        """The host itself stops its ranks; the others learn of it from one another."""
        self._gone.add(event.host)
        if event.host not in self._over:
            self._over[event.host] = "the connection ended"
            host = self._hosts[event.host].name
            tell(f"muster submit: {host}: the connection ended: {event.content.decode()}\n")

    def _tell_what_is_missing(self) -> None:
        """And puts the models of all hosts into one place, as `muster local` does."""
        for index, trouble in sorted(self._over.items()):
            if trouble:
                host = self._hosts[index]
                there = f"{host.destination}:{self._links[index].run}"
                tell(f"muster submit: {host.name}: record not complete ({trouble}); see {there}\n")
        with suppress(OSError):
            for clash in gather(self._job.run, [host.name for host in self._hosts]):
                tell(f"muster submit: model/{clash.path} is that of {clash.taken}\n")

    def _code(self) -> int:
        """The leader's word, unless it was only asked to end because another host had."""
        if self._hurried:
            return next(iter(self._codes.values()))
        if 0 in self._codes:
            return self._codes[0]
        known = list(self._codes.values())
        return known[0] if known else STOPPED_EXIT_CODE if self._stops else LOST_CODE
