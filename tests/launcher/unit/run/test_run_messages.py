"""Messages between hosts: each survives the wire, and nothing malformed becomes one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.run.channel import messages as m
from muster.run.channel import wire
from muster.run.channel.digest import HostDigest, RankFigures
from muster.run.channel.session import Session
from muster.types.machine import HostFacts
from muster.types.outcome import Failed, RankFailure, Stopped, Succeeded
from tests.launcher.support.peers.attackers import BIG_BOMBS, BOMBS, mutated
from tests.support.effort import chance, effort

FACTS = HostFacts(1, "10.0.0.2", "eth0", 8, 4, 0, True, False, "c0de", "1.2", "3.11.7")
FAILURE = RankFailure("algo-2", 5, -6, 12.5, "ValueError: x", "tail\n", True, False, "/log", "note")
HOST_ERROR = m.HostError("ConfigError", 100, "what", "fix", "detail")
END = m.RankEnd(rank=5, status=0, duration_s=1.25, stopped=False, forced=False)
SEEN = RankFigures(6)
EXAMPLES: list[m.Message] = [
    m.StagedHost(FACTS),
    m.Ready("d1gest", True),
    m.Registered(8),
    m.Report((FAILURE,)),
    m.Report((), HOST_ERROR),
    m.Stopping("SIGTERM"),
    m.HostEnded((END, END), (FAILURE,), {"stage": 0.5, "watch": 2}),
    m.HostEnded(
        (END,), (FAILURE,), {}, HostDigest((RankFigures(5, 1.5, 1 << 30, 9, 0.5, 2), SEEN), 3)
    ),
    m.FactsPart(0, 2, (FACTS, FACTS)),
    m.Go(),
    m.StartDaemon(("orted", "-mca", "ess", "env")),
    m.WindDown(),
    m.Stop(True, "SIGTERM on algo-2"),
    m.Verdict(Succeeded()),
    m.Verdict(Stopped("SIGTERM")),
    m.Verdict(Failed(1, "headline", "fix", "detail", FAILURE, 3, 2)),
    m.Verdict(Failed(102, "headline", "fix")),
    m.Leave(),
    m.Query(7, "roll", (0, 3)),
    m.Reply(7, 1, 2, "eJw="),
]


def over_the_wire(message: m.Message) -> m.Message:
    return m.from_wire(json.loads(json.dumps(m.to_wire(message))))


def test_every_kind_of_message_has_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == set(get_args(m.Message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: m.Message) -> None:
    again = over_the_wire(message)
    assert again == message
    assert type(again) is type(message)
    inner: Any = again
    if isinstance(inner, m.HostEnded):
        assert isinstance(inner.ranks[0], m.RankEnd)
        assert isinstance(inner.failures[0], RankFailure)
    if isinstance(inner, m.FactsPart):
        assert isinstance(inner.hosts[0], HostFacts)
    if isinstance(inner, m.Verdict) and isinstance(inner.outcome, Failed) and inner.outcome.first:
        assert isinstance(inner.outcome.first, RankFailure)


def spoiled(fields: list[Any]) -> list[list[Any]]:
    """The message with a field too few, one too many, and each field of another kind."""
    found = [fields[:-1], [*fields, 1]] if len(fields) > 1 else [[*fields, 1]]
    for i in range(1, len(fields)):
        others: list[Any] = [None, {}, [[]], "x", 1.5, True, -1]
        for other in others:
            found.append([*fields[:i], other, *fields[i + 1 :]])
        if isinstance(fields[i], list):
            for inner in spoiled(["", *fields[i]]):
                found.append([*fields[:i], inner[1:], *fields[i + 1 :]])
    return found


@pytest.mark.promise("S03")
@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_malformed_fields_are_refused_or_make_a_whole_message(message: m.Message) -> None:
    """Whatever is not refused can be sent on: it has the types that the rest relies on."""
    refused = 0
    for fields in spoiled(json.loads(json.dumps(m.to_wire(message)))):
        try:
            got = m.from_wire(fields)
        except m.WireError:
            refused += 1
            continue
        assert over_the_wire(got) == got
        check_types(got)
    assert refused


def check_types(value: Any) -> None:
    kinds: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool}
    for name, declared in type(value).__annotations__.items():
        field, annotation = getattr(value, name), getattr(declared, "__forward_arg__", declared)
        if annotation in kinds:
            assert isinstance(field, kinds[annotation]), (value, name)
            assert annotation == "bool" or not isinstance(field, bool), (value, name)
        elif isinstance(field, tuple) and hasattr(field, "_fields"):
            check_types(field)
        elif isinstance(field, tuple):
            for item in field:
                if hasattr(item, "_fields"):
                    check_types(item)
                else:
                    assert isinstance(item, str | int), (value, name)


@pytest.mark.promise("S03")
@pytest.mark.parametrize(
    "fields",
    [
        ["Nonsense"],
        ["Report"],
        ["Verdict", ["Nobody"]],
        ["Verdict", []],
        ["FactsPart", 2, 2, []],
        ["FactsPart", -1, 2, []],
        ["FactsPart", 0, 0, []],
        ["HostEnded", [], [], {}],
        ["HostEnded", [], [], [], None],
        ["HostEnded", [], [], {"stage": "long"}, None],
        ["HostEnded", [], [], {}, [[]]],
        ["HostEnded", [], [], {}, [[], -1]],
        ["HostEnded", [], [], {}, [{}, 0]],
        ["HostEnded", [], [], {}, [[[0]], True]],
        ["HostEnded", [], [], {}, [[[None]], 0]],
        ["HostEnded", [], [], {}, [[[0, 1e999]], 0]],
        ["HostEnded", [], [], {}, [[[0, None, 1.5]], 0]],
        ["HostEnded", [], [], {}, [[[0, None, None, True]], 0]],
        ["HostEnded", [], [], {}, [[[0, "1"]], 0]],
        ["HostEnded", [], [], {}, [[[0], [0]], 0]],
        ["_PLAIN"],
        ["__class__"],
        [],
        [None],
        [["Go"]],
        [{"Go": 1}],
        ["Go", {"LD_PRELOAD": "/x.so"}],
        ["StagedHost", [*FACTS[:4], 1 << 40, *FACTS[5:]]],
        ["StagedHost", [*FACTS[:4], -1, *FACTS[5:]]],
        ["StagedHost", [*FACTS, {"LD_PRELOAD": "/x.so"}]],
        ["Registered", 1e999],
        ["Registered", 10**400],
        ["Registered", 1 << 63],
        ["HostEnded", [], [], {"stage": 1e999}, None],
        ["HostEnded", [], [], {"stage": 10**400}, None],
        ["HostEnded", [], [], {"LD_PRELOAD": "/x.so"}, None],
        ["HostEnded", [[0, 0, 1e999, False, False]], [], {}, None],
    ],
    ids=repr,
)
def test_what_is_no_message_is_refused(fields: list[Any]) -> None:
    with pytest.raises(m.WireError):
        m.from_wire(fields)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)
names = st.sampled_from([type(message).__name__ for message in EXAMPLES])


@pytest.mark.promise("S03")
@given(names, st.lists(json_values, max_size=4))
def test_any_json_is_a_message_or_refused(name: str, values: list[object]) -> None:
    try:
        got = m.from_wire([name, *values])
    except m.WireError:
        return
    assert type(got).__name__ == name


@pytest.mark.promise("S03")
@given(st.lists(json_values, max_size=5), st.sampled_from(["m", "h", "e", "x"]))
def test_any_json_is_taken_by_a_session_or_refused(values: list[object], kind: str) -> None:
    try:
        Session(lambda message: None).take([kind, *values])
    except m.WireError:
        pass


@pytest.mark.parametrize("number", [1e999, -1e999, "9" * 5000, None, [], {}])
def test_a_number_that_is_none_is_refused(number: object) -> None:
    session = Session(lambda message: None)
    for payload in (["m", number, 0, ["Go"]], ["m", 1, number, ["Go"]], ["h", number]):
        with pytest.raises(m.WireError):
            session.take(payload)


@pytest.mark.parametrize("hosts", [1, 99, 100, 101, 1000])
def test_facts_of_a_thousand_hosts_fit_frames(hosts: int) -> None:
    facts = tuple(
        FACTS._replace(host_index=i, code_hash="c" * 64, interface="eth0123456789ab")
        for i in range(hosts)
    )
    parts = m.facts_parts(facts)
    assert [part.part for part in parts] == list(range(len(parts)))
    assert {part.parts for part in parts} == {len(parts)}
    assert tuple(host for part in parts for host in part.hosts) == facts
    for part in parts:
        wire.encode(["m", 10**9, 10**9, m.to_wire(part)])


@given(st.text(), st.integers(0, 60), st.booleans())
def test_a_shortened_text_fits_and_keeps_the_end_that_counts(
    text: str, limit: int, keep_end: bool
) -> None:
    short = m.shortened(text, limit, keep_end)
    assert len(json.dumps(short)) - 2 <= limit
    assert text.endswith(short) if keep_end else text.startswith(short)
    if len(json.dumps(text)) - 2 <= limit:
        assert short == text
    else:  # no more is left out than must be
        assert len(json.dumps(short)) - 2 > limit - 24


TEXTS = {  # every text that travels between hosts, and what it is; none is a variable or a command
    "HostFacts": {"address", "interface", "code_hash", "toolkit", "python", "mpi"},
    "RankFailure": {"host", "summary", "tail", "log", "note", "fix"},
    "HostError": {"kind", "message", "fix", "detail"},
    "Ready": {"digest"},
    "Stopping": {"by"},
    "Stop": {"by"},
    "Query": {"what"},  # one of a few words (run.observe.query)
    "Reply": {
        "text"
    },  # looks at ranks: lines of stacks, states; masked by the host that they are of
    "Stopped": {"by", "headline"},
    "Succeeded": {"headline"},
    "Failed": {"headline", "fix", "detail"},
}
# the words of a launcher: `run.daemon` takes a few values of them and never a command
OPEN_WORDS = {("StartDaemon", "asked")}
LATE = {"HostDigest": HostDigest}  # values of modules that are imported when they are needed
OPEN_MAPS = {("HostEnded", "phases")}  # state -> seconds: numbers only


@pytest.mark.promise("S09")
@pytest.mark.promise("S17")
def test_no_message_has_a_place_for_a_variable_or_a_command() -> None:
    """The schema of all messages: whoever adds a field that could carry either meets this list."""
    seen: set[type] = set()
    queue: list[Any] = [*get_args(m.Message), Succeeded, Stopped, Failed, RankFailure, HostFacts]
    queue += [m.HostError, m.RankEnd]
    while queue:
        kind = queue.pop()
        if kind in seen:
            continue
        seen.add(kind)
        texts: set[str] = set()
        for name, annotation in get_type_hints(kind, localns=LATE).items():
            if (kind.__name__, name) in OPEN_WORDS:
                assert annotation == tuple[str, ...]
            elif annotation is str:
                texts.add(name)
            elif get_origin(annotation) is Mapping:
                assert (kind.__name__, name) in OPEN_MAPS
                assert get_args(annotation) == (str, float)
            elif annotation not in (int, float, bool):
                plain = (type(None), Ellipsis, int, float)
                found = [item for item in flat(annotation) if item not in plain]
                assert all(hasattr(item, "_fields") for item in found), (kind, name)
                queue += found
        assert texts == TEXTS.get(kind.__name__, set()), kind


def flat(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [leaf for item in inner for leaf in flat(item)] if inner else [annotation]


@pytest.mark.effort
@pytest.mark.promise("S03")
@pytest.mark.timeout(900)
def test_nothing_that_is_decoded_takes_long_or_fails_otherwise() -> None:
    """Frames of true hosts with pieces changed, cut, doubled and swapped, and bombs of JSON."""
    source = chance()
    frames = [wire.encode(["m", 1, 0, m.to_wire(message)]) for message in EXAMPLES]
    frames += [wire.encode(["h", 1, 2.5]), wire.encode(["e", 1, 2.5, 3.5]), *BOMBS]
    messages = 0
    for _ in range(5_000 * effort()):
        data = mutated(source.choice(frames), source)
        if source.random() < 0.1:
            data += mutated(source.choice(frames), source)
        got: list[m.Message] = []
        began = time.process_time()
        try:
            Session(got.append).take(wire.decode(data))
        except m.WireError:
            pass
        assert time.process_time() - began < 10, data
        messages += len(got)
        for message in got:
            check_types(message)
            assert over_the_wire(message) == message
    assert messages > 0  # some changes are harmless


@pytest.mark.promise("S03")
@pytest.mark.parametrize("bomb", range(len(BIG_BOMBS)))
def test_a_bomb_of_a_whole_frame_is_refused_in_no_time(bomb: int) -> None:
    data = BIG_BOMBS[bomb]
    assert len(data) <= wire.FRAME_LIMIT_BYTES
    began = time.process_time()
    with pytest.raises(m.WireError):
        Session(lambda message: None).take(wire.decode(data))
    assert time.process_time() - began < 10


@pytest.mark.promise("S08")
def test_what_a_host_tells_of_a_failure_is_masked_by_it() -> None:
    def mask(text: str) -> str:
        return text.replace("canary", "***")

    failure = FAILURE._replace(summary="E: canary", tail="canary\n", note="canary")
    host_error = m.HostError("InstallError", 101, "canary", "not canary", "canary canary")
    for message in (m.Report((failure,), host_error), m.HostEnded((END,), (failure,), {})):
        got = m.without_secrets(message, mask)
        assert "canary" not in json.dumps(m.to_wire(got))
        assert type(got) is type(message)
        assert m.without_secrets(got, mask) == got
    assert m.without_secrets(m.Ready("canary"), mask) == m.Ready("canary")
