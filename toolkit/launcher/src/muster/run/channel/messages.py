"""The messages between hosts and their leader: one small value each.

The leader's own host uses the same messages, without a network in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

from muster.types.machine import HostFacts
from muster.types.outcome import (
    Failed,
    Outcome,
    RankFailure,
    outcome_from_json,
    outcome_to_json,
)
from muster.types.values import Bare, NamedTuple

if TYPE_CHECKING:
    from muster.run.channel.digest import HostDigest

MESSAGE_BYTES = (64 << 10) - 256  # of a frame, less what goes around a message in it
FACTS_BYTES = 48 << 10  # of one frame
MOST_DEVICES = 1 << 14  # CPUs, GPUs or Neuron cores of one host
JSON_BYTES_PER_CHARACTER = 12  # at most: \ud83d\ude00
REPLY_BYTES = 48 << 10  # of one part of an answer
MOST_PARTS = 512  # of one answer
MOST_RANKS_ASKED = 8192  # of one question: they fit a frame


class WireError(Exception):
    """The peer sent what no peer of this job sends: the connection is dropped."""


class RankEnd(NamedTuple):
    """How one rank of a host ended. `stopped`: after a signal from muster; `forced`: it had to be
    killed at the end of its grace."""

    rank: int
    status: int
    duration_s: float
    stopped: bool
    forced: bool


class HostError(NamedTuple):
    """A failure that is not a rank's: `kind` names a class of types.errors. `victim`: of a server
    that says that it lost a rank, whose own failure counts more."""

    kind: str
    exit_code: int
    message: str
    fix: str
    detail: str
    victim: bool = False


class StagedHost(NamedTuple):
    """To the leader: the host's code lies ready."""

    facts: HostFacts


class Ready(NamedTuple):
    """To the leader: the host has planned and could spawn. `ends_with_rank0`: as in its plan."""

    digest: str
    ends_with_rank0: bool = False


class Registered(NamedTuple):
    """To the leader: all ranks of the host run."""

    ranks: int


class Report(NamedTuple):
    """To the leader: ranks that failed, or the error of a host before it had ranks."""

    failures: tuple[RankFailure, ...]
    host_error: HostError | None = None


class Stopping(NamedTuple):
    """To the leader: the host received a stop signal."""

    by: str


class HostEnded(NamedTuple):
    """To the leader: no rank of the host runs any more. `digest`: what was seen of its ranks, None
    where nobody looked."""

    ranks: tuple[RankEnd, ...]
    failures: tuple[RankFailure, ...]
    phases: Mapping[str, float]
    digest: HostDigest | None = None


class FactsPart(NamedTuple):
    """To a host: facts of all hosts, in parts that fit frames."""

    part: int
    parts: int
    hosts: tuple[HostFacts, ...]


class Go(Bare):
    """To a host: all hosts are ready, start the ranks."""


class StartDaemon(NamedTuple):
    """To a host: the leader's launcher asks for its launch daemon, with this command line."""

    asked: tuple[str, ...]


class WindDown(Bare):
    """To a host: rank 0 has ended well, and with it the work; end ranks that do nothing more."""


class Stop(NamedTuple):
    """To a host: end the ranks. `external`: asked for from outside, so with the long grace.

    It is also the acknowledgement that a reporting host waits for before it acts.
    """

    external: bool
    by: str


class Verdict(NamedTuple):
    """To a host: how the job ended. Nothing changes it any more."""

    outcome: Outcome


class Leave(Bare):
    """To a host: the leader has written its files, go."""


class Query(NamedTuple):
    """A question about ranks, beside the life of the job: to a host about its own (`ranks`; none:
    all of them), to the leader about the whole job. `number`: the asker's, in the answer's parts
    too. `what`: see `run.observe.query`."""

    number: int
    what: str
    ranks: tuple[int, ...] = ()


class Reply(NamedTuple):
    """One part of the answer to a question: `REPLY_BYTES` of base64 text at most."""

    number: int
    part: int
    parts: int
    text: str


