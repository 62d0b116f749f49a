"""The events of a run's record: every kind, its fields, and what they mean.

The code that emits events does not import this: tests compare each line that a job of theirs
records, and docs/reference/record.md, with the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.types.values import NamedTuple

SCHEMA = 1  # in every line; kinds and fields are only ever added, anything else raises it


class Field(NamedTuple):
    """One field. `type`: int, float, str, bool, list or object, with `?` when it may be null or
    absent."""

    name: str
    type: str
    meaning: str


class Kind(NamedTuple):
    """One kind of event, and what it has beside `COMMON`. `reserved`: nothing emits it yet."""

    name: str
    meaning: str
    fields: tuple[Field, ...] = ()
    reserved: bool = False


COMMON = (
    Field("schema", "int", f"version of this table: {SCHEMA}"),
    Field("t", "float", "seconds of the host's monotonic clock"),
    Field("time", "float", "seconds since 1970 by the host's clock"),
    Field("host", "str", "name of the host that recorded it"),
    Field("rank", "int?", "the rank it is about"),
    Field("kind", "str", "a kind below"),
)

_TABLE = (
    Kind("phase", "the host enters a phase", (
        Field("name", "str", "its name, as in `phases` of summary.json"),
    )),
    Kind("joined", "leader: a host was admitted", (
        Field("peer", "str", "that host"),
    )),
    Kind("missing", "leader: what it waits for", (
        Field("text", "str", "a sentence that names the hosts"),
    )),
    Kind("clock", "follower: the offset of its clock is known, or changed by over 1 ms", (
        Field("offset_s", "float", "added to `t`, it gives the leader's clock"),
        Field("round_trip_s", "float", "of the message that measured it; the error is half"),
    )),
    Kind("plan", "the host has planned", (
        Field("option", "str", "the distribution option"),
        Field("world_size", "int", "ranks of the world"),
        Field("digest", "str", "equal on all hosts; empty for a job of one"),
        Field("ranks", "object", "host: its ranks, as `0-7` or `0,3`"),
    )),
    Kind("daemon_asked", "leader: mpirun starts its launch daemon on a host", (
        Field("peer", "str", "that host"),
    )),
    Kind("rank_started", "the process of a rank runs", (
        Field("pid", "int", "its process"),
        Field("pid_namespace", "int?", "in which `pid` counts, as `lsns` shows it"),
        Field("world_size", "int", "ranks of the world"),
    )),
    Kind("rank_ended", "the process of a rank has ended", (
        Field("status", "int", "exit code, or minus the signal"),
        Field("stopped", "bool", "after a signal of muster"),
    )),
    Kind("failure", "a rank failed", (
        Field("status", "int", "exit code, or minus the signal"),
        Field("summary", "str", "the exception, or how it ended, or empty"),
        Field("at_s", "float", "when that began, by the leader's monotonic clock"),
        Field("peer_lost", "bool", "of the kind that a rank shows when another went away first"),
    )),
    Kind("sample", "one look at a rank", (
        Field("pid", "int", "its process"),
        Field("cpu_s", "float?", "processor time of its process tree so far"),
        Field("run_delay_s", "float?", "time so far in which it could run and had no processor"),
        Field("memory_bytes", "int?", "resident memory of its process tree"),
        Field("state", "str?", "the letter of /proc/PID/stat"),
        Field("wchan", "str?", "the kernel function in which its main thread waits"),
        Field("silent_s", "float?", "since its last output"),
        Field("throttled_s", "float?", "time so far in which a limit of its cgroup held it"),
        Field("steal_s", "float?", "time so far that the machine gave to other machines"),
        Field("major_faults", "int?", "how often so far it waited for memory to come from a disk"),
    )),
    Kind("straggler", "leader: a rank holds up the others", (
        Field("own_s", "float", "its own time of a step, without waiting: the median"),
        Field("own_p95_s", "float", "the 95th percentile of the same"),
        Field("factor", "float", "how many times as long the job's steps take because of it"),
        Field("cause", "str", "what holds it up, as far as was seen; empty where it was not"),
        Field("text", "str", "the sentence of the log"),
    )),
    Kind("stall", "leader: the job stands still, or was asked for its state", (
        Field("verdict", "str", "who waits for whom, and where that one is"),
        Field("ranks", "list", "the ranks that hold up the others; none where nobody does"),
        Field("waited_s", "float?", "for how long"),
    )),
    Kind("stacks", "stacks of ranks were written", (
        Field("file", "str", "their file, below the host's folder"),
        Field("reason", "str", "who asked"),
    )),
    Kind("outcome", "how the job ended", (
        Field("result", "str", "Succeeded, Failed or Stopped"),
        Field("exit_code", "int", "of every host"),
        Field("headline", "str", "first line of the failure file"),
    )),
    Kind("left_out", "the last line of a record that took no more", (
        Field("samples", "int", "how many of kind sample are missing"),
        Field("events", "int", "how many of other kinds are missing"),
    )),
    Kind("step", "a rank finished a step", reserved=True),
    Kind("metric", "a rank reported a value", reserved=True),
    Kind("fault", "`muster local --fault` did something to the job, or could not", (
        Field("spec", "str", "what repeats it"),
        Field("what", "str", "its kind: kill, freeze, slow, cut, disk or stop"),
        Field("target", "str", "whom it hit, in words; empty for the whole job or nobody"),
        Field("landed", "bool", "whether it hit"),
        Field("text", "str", "what landed and when, or why nothing did"),
    )),
)  # fmt: skip

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _TABLE}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list,),
    "object": (dict,),
}


def problems(event: Mapping[str, object]) -> list[str]:
    """What the table does not know of one line of events.jsonl, in words; empty when it fits."""
    kind = KINDS.get(str(event.get("kind")))
    if kind is None:
        return [f"kind {event.get('kind')!r} is not in the table"]
    if kind.reserved:
        return [f"kind {kind.name} is reserved"]
    known = {field.name: field for field in (*COMMON, *kind.fields)}
    found = [f"{kind.name}: field {name} is not in the table" for name in event.keys() - known]
    for field in known.values():
        value = event.get(field.name)
        if value is None and field.type.endswith("?"):
            continue
        if type(value) not in _TYPES[field.type.rstrip("?")]:
            found.append(f"{kind.name}: {field.name} is {value!r}, expected {field.type}")
    if event.get("schema") != SCHEMA:
        found.append(f"{kind.name}: schema {event.get('schema')!r}, expected {SCHEMA}")
    return found
