"""Messages of a group without a core, as its reader's thread hands them on."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from muster_collectives.pure.mailbox import Mail
from muster_collectives.pure.wire import Message
from muster_collectives.runtime.errors import CollectiveTimeout
from muster_collectives.runtime.types import Failure


def test_nothing_is_written_to_the_memory_of_a_receive_that_has_ended_at_its_deadline() -> None:
    def error(failure: Failure, text: str) -> CollectiveTimeout:
        return CollectiveTimeout(text, code=failure.code)

    group: Any = SimpleNamespace(
        rank=0, size=2, is_closed=False, failure=lambda: None, error=error,
        journal=SimpleNamespace(receives=0, receives_bytes=0),
    )  # fmt: skip
    mail, rooms = Mail(group), [ctypes.create_string_buffer(4) for _ in range(2)]
    late = mail.receive(ctypes.addressof(rooms[0]), 4, 1, 5, 0.0)
    assert late.done()
    mail.arrived(Message(1, 0, 5), bytearray(b"word"))
    assert rooms[0].raw == bytes(4)
    with pytest.raises(CollectiveTimeout):
        late.wait()
    assert mail.receive(ctypes.addressof(rooms[1]), 4, 1, 5, 60.0).wait().bytes == 4
    assert rooms[1].raw == b"word"