Question = Union[Query, Reply]  # noqa: UP007 - beside the state machines, which never see them
ToLeader = Union[StagedHost, Ready, Registered, Report, Stopping, HostEnded]  # noqa: UP007
ToHost = Union[FactsPart, Go, StartDaemon, WindDown, Stop, Verdict, Leave]  # noqa: UP007
Message = Union[ToLeader, ToHost, Question]  # noqa: UP007

_PLAIN: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (Ready, Registered, Stopping, Go, WindDown, Stop, Leave)
}


def to_wire(message: Message) -> list[object]:
    """The message as a JSON list: its class name, then its fields."""
    if isinstance(message, Verdict):
        return ["Verdict", outcome_to_json(message.outcome)]
    if isinstance(message, FactsPart):
        return ["FactsPart", message.part, message.parts, _grouped(message.hosts)]
    return [type(message).__name__, *message]


def from_wire(fields: list[Any]) -> Message:
    """The inverse of `to_wire`. Raises WireError for anything that is not a message."""
    name, *values = fields or [""]
    try:
        if isinstance(name, str) and name in _PLAIN:
            plain: Message = _typed(_PLAIN[name], values)
            return plain
        if name == "Verdict":
            (outcome,) = values
            return Verdict(_outcome(outcome))
        if name == "StartDaemon":
            (asked,) = values
            return StartDaemon(tuple(_text(word) for word in _list_of(asked)))
        if name == "StagedHost":
            (facts,) = values
            return StagedHost(_facts(facts))
        if name == "Report":
            failures, host_error = values
            error = None if host_error is None else _typed(HostError, host_error)
            return Report(_failures(failures), error)
        if isinstance(name, str) and name in _MADE:
            return _MADE[name](*values)
    except (TypeError, ValueError) as error:
        raise WireError(f"a {name} with wrong fields") from error
    raise WireError("an unknown message")


def facts_parts(facts: tuple[HostFacts, ...]) -> list[FactsPart]:
    """The facts of all hosts in frames of bounded size."""
    chunks = _fitting(facts)
    return [FactsPart(i, len(chunks), chunk) for i, chunk in enumerate(chunks)]


def _fitting(facts: tuple[HostFacts, ...]) -> list[tuple[HostFacts, ...]]:
    """The facts in pieces that take at most `FACTS_BYTES` each, but for one of a single host."""
    import json

    if len(facts) <= 1 or len(json.dumps(_grouped(facts))) <= FACTS_BYTES:
        return [facts]
    half = len(facts) // 2
    return _fitting(facts[:half]) + _fitting(facts[half:])


def _grouped(facts: tuple[HostFacts, ...]) -> list[list[object]]:
    """What hosts have in common, once, and the place and address of each. Every host gets the
    facts of all: their bytes grow with the square of the hosts."""
    groups: dict[tuple[object, ...], list[object]] = {}
    for host in facts:
        groups.setdefault(tuple(host[2:]), []).append(list(host[:2]))
    return [[list(common), members] for common, members in groups.items()]


def _ungrouped(groups: Any) -> tuple[HostFacts, ...]:
    """The inverse of `_grouped`, in the order of the hosts."""
    facts = [
        _facts([*_list_of(member), *_list_of(common)])
        for common, members in _list_of(groups)
        for member in _list_of(members)
    ]
    return tuple(sorted(facts, key=lambda host: host.host_index))


def without_secrets(message: ToLeader, mask: Callable[[str], str]) -> ToLeader:
    """The message with its texts masked by the host that it is from: a secret may be known there
    and nowhere else, and frames are not encrypted."""
    if not isinstance(message, Report | HostEnded):
        return message
    failures = tuple(
        one._replace(
            summary=mask(one.summary),
            tail=mask(one.tail),
            note=mask(one.note),
            fix=mask(one.fix),
        )
        for one in message.failures
    )
    if isinstance(message, HostEnded):
        return _fitting_frame(message._replace(failures=failures))
    error = message.host_error
    if error is not None:
        error = error._replace(
            message=mask(error.message), fix=mask(error.fix), detail=mask(error.detail)
        )
    return Report(failures, error)


