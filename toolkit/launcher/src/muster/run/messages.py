"""What hosts tell the leader and what the leader tells them: one small value per message.

The leader's own host uses the same messages, without a network in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from muster.spec.machine import HostFacts
from muster.spec.outcome import Outcome, RankFailure, outcome_from_json, outcome_to_json

FACTS_PER_FRAME = 100


class WireError(Exception):
    """The peer sent what no peer of this job sends: the connection is dropped."""


class RankEnd(NamedTuple):
    """How one rank of a host ended. `forced`: it had to be killed at the end of its grace."""

    rank: int
    status: int
    duration_s: float
    forced: bool


class Trouble(NamedTuple):
    """A failure that is not a rank's: `kind` names a class of spec.errors."""

    kind: str
    exit_code: int
    message: str
    fix: str
    detail: str


class StagedHost(NamedTuple):
    """To the leader: the host's code lies ready."""

    facts: HostFacts


class Ready(NamedTuple):
    """To the leader: the host has planned and could spawn."""

    digest: str


class Registered(NamedTuple):
    """To the leader: all ranks of the host run."""

    ranks: int


class Report(NamedTuple):
    """To the leader: ranks that failed, or the trouble of a host before it had ranks."""

    failures: tuple[RankFailure, ...]
    trouble: Trouble | None = None


class Stopping(NamedTuple):
    """To the leader: the host was told to stop from outside."""

    by: str


class HostEnded(NamedTuple):
    """To the leader: no rank of the host runs any more."""

    ranks: tuple[RankEnd, ...]
    failures: tuple[RankFailure, ...]
    phases: Mapping[str, float]


class FactsPart(NamedTuple):
    """To a host: facts of all hosts, in parts that fit frames."""

    part: int
    parts: int
    hosts: tuple[HostFacts, ...]


class Go(NamedTuple):
    """To a host: everybody is ready, start the ranks."""


class Stop(NamedTuple):
    """To a host: end the ranks. `external`: asked for from outside, so with the long grace.

    It is also the acknowledgement that a reporting host waits for before it acts.
    """

    external: bool
    by: str


class Verdict(NamedTuple):
    """To a host: how the job ended. Nothing changes it any more."""

    outcome: Outcome


class Leave(NamedTuple):
    """To a host: the leader has written its files, go."""


ToLeader = Union[StagedHost, Ready, Registered, Report, Stopping, HostEnded]  # noqa: UP007
ToHost = Union[FactsPart, Go, Stop, Verdict, Leave]  # noqa: UP007
Message = Union[ToLeader, ToHost]  # noqa: UP007

_PLAIN = {kind.__name__: kind for kind in (Ready, Registered, Stopping, Go, Stop, Leave)}


def to_wire(message: Message) -> list[object]:
    """The message as a JSON list: its class name, then its fields."""
    if isinstance(message, Verdict):
        return ["Verdict", outcome_to_json(message.outcome)]
    return [type(message).__name__, *message]


def from_wire(fields: list[Any]) -> Message:
    """The inverse of `to_wire`. Raises WireError for anything that is not a message."""
    name, *values = fields
    try:
        if isinstance(name, str) and name in _PLAIN:
            return _PLAIN[name](*values)
        if name == "Verdict":
            return Verdict(outcome_from_json(values[0]))
        if name == "StagedHost":
            return StagedHost(HostFacts(*values[0]))
        if name == "FactsPart":
            part, parts, hosts = values
            facts = tuple(HostFacts(*host) for host in hosts)
            return FactsPart(int(part), int(parts), facts)
        if name == "Report":
            failures, trouble = values
            return Report(_failures(failures), trouble and Trouble(*trouble))
        if name == "HostEnded":
            ranks, failures, phases = values
            ends = tuple(RankEnd(*rank) for rank in ranks)
            return HostEnded(ends, _failures(failures), phases)
    except (TypeError, ValueError, IndexError) as error:
        raise WireError(f"a {name} with wrong fields") from error
    raise WireError(f"an unknown message {name!r}")


def facts_parts(facts: tuple[HostFacts, ...]) -> list[FactsPart]:
    """The facts of all hosts in frames of bounded size."""
    chunks = [facts[i : i + FACTS_PER_FRAME] for i in range(0, len(facts), FACTS_PER_FRAME)]
    return [FactsPart(i, len(chunks), chunk) for i, chunk in enumerate(chunks)]


def _failures(values: Any) -> tuple[RankFailure, ...]:
    return tuple(RankFailure(*value) for value in values)
