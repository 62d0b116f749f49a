"""A record becomes a trace, on the leader's clock.

    process of a host      its main thread: phases, and what happened to the host
      rank N               from start to end; in it steps; its failure
      standstill           from when the ranks began to wait to when it was said
      rank N groups        lives of groups of muster_collectives
      rank N calls of G    the last calls of one that failed
      rank N thread ...    what torch.profiler recorded
    counters of the host   memory, processors and metrics of each rank

Slices of one thread may lie within one another or apart: Perfetto drops what overlaps otherwise.
Names are short and the same for the same thing, so that Perfetto can sum over them; the whole
texts are arguments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from muster.report.align import Aligned, align, guesses, leader_of
from muster.report.cells import number, sequence, whole
from muster.report.figures import last_time, left_out, phase_spans
from muster.report.read import OpenRecord
from muster.report.trace.calls import CallFiles
from muster.report.trace.profiles import MOST_FILES, Profiles, profile_files
from muster.report.trace.steps import MOST_STEPS, StepWriter, lines_a_slice, step_files
from muster.report.trace.writer import Sink, TraceWriter, Track
from muster.report.values import HostRecord, RecordEvent
from muster.types.outcome import ended
from muster.types.plain import shortened
from muster.types.run_files import COLLECTIVES, RECORD
from muster.types.values import NamedTuple

MOST_NAME = 200  # characters of a slice's name; its arguments hold the whole
_OTHERWISE = ("phase", "sample", "clock", "rank_started", "rank_ended", "left_out")
_TEXTS = {"failure": "summary", "missing": "text", "outcome": "headline", "stacks": "reason",
          "joined": "peer", "daemon_asked": "peer", "plan": "option"}  # fmt: skip
_OF_SCRIPTS = ("opt/ml/output", "opt/ml/model")  # below the folder of a host


class TraceMade(NamedTuple):
    """What was written. `missing`: what the trace lacks, in sentences."""

    hosts: int
    ranks: int
    events: int
    profiles: int
    missing: tuple[str, ...]


def make_trace(opened: OpenRecord, file: Sink, most_steps: int = MOST_STEPS) -> TraceMade:
    """Writes the trace of the record; of the steps about `most_steps` slices. Raises OSError where
    the file takes no more."""
    writer = TraceWriter(file)
    maker = _Maker(opened, writer)
    maker.write(most_steps)
    writer.close()
    return TraceMade(len(opened.record.hosts), len(maker.ranks), writer.events, maker.profiles,
                     tuple(dict.fromkeys(maker.missing)))  # fmt: skip


class _Maker:
    """One trace. `ranks`: their threads; `profiles`: how many files were merged."""

    def __init__(self, opened: OpenRecord, writer: TraceWriter) -> None:
        self._opened = opened
        self._record = opened.record
        self._folders = opened.folders
        self._writer = writer
        self._aligned: Aligned = align(self._record.hosts, leader_of(self._record.summary))
        self._end_s = last_time(self._record, self._aligned) or 0.0
        self._processes = {host.name: writer.process(host.name) for host in self._record.hosts}
        self._host_of: dict[int, str] = {}
        self.ranks: dict[int, Track] = {}
        self.profiles = 0
        self.missing = [*self._record.missing, *guesses(self._aligned),
                        *left_out(self._record)]  # fmt: skip

    def write(self, most_steps: int) -> None:
        for span in phase_spans(self._record, self._aligned):
            if span.host in self._processes:
                end_s = self._end_s if span.ends_s is None else span.ends_s
                self._writer.slice(self._processes[span.host], span.name, span.begins_s, end_s, {})
        files = {host.name: step_files(self._folders[host.name]) for host in self._record.hosts}
        every = lines_a_slice((file for found in files.values() for file in found), most_steps)
        if every > 1:
            why = "there are too many"
            self.missing.append(f"single steps: {every} lines of metrics are one slice, {why}")
        for host in self._record.hosts:
            known = {event.rank for event in host.events if event.rank is not None}
            for rank in sorted(known | {file.rank for file in files[host.name]} | {*host.samples}):
                if rank not in self.ranks:
                    self.ranks[rank] = self._writer.thread(
                        self._processes[host.name], f"rank {rank}"
                    )
                    self._host_of[rank] = host.name
            bounds = self._runs(host)
            self._events(host)
            self._samples(host)
            self._calls(host)
            at = partial(self._aligned.at_wall, host.name)
            if files[host.name] and host.name not in self._aligned.walls:
                self.missing.append(f"{host.name}: its steps are as good as its wall clock")
            for file in files[host.name]:
                around = bounds.get(file.rank, (0.0, float("inf")))
                steps = StepWriter(
                    self._writer, self.ranks[file.rank], at, around, self._opened.clean
                )
                try:
                    self.missing += steps.write(file, every)
                except OSError as error:
                    self.missing.append(f"metrics of rank {file.rank} cannot be read "
                                        f"({error.strerror or error})")  # fmt: skip
        self._merge_profiles()

    def _runs(self, host: HostRecord) -> dict[int, tuple[float, float]]:
        """A slice for each time that a process of a rank ran; from the first to the last."""
        began: dict[int, RecordEvent] = {}
        bounds: dict[int, tuple[float, float]] = {}

        def ran(rank: int, end_s: float, **args: object) -> None:
            event = began.pop(rank)
            begins_s = self._aligned.at(host.name, event.t)
            end_s = max(begins_s, end_s)
            bounds[rank] = bounds.get(rank, (begins_s, end_s))[0], end_s
            name = " ".join((f"rank {rank}", *map(str, args.values())))
            self._writer.slice(self.ranks[rank], name, begins_s, end_s, {**event.fields, **args})

        for event in sorted(host.events, key=lambda one: one.t):
            if event.rank is None:
                continue
            at_s = self._aligned.at(host.name, event.t)
            if event.kind == "rank_ended" and event.rank in began:
                ran(event.rank, at_s, end=ended(whole(event.fields.get("status")) or 0))
            elif event.kind == "rank_started":
                if event.rank in began:
                    ran(event.rank, at_s)
                began[event.rank] = event
        for rank in list(began):
            ran(rank, self._end_s)
        return bounds

    def _events(self, host: HostRecord) -> None:
        """What happened to the host and its ranks; kinds that this version does not know, too."""
        process = self._processes[host.name]
        for event in sorted(host.events, key=self._begins):
            if event.kind in _OTHERWISE:
                continue
            at_s = self._aligned.at(host.name, event.t)
            if event.kind == "stall":
                self._stall(event, process, at_s)
                continue
            if event.kind == "failure":
                # the leader's own time of it, unless it is of another clock
                said_s = (number(event.fields.get("at_s")) or 0.0) - self._aligned.began
                at_s = said_s if 0.0 <= said_s <= at_s else at_s
            text = event.fields.get(_TEXTS.get(event.kind, "text")) or ""
            name = shortened(f"{event.kind}: {text}" if text else event.kind, MOST_NAME)
            track = process if event.rank is None else self.ranks[event.rank]
            scope = "p" if event.kind == "outcome" else "t"
            self._writer.instant(track, name, at_s, event.fields, scope)

    def _begins(self, event: RecordEvent) -> float:
        """Of a standstill, when it began."""
        waited_s = number(event.fields.get("waited_s")) if event.kind == "stall" else None
        return event.t - max(0.0, waited_s or 0.0)

    def _stall(self, event: RecordEvent, process: Track, at_s: float) -> None:
        """The leader may say the same standstill again, longer: each has its own line then."""
        begins_s = max(0.0, at_s - (event.t - self._begins(event)))
        name = shortened(str(event.fields.get("verdict") or "stall"), MOST_NAME)
        track = self._writer.lane(process, "standstill", begins_s, at_s)
        self._writer.slice(track, name, begins_s, at_s, event.fields)
        for rank in sequence(event.fields.get("ranks")):
            known = whole(rank)
            if known in self.ranks:
                self._writer.instant(self.ranks[known], "holds up the others", at_s, event.fields)

    def _samples(self, host: HostRecord) -> None:
        """Counters: memory as it was, processors as they were used since the look before."""
        process = self._processes[host.name]
        for rank, samples in host.samples.items():
            before = None
            for sample in samples:
                values = {}
                if sample.memory_bytes is not None:
                    values["memory_bytes"] = sample.memory_bytes
                if before and sample.t > before.t and None not in (sample.cpu_s, before.cpu_s):
                    used_s = (sample.cpu_s or 0.0) - (before.cpu_s or 0.0)
                    values["cpus"] = round(max(0.0, used_s / (sample.t - before.t)), 3)
                before = sample
                at_s = self._aligned.at(host.name, sample.t)
                self._writer.counter(process, f"rank {rank}", at_s, values)

    def _calls(self, host: HostRecord) -> None:
        files = CallFiles(
            partial(self._aligned.at, host.name), partial(self._aligned.at_wall, host.name),
            self._pids(host), self._opened.clean,
        )  # fmt: skip
        folder = os.path.join(self._folders[host.name], COLLECTIVES)
        if bad := files.write(folder, self._writer, self._processes[host.name]):
            self.missing.append(f"{host.name}: {bad} files of its collectives cannot be read")

    def _pids(self, host: HostRecord) -> dict[int, int]:
        """Ranks by their processes, as these see their numbers themselves."""
        return {pid: event.rank for event in host.events if event.kind == "rank_started"
                if event.rank is not None
                and (pid := whole(event.fields.get("pid"))) is not None}  # fmt: skip

    def _merge_profiles(self) -> None:
        """A process without a group has its rank by its number, which counts on its host only: so
        the file must lie in that host's folder, unless there is one host."""
        hosts = self._record.hosts

        def rank_of(pid: int, path: str) -> int:
            if len(self.ranks) == 1:
                return next(iter(self.ranks))
            near = [one for one in hosts
                    if path.startswith(os.path.join(self._folders[one.name], ""))]  # fmt: skip
            return self._pids((near or hosts)[0])[pid] if near or len(hosts) == 1 else -1

        profiles = Profiles(
            self._writer,
            at_wall=lambda rank, time: self._aligned.at_wall(self._host_of[rank], time),
            rank_of=rank_of,
            process_of=lambda rank: self._processes[self._host_of[rank]],
            end_s=self._end_s,
            clean=self._opened.clean,
        )
        paths = profile_files(self._folders_of_scripts())
        if len(paths) > MOST_FILES:
            self.missing.append(f"{len(paths) - MOST_FILES} profiles: only {MOST_FILES} are merged")
        for path in paths[:MOST_FILES]:
            lacks = profiles.merge(path)
            self.profiles += "left out" not in lacks
            self.missing += [lacks] if lacks else []

    def _folders_of_scripts(self) -> Iterator[str]:
        """Where the script may have written profiles: in output and model."""
        for folder in self._folders.values():
            yield from (os.path.join(folder, one) for one in _OF_SCRIPTS)
        for place in self._opened.places:
            if os.path.basename(place) == RECORD:  # in output/data
                yield os.path.dirname(place)
                yield os.path.join(os.path.dirname(place), "../../model")