def _fitting_frame(message: HostEnded) -> HostEnded:
    """The message with as much of its digest as its frame has room for: ends and failures first."""
    if message.digest is None:
        return message
    import json

    from muster.run.channel.digest import DIGEST_BYTES, fitting

    others = json.dumps(to_wire(message._replace(digest=None)), separators=(",", ":"))
    room = min(DIGEST_BYTES, MESSAGE_BYTES - len(others))
    return message._replace(digest=fitting(message.digest, room) if room > 0 else None)


def shortened(text: str, limit_bytes: int, keep_end: bool = False) -> str:
    """The beginning of the text, or its end, as far as it takes that many bytes of JSON."""
    import json

    while (excess := len(json.dumps(text)) - 2 - limit_bytes) > 0:
        cut = -(-excess // JSON_BYTES_PER_CHARACTER)
        text = text[cut:] if keep_end else text[:-cut]
    return text


_HUGE = 1 << 63
_CHECKED = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_Values = TypeVar("_Values", bound=tuple)  # type: ignore[type-arg]  # any of the classes above


def _typed(kind: type[_Values], values: Any) -> _Values:
    """The value of JSON fields. Raises TypeError for a plain field that has not its type."""
    made = kind(*_list_of(values))
    for value, annotation in zip(made, kind.__annotations__.values(), strict=True):
        types = _CHECKED.get(getattr(annotation, "__forward_arg__", annotation))
        if types is not None and (type(value) not in types or not _is_sane(value)):
            raise TypeError(f"a {type(value).__name__} in a {kind.__name__}")
    return made


def _is_sane(value: Any) -> bool:
    """Not a number that sums, clocks and JSON cannot take: infinite, or of hundreds of digits."""
    return not isinstance(value, int | float) or -_HUGE < value < _HUGE


def _list_of(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise TypeError("not a list")
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _facts(values: Any) -> HostFacts:
    """Raises ValueError for a machine that there is not: every host plans for its devices."""
    made = _typed(HostFacts, values)
    if not all(0 <= count <= MOST_DEVICES for count in (made.cpus, made.gpus, made.neurons)):
        raise ValueError("a host of impossible size")
    return made


def _facts_part(part: Any, parts: Any, hosts: Any) -> FactsPart:
    made = _typed(FactsPart, [part, parts, _ungrouped(hosts)])
    if not 0 <= made.part < made.parts:
        raise ValueError("a part that does not exist")
    return made


def _host_ended(ranks: Any, failures: Any, phases: Any, digest: Any) -> HostEnded:
    ends = tuple(_typed(RankEnd, rank) for rank in _list_of(ranks))
    if not isinstance(phases, dict) or not all(
        type(s) in (int, float) and _is_sane(s) for s in phases.values()
    ):
        raise TypeError("durations that are not numbers")
    if digest is not None:
        from muster.run.channel.digest import (
            digest_from_json,  # jobs that nobody watched do without
        )

        digest = digest_from_json(digest)
    return HostEnded(ends, _failures(failures), phases, digest)


def _query(number: Any, what: Any, ranks: Any) -> Query:
    made = _typed(Query, [number, what, ()])
    asked = _list_of(ranks)
    if len(asked) > MOST_RANKS_ASKED or len(made.what) > 32:
        raise ValueError("a question of impossible size")
    if not all(type(rank) is int and 0 <= rank < 1 << 31 for rank in asked):
        raise TypeError("a rank that is none")
    return made._replace(ranks=tuple(asked))


def _reply(*values: Any) -> Reply:
    made = _typed(Reply, list(values))
    if not 0 <= made.part < made.parts <= MOST_PARTS or len(made.text) > REPLY_BYTES:
        raise ValueError("a part that does not exist, or is too large")
    return made


def _failures(values: Any) -> tuple[RankFailure, ...]:
    return tuple(_typed(RankFailure, value) for value in _list_of(values))


def _outcome(values: Any) -> Outcome:
    made = outcome_from_json(_list_of(values))
    if isinstance(made, Failed) and made.first is not None:
        made = made._replace(first=_typed(RankFailure, list(made.first)))
    return _typed(type(made), list(made))


_MADE: Mapping[str, Callable[..., Message]] = {
    "FactsPart": _facts_part,
    "HostEnded": _host_ended,
    "Query": _query,
    "Reply": _reply,
}
