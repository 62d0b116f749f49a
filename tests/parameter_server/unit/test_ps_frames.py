"""Frames, handshakes and registrations of the parameter server: what is no good is refused."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_collectives.bootstrap.channel import PROTOCOL as STORE
from muster_collectives.wire import ANSWER_BYTES, HEADER_BYTES, FrameError, Protocol
from muster_parameter_server.errors import (
    AgreementError,
    ParameterServerError,
    ProtocolError,
    from_message,
    to_message,
)
from muster_parameter_server.layout import TensorSpec
from muster_parameter_server.options import Registration, hyper_of, registration_of, sgd, slots_of
from muster_parameter_server.wire import frames
from muster_parameter_server.wire.frames import DTYPES, PROTOCOL, Kind
from tests.support.effort import chance, effort

FLOAT = DTYPES["float32"]
GOOD = frames.tensor_header(7, FLOAT, 15)
HEADER = struct.Struct("!4sBBBHQQ")


def test_a_tensor_header_says_what_was_put_in() -> None:
    header = frames.decode(GOOD, 7)
    assert header == (Kind.TENSOR, FLOAT, 60)


def test_a_text_frame_says_what_was_put_in() -> None:
    data = frames.text_frame(Kind.PUSH, 1, {"step": 3, "lr": 0.1})
    header = frames.decode(data[:HEADER_BYTES], 1)
    assert header.kind is Kind.PUSH and header.dtype is None
    assert header.size_bytes == len(data) - HEADER_BYTES
    assert frames.read_text(data[HEADER_BYTES:]) == {"step": 3, "lr": 0.1}


@pytest.mark.promise("S10")
@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, b"mupt", "begins with"),
        (0, pickle.dumps([1, 2])[:4], "begins with"),
        (1, 1, "version 1"),
        (2, 99, "unknown kind 99"),
        (2, int(Kind.PUSH), "claims to hold a tensor"),
        (3, 0, "unknown dtype 0"),
        (3, 77, "unknown dtype 77"),
        (4, 1, "claims 1 \\+ 60 bytes"),
        (5, 61, "61 bytes, which are no float32"),
        (5, 2**63, "claims 0 \\+ 9223372036854775808 bytes"),
        (6, 8, "frame 8 came where frame 7 was due"),
    ],
)
def test_a_header_with_one_wrong_field_is_refused(place: int, value: object, words: str) -> None:
    fields = list(HEADER.unpack(GOOD))
    fields[place] = value
    with pytest.raises(ProtocolError, match=words):
        frames.decode(HEADER.pack(*fields), 7)


@pytest.mark.promise("S10")
def test_text_that_is_too_long_is_refused_by_its_header() -> None:
    header = PROTOCOL.header(1, Kind.PUSH, frames.TEXT_LIMIT_BYTES + 1)
    with pytest.raises(ProtocolError, match="bytes of text"):
        frames.decode(header, 1)


@pytest.mark.effort
@pytest.mark.promise("S10")
def test_no_changed_header_passes_as_another_tensor() -> None:
    """Any header that passes says exactly the bytes that follow it."""
    source = chance()
    for _ in range(3000 * effort()):
        data = bytearray(GOOD)
        for _ in range(source.randint(1, 6)):
            data[source.randrange(len(data))] = source.randrange(256)
        try:
            header = frames.decode(data, 7)
        except ProtocolError:
            continue
        if header.dtype is None:
            assert header.size_bytes <= frames.TEXT_LIMIT_BYTES
        else:
            assert header.size_bytes % header.dtype.item_bytes == 0
            assert header.size_bytes <= frames.PAYLOAD_LIMIT_BYTES


@pytest.mark.parametrize(
    ("dtype", "elements"), [("float64", 15), ("float32", 14), ("bfloat16", 30)]
)
def test_only_the_tensor_that_is_due_is_taken(dtype: str, elements: int) -> None:
    header = frames.decode(GOOD, 7)
    with pytest.raises(ProtocolError, match="was due"):
        frames.require_tensor(header, DTYPES[dtype], elements)
    frames.require_tensor(header, FLOAT, 15)


@pytest.mark.promise("S10")
@pytest.mark.parametrize(
    "text", [b"", b"[]", b"1", b"{", b'{"a":NaN}', b"\xff", pickle.dumps({}), b"[" * 100_000]
)
def test_text_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.read_text(text)


REGISTRATION = Registration(
    "sync", 0, 300.0, "sgd", ("momentum_buffer",), 2, ("127.0.0.1:8001",),
    (TensorSpec("float32", (3, 4), 0, "weight"), TensorSpec("bfloat16", (), 1)),
)  # fmt: skip


def _sent(registration: Registration) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(registration.to_message()))
    return found


def test_a_registration_arrives_as_it_was_sent() -> None:
    assert registration_of(_sent(REGISTRATION)) == REGISTRATION


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "chaos"}, {"mode": 1}, {"staleness": -1}, {"staleness": True}, {"timeout_s": 0},
        {"timeout_s": 1e9}, {"timeout_s": "1"}, {"optimizer": "lion"}, {"slots": ["exp_avg"]},
        {"slots": "momentum_buffer"}, {"workers": 1.5}, {"servers": [1]}, {"tensors": None},
        {"tensors": [["float32", [3], 0]]}, {"tensors": [["int64", [3], 0, ""]]},
        {"tensors": [["float32", [-3], 0, ""]]}, {"tensors": [["float32", [3], 0, 1]]},
        {"tensors": [["float32", [2**47, 2**47], 0, ""]]},
        {"tensors": [["float32", [2**41], 0, ""]] * 9}, {"tensors": [["float32", [3], 5, ""]]},
    ],
)  # fmt: skip
def test_a_registration_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        registration_of({**_sent(REGISTRATION), **change})
    for name in change:
        with pytest.raises(ProtocolError):
            registration_of({k: v for k, v in _sent(REGISTRATION).items() if k != name})


@pytest.mark.parametrize(
    "hyper",
    [None, [], [[0.1, 0, 0, 0, 0]], [[0.1] * 4] * 2, [["0.1", 0, 0, 0, 0]] * 2,
     [[-0.1, 0, 0, 0, 0]] * 2, [[1e999, 0, 0, 0, 0]] * 2, [[0.1, 0, 0, 0, 1]] * 2],
)  # fmt: skip
def test_hyperparameters_that_cannot_be_are_refused(hyper: object) -> None:
    with pytest.raises(ProtocolError):
        hyper_of({"hyper": hyper}, REGISTRATION)


def test_momentum_that_was_not_announced_is_refused() -> None:
    message = {"hyper": [list(sgd(0.1, momentum=0.9).hyper)] * 2}
    assert hyper_of(message, REGISTRATION)[0][1] == 0.9
    with pytest.raises(ProtocolError, match="momentum was 0"):
        hyper_of(message, REGISTRATION._replace(slots=()))
    assert slots_of("sgd", [sgd(0.1).hyper]) == ()


def test_a_proof_holds_for_its_key_role_rank_server_and_nonces_alone() -> None:
    good = (b"k" * 16, b"client", b"s" * 32, b"w" * 32, 1, 0)
    others = [
        (b"x" * 16, *good[1:]),
        (good[0], b"server", *good[2:]),
        (*good[:2], b"S" * 32, *good[3:]),
        (*good[:3], b"W" * 32, 1, 0),
        (*good[:4], 2, 0),
        (*good[:4], 1, 1),
        (*good[:4], 0, 1),
    ]
    proofs = {PROTOCOL.proof(*one) for one in (good, *others)}
    proofs.add(PROTOCOL._replace(magic=b"mucs").proof(*good))
    assert len(proofs) == len(others) + 2


BODY_BYTES = ANSWER_BYTES - 5


@given(
    st.sampled_from([b"mups\x02", b"mups\x01", b"mupt\x02"]),
    st.binary(min_size=BODY_BYTES, max_size=BODY_BYTES),
)
def test_an_answer_of_garbage_is_refused(start: bytes, body: bytes) -> None:
    assert ANSWER_BYTES == 77  # all that is read of a stranger
    with pytest.raises(FrameError):
        PROTOCOL.read_answer(b"k" * 16, b"s" * 32, start + body)


@pytest.mark.parametrize("ours", [PROTOCOL, STORE], ids=["parameter server", "ranks' store"])
def test_another_version_or_program_is_refused_at_its_first_word(ours: Protocol) -> None:
    assert ours.read_hello(ours.hello(b"s" * 32)) == b"s" * 32
    with pytest.raises(FrameError, match=r"speaks version 9 and not .*: install the same"):
        ours.read_hello(ours._replace(version=9).hello(b"s" * 32))
    with pytest.raises(FrameError, match="no frame: it begins with b'muXX', not"):
        ours.read_hello(ours._replace(magic=b"muXX").hello(b"s" * 32))


def test_an_answer_with_the_key_says_who_it_is() -> None:
    answer = PROTOCOL.answer(b"k" * 16, b"s" * 32, b"w" * 32, 3, 1)
    told = PROTOCOL.read_answer(b"k" * 16, b"s" * 32, answer)
    assert (told.rank, told.number, told.nonce) == (3, 1, b"w" * 32)


def test_an_error_arrives_as_it_was_sent() -> None:
    error = AgreementError("rank 1 has another lr", "give all the same")
    found = from_message(json.loads(json.dumps(to_message(error))))
    assert type(found) is AgreementError and str(found) == str(error)
    assert type(from_message({"class": "SystemExit"})) is ParameterServerError
