"""Frames of the control channel: what is sent arrives, and nothing else does (S03)."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.run.channel import wire
from muster.run.channel.identity import BRIEF_BYTES, PROTOCOL, brief, briefs
from muster.run.channel.messages import WireError

KEY = bytes(range(32))
OTHER = bytes(32)

payloads = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


def sealer(key: bytes | None = KEY, direction: bytes = wire.TO_LEADER) -> wire.Sealer:
    made = wire.Sealer(direction)
    made.key = key
    return made


def opener(key: bytes | None = KEY, direction: bytes = wire.TO_LEADER) -> wire.Opener:
    made = wire.Opener(direction)
    made.key = key
    return made


def all_of(one: wire.Opener) -> list[bytes]:
    found = []
    while (payload := one.next()) is not None:
        found.append(payload)
    return found


@given(payloads, st.sampled_from([None, KEY]), st.randoms(use_true_random=False))
def test_what_is_sealed_is_opened_however_the_bytes_are_cut(
    sent: list[bytes], key: bytes | None, random: object
) -> None:
    out, taken = sealer(key), opener(key)
    stream = b"".join(out.frame(payload) for payload in sent)
    found: list[bytes] = []
    while stream:
        cut = random.randint(1, 70)  # type: ignore[attr-defined]
        taken.feed(stream[:cut])
        stream = stream[cut:]
        found += all_of(taken)
    assert found == sent


@pytest.mark.promise("S03")
@given(payloads.filter(len), st.data())
def test_a_changed_byte_is_never_taken_for_a_message(
    sent: list[bytes], data: st.DataObject
) -> None:
    out, taken = sealer(), opener()
    stream = bytearray(b"".join(out.frame(payload) for payload in sent))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    taken.feed(bytes(stream))
    found = []
    try:
        while (payload := taken.next()) is not None:
            found.append(payload)
        complete = False  # a longer length was announced: nothing of it is given out
    except WireError:
        complete = False
    assert not complete
    assert found == sent[: len(found)]
    assert len(found) < len(sent)


@pytest.mark.promise("S03")
def test_a_frame_of_another_key_place_or_direction_is_refused() -> None:
    out = sealer()
    first, second = out.frame(b"[1]"), out.frame(b"[2]")
    hostile = {
        "another key": sealer(OTHER).frame(b"[1]"),
        "no key": sealer(None).frame(b"[1]" + bytes(32)),
        "the other direction": sealer(direction=wire.TO_FOLLOWER).frame(b"[1]"),
        "out of order": second,
    }
    for name, frame in hostile.items():
        taken = opener()
        taken.feed(frame)
        with pytest.raises(WireError):
            pytest.fail(f"{name}: {taken.next()!r}")
    again = opener()
    again.feed(first)
    assert again.next() == b"[1]"
    again.feed(first)
    with pytest.raises(WireError):
        again.next()


@pytest.mark.promise("S03")
@pytest.mark.parametrize(
    ("key", "size", "good"),
    [
        (None, 0, False),
        (None, 1, True),
        (None, wire.HELLO_LIMIT_BYTES, True),
        (None, wire.HELLO_LIMIT_BYTES + 1, False),
        (None, 2**32 - 1, False),
        (None, -1, False),
        (KEY, wire.MAC_BYTES, False),
        (KEY, wire.FRAME_LIMIT_BYTES + 1, False),
    ],
)
def test_the_announced_length_is_checked_before_anything_is_kept(
    key: bytes | None, size: int, good: bool
) -> None:
    taken = opener(key)
    taken.feed((size % 2**32).to_bytes(4, "big"))
    if good:
        assert taken.next() is None
        taken.feed(b"x" * size)
        assert taken.next() == b"x" * size
    else:
        with pytest.raises(WireError):
            taken.next()


@pytest.mark.promise("S19")
def test_an_opener_never_holds_more_than_a_frame_and_a_read() -> None:
    out, taken = sealer(), opener()
    frame = out.frame(b"x" * 60_000)
    tracemalloc.start()
    try:
        for _ in range(200):
            taken.feed(frame)
            all_of(taken)
            frame = out.frame(b"x" * 60_000)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 8 * wire.FRAME_LIMIT_BYTES  # copies of one frame on their way, not 200 frames


@given(st.binary(max_size=200))
def test_garbage_is_no_message(data: bytes) -> None:
    taken = opener()
    taken.feed(data)
    try:
        assert taken.next() is None
    except WireError:
        pass
    try:
        message = wire.decode(data)
    except WireError:
        return
    assert isinstance(message[0], str)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[1]", '"h"', "[null]", "nul", "[" * 100_000, '["h",NaN]', '["h",-Infinity]'],
)
def test_only_lists_that_begin_with_a_name_are_messages(text: str) -> None:
    with pytest.raises(WireError):
        wire.decode(text.encode())


@given(st.lists(st.one_of(st.integers(), st.text(), st.booleans(), st.none()), max_size=5))
def test_a_message_survives_its_encoding(fields: list[object]) -> None:
    assert wire.decode(wire.encode(["name", *fields])) == ["name", *fields]


def test_a_message_that_does_not_fit_is_an_error_of_the_sender() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        wire.encode(["m", "x" * wire.FRAME_LIMIT_BYTES])


@given(st.lists(st.binary(max_size=20), max_size=4), st.lists(st.binary(max_size=20), max_size=4))
def test_parts_of_a_proof_cannot_run_together(one: list[bytes], two: list[bytes]) -> None:
    same = wire.derive(KEY, "p", *one) == wire.derive(KEY, "p", *two)
    assert same == (one == two)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=16), st.binary())
def test_the_mask_comes_off_with_the_secret_only(key: bytes, secret: bytes, part: bytes) -> None:
    hidden = wire.masked(key, secret, part)
    assert wire.masked(hidden, secret, part) == key
    assert wire.masked(hidden, secret + b"x", part) != key


@given(st.text())
def test_a_proof_of_any_text_is_compared_without_an_error(given_proof: str) -> None:
    assert wire.equal("ab" * 32, given_proof) == (given_proof == "ab" * 32)
    assert not wire.equal("ab" * 32, "\ud800")


@given(st.dictionaries(st.text(), st.text()))
def test_a_digest_does_not_depend_on_the_order(value: dict[str, str]) -> None:
    assert wire.digest_of(value) == wire.digest_of(dict(reversed(value.items())))
    assert wire.digest_of(value) != wire.digest_of({**value, "x" * 500: json.dumps(value)})


@pytest.mark.promise("S19")
def test_the_longest_hello_fits_the_small_frame_before_it_is_known() -> None:
    """Texts of any length are shortened; names of hosts have at most 253 characters."""
    long = "\U0001f600" * 100_000
    agreed = dict.fromkeys(["hosts", "program", "distribution", "hyperparameters", "toolkit"], long)
    hello = ["hello", PROTOCOL, brief(long), 10**7, "a" * 253, briefs(agreed), "00" * 16, "00" * 32]
    size = len(wire.encode([*hello, False, 10**18]))
    assert size <= wire.HELLO_LIMIT_BYTES * 3 // 4


@given(st.text(max_size=600), st.text(max_size=600))
def test_brief_texts_are_equal_when_the_texts_are(one: str, other: str) -> None:
    assert (brief(one) == brief(other)) == (one == other)
    assert len(json.dumps(brief(one))) <= BRIEF_BYTES + 2
    assert brief(brief(one)) == brief(one)


@pytest.mark.parametrize("end", ["", "x"])
def test_long_texts_that_differ_at_their_end_differ_in_brief(end: str) -> None:
    one, other = "x" * 5000 + end, "x" * 5000 + "y" + end
    assert brief(one) != brief(other)
    assert brief(one).startswith("xxxx")
