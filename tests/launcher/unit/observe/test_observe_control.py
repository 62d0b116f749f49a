"""The control socket: who may ask, what a request is, and that no asker can hold up a host."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.run.base.loop import Loop
from muster.run.observe import control
from muster.run.observe.control import Answered, Control, Inquiry, parse
from tests.support.waiting import wait_until


class Served:
    """A control socket with a loop on its own thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self.asked: list[Inquiry] = []
        self.said: list[str] = []
        self.hold = False
        self.control = Control(self.loop, str(folder), self.answer, self.said.append)
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()
        self.loop.post(self.control.begin)

    def answer(self, request: Inquiry, done: Answered) -> None:
        self.asked.append(request)
        if not self.hold:
            done({"ok": request.do, "long": "x" * 3_000_000})

    def close(self) -> None:
        def end() -> None:
            self.control.end()
            self.loop.stop()

        self.loop.post(end)
        self.thread.join()
        self.loop.close()

    @property
    def path(self) -> Path:
        return self.folder / control.NAME

    def wait(self) -> None:
        wait_until(lambda: self.path.exists() or bool(self.said), 5)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / ("long-" * 30) / "algo-1")  # over the 108 bytes of a socket's path
    made.wait()
    yield made
    made.close()
    assert not made.path.exists()


@pytest.mark.promise("S21")
def test_a_request_is_answered_and_the_socket_is_its_owners(served: Served) -> None:
    assert served.path.stat().st_mode & 0o777 == 0o700
    answer = control.ask(str(served.folder), Inquiry("stacks", "1,last", True))
    assert answer["ok"] == "stacks"
    assert len(answer["long"]) == 3_000_000
    assert served.asked == [Inquiry("stacks", "1,last", True)]


@pytest.mark.promise("S21")
def test_another_users_request_is_refused(served: Served) -> None:
    served.control.users = {12345}
    answer = control.ask(str(served.folder), Inquiry("stop"))
    assert "another user" in answer["error"]
    assert not served.asked


def test_an_asker_that_waits_for_ever_is_answered_in_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "REQUEST_S", 0.3)
    served.hold = True
    began = time.monotonic()
    answer = control.ask(str(served.folder), Inquiry("state"), 5.0)
    assert "no answer within" in answer["error"]
    assert time.monotonic() - began < 4


@pytest.mark.promise("S21")
def test_askers_without_end_hold_up_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "REQUEST_S", 0.5)
    idle = [control.connected(str(served.folder), 5) for _ in range(control.MOST_CONNECTIONS + 5)]
    loud = idle[0]
    try:
        loud.sendall(b"x" * (2 * control.LINE_BYTES))
    except OSError:
        pass

    def answered() -> bool:
        try:
            return control.ask(str(served.folder), Inquiry("state"))["ok"] == "state"
        except (OSError, ValueError):
            return False

    wait_until(answered, 5)
    for sock in idle:
        sock.close()


def test_a_socket_that_was_left_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "control"))
    left.close()
    control.bound(str(tmp_path)).close()
    (tmp_path / "control").unlink()
    (tmp_path / "control").write_text("mine")
    with pytest.raises(OSError, match="in use"):
        control.bound(str(tmp_path))
    assert (tmp_path / "control").read_text() == "mine"


def test_a_folder_where_no_socket_can_be_is_said_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = Served(tmp_path / "file" / "algo-1")
    made.wait()
    made.close()
    assert "there is no control socket" in made.said[0]


def test_a_job_that_ends_as_its_socket_is_made_leaves_none(tmp_path: Path) -> None:
    for number in range(20):
        made = Served(tmp_path / str(number) / "algo-1")
        made.close()
    names = [thread for thread in threading.enumerate() if thread.name == "control"]
    for thread in names:
        thread.join(5)
    assert not list(tmp_path.rglob("control"))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"", "one line of JSON"),
        (b"[" * 50_000, "one line of JSON"),
        (b'{"do": 1}', "one line of JSON"),
        (b'{"do": "stack"}', "did you mean 'stacks'"),
        (b'{"do": "stacks", "ranks": "1,x"}', "expected numbers of ranks"),
        (b'{"do": "stacks", "ranks": [1]}', "`ranks`"),
        (b'{"do": "stacks", "ranks": "' + b"1," * 5000 + b'1"}', "`ranks`"),
    ],
)
def test_a_request_that_cannot_be_is_answered_with_the_fix(line: bytes, error: str) -> None:
    answer: Any = parse(line)
    assert error in answer["error"]
    assert answer["fix"]
    json.dumps(answer)


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    control.bound(str(tmp_path)).close()
    with pytest.raises(OSError, match="refused"):
        control.connected(str(tmp_path), 1)
    assert len(os.listdir("/proc/self/fd")) == before
