"""Servers against peers that lie, replay and talk nonsense (S10, S03): they harm nobody."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from muster_collectives.wire import ANSWER_BYTES, HEADER_BYTES, HELLO_BYTES, PROOF_BYTES, WELCOME
from tests.parameter_server.support.servers import (
    END_S,
    KEY,
    Inside,
    Maker,
    Places,
    Servers,
    servers_fixture,
    together,
)
from tests.support.effort import chance, effort
from tests.support.waiting import wait_until, within

pytestmark = pytest.mark.torch
__all__ = ["servers_fixture"]
WELCOME_BYTES = HEADER_BYTES + PROOF_BYTES


class _Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return (os.mkdir, (self._path,))


def _dial(made: Places) -> tuple[socket.socket, bytes]:
    """A connection and the server's nonce."""
    from muster_parameter_server.wire.frames import PROTOCOL

    sock = socket.create_connection(made.addresses[0], END_S)
    return sock, PROTOCOL.read_hello(_read(sock, HELLO_BYTES))


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        got = sock.recv(count - len(data))
        if not got:
            break
        data += got
    return data


def _is_refused(sock: socket.socket, data: bytes) -> bool:
    """Whether the server hangs up after these bytes, without an answer."""
    try:
        sock.sendall(data)
        return sock.recv(1) == b""
    except ConnectionError:
        return True
    finally:
        sock.close()


def _enter(made: Places, rank: int, key: bytes = bytes.fromhex(KEY)) -> socket.socket:
    """A peer that has the key, and then does what it likes."""
    from muster_parameter_server.wire.frames import PROTOCOL

    sock, nonce = _dial(made)
    sock.sendall(PROTOCOL.answer(key, nonce, b"n" * 32, rank, 0))
    assert len(_read(sock, WELCOME_BYTES)) == WELCOME_BYTES
    return sock


def _memory_kib(made: Servers) -> int:
    with open(f"/proc/{made.servers[0].pid}/status") as status:
        (line,) = [line for line in status if line.startswith("VmRSS")]
    return int(line.split()[1])


def _job(made: Places, rank: int) -> object:
    import torch

    from muster_parameter_server import ParameterServer, sgd

    with ParameterServer.connect(
        [torch.zeros(100)], sgd(1.0), environ=made.environ(rank), timeout_s=90
    ) as server:
        return server.push_pull([torch.ones(100)])[0].sum().item()


@pytest.mark.effort
@pytest.mark.promise("S10")
@pytest.mark.promise("S03")
def test_strangers_are_refused_and_the_job_runs_on(servers: Maker, tmp_path: Any) -> None:
    from muster_parameter_server.wire.frames import PROTOCOL

    made = servers(1, workers=2)
    wait_until(made.listens, END_S)
    before = _memory_kib(made)
    source, mark = chance(), str(tmp_path / "unpickled")
    for _ in range(50 * effort()):
        sock, nonce = _dial(made)
        good = PROTOCOL.answer(b"another key, wrong", nonce, b"n" * 32, 0, 0)
        old = PROTOCOL.answer(bytes.fromhex(KEY), b"o" * 32, b"n" * 32, 0, 0)
        other = PROTOCOL.answer(bytes.fromhex(KEY), nonce, b"n" * 32, 0, 1)
        shot = source.choice([
            good, old, other,  # wrong key, proof of another connection, another server
            pickle.dumps(_Bomb(mark)).ljust(200, b"."),
            b"GET / HTTP/1.1\r\n\r\n".ljust(200, b"."),
            source.randbytes(200),
            struct.pack("!4sB", b"mups", 9).ljust(200, b"\xff"),
            b"mups\x02" + b"\xff" * 200,
        ])  # fmt: skip
        assert _is_refused(sock, shot)
    assert _memory_kib(made) - before < 20 << 10
    # more than may wait at once; each keeps its place for 5 s, and workers try again
    silent = [socket.create_connection(made.addresses[0], END_S) for _ in range(100)]
    assert together(lambda: _job(made, 0), lambda: _job(made, 1)) == [-100.0, -100.0]
    for sock in silent:
        sock.close()
    assert made.codes() == [0]
    assert not os.path.exists(mark)
    assert made.output(made.servers[0]).count("refused a peer") == 10  # the log has an end


@pytest.mark.promise("S03")
def test_strangers_that_dribble_do_not_keep_a_worker_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may wait, each alive by a byte now and then: the oldest goes for who comes."""
    from muster_parameter_server import service
    from muster_parameter_server.server import PENDING_LIMIT

    monkeypatch.setattr(service, "HANDSHAKE_S", 30.0)
    made, over = Inside(1, workers=1), []

    def dribble(sock: socket.socket) -> None:
        while not over and not _is_cut(sock, b"m"):
            pass

    strangers = [_dial(made)[0] for _ in range(PENDING_LIMIT)]
    began = time.monotonic()

    def work() -> object:
        try:
            return _job(made, 0)
        finally:
            over.append(time.monotonic())

    results = together(work, *(lambda sock=sock: dribble(sock) for sock in strangers))
    assert results[0] == -100.0
    assert over[0] - began < 20  # before any stranger's own time was over
    assert made.codes() == [0]
    for sock in strangers:
        sock.close()


@pytest.mark.promise("S03")
def test_a_handshake_has_one_end_for_all_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from muster_parameter_server import service

    monkeypatch.setattr(service, "HANDSHAKE_S", 1.0)
    made = Inside(1, workers=1)
    began = time.monotonic()
    with _dial(made)[0] as sock:
        wait_until(lambda: _is_cut(sock, b"m"), END_S)  # 77 bytes would take it 19 s
    assert 0.9 < time.monotonic() - began < within(15)
    assert _job(made, 0) == -100.0
    assert made.codes() == [0]


def _is_cut(sock: socket.socket, data: bytes) -> bool:
    """Sends, and sees for a while whether the server has hung up."""
    try:
        sock.sendall(data)
        sock.settimeout(0.25)
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.promise("S03")
def test_a_worker_with_another_key_is_told_so(servers: Maker) -> None:
    from muster_parameter_server import ServerLostError

    made = servers(1, workers=1)
    (result,) = together(lambda: _wrong_key(made))
    assert isinstance(result, ServerLostError), result
    assert "refused rank 0" in str(result) and "PARAMETER_SERVER_KEY" in str(result)
    assert KEY not in str(result)
    assert together(lambda: _job(made, 0)) == [-100.0]
    assert made.codes() == [0]


def _wrong_key(made: Places) -> object:
    return _job_with(made, PARAMETER_SERVER_KEY="ef" * 32)


def _job_with(made: Places, **more: str) -> object:
    import torch

    from muster_parameter_server import ParameterServer, sgd

    return ParameterServer.connect([torch.zeros(1)], sgd(1.0), environ=made.environ(0, **more))


def test_a_server_that_cannot_prove_the_key_is_not_believed() -> None:
    from muster_parameter_server import ProtocolError
    from muster_parameter_server.wire.frames import PROTOCOL

    def liar(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            sock.sendall(PROTOCOL.hello(b"s" * 32))
            _read(sock, ANSWER_BYTES)
            sock.sendall(PROTOCOL.header(0, WELCOME, 32) + b"p" * 32)
            _read(sock, 1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        environ = {
            "PARAMETER_SERVER_ADDRESSES": f"127.0.0.1:{listener.getsockname()[1]}",
            "PARAMETER_SERVER_KEY": KEY, "RANK": "0", "WORLD_SIZE": "1",
        }  # fmt: skip

        def work() -> object:
            import torch

            from muster_parameter_server import ParameterServer, sgd

            return ParameterServer.connect([torch.zeros(1)], sgd(1.0), environ=environ)

        result, _ = together(work, lambda: liar(listener))
    assert isinstance(result, ProtocolError)
    assert "could not prove the key" in str(result)


def _registration(made: Places) -> dict[str, Any]:
    return {
        "mode": "sync", "staleness": 0, "timeout_s": 60.0, "optimizer": "sgd", "slots": [],
        "workers": 1, "servers": made.variables["PARAMETER_SERVER_ADDRESSES"].split(","),
        "tensors": [["float32", [100], 0, ""]],
    }  # fmt: skip


def _bad_frames() -> dict[str, tuple[Callable[[], bytes], str]]:
    from muster_parameter_server.wire import frames
    from muster_parameter_server.wire.frames import DTYPES, PROTOCOL, Kind

    push = {"step": 0, "hyper": [[1.0, 0.0, 0.0, 0.0, 0.0]]}

    def pushed(dtype: str, elements: int) -> bytes:
        head = frames.tensor_header(3, DTYPES[dtype], elements)
        return frames.text_frame(Kind.PUSH, 2, push) + head

    return {
        "pickle": (lambda: pickle.dumps(list(range(100))), "it begins with"),
        "huge text": (
            lambda: PROTOCOL.header(2, Kind.PUSH, 2**32 - 1),
            "claims 4294967295 bytes of text",
        ),
        "huge tensor": (lambda: pushed("float32", 1 << 40), "was due"),
        "long tensor": (lambda: pushed("float32", 101), "was due"),
        "other dtype": (lambda: pushed("float64", 100), "was due"),
        "replay": (lambda: frames.text_frame(Kind.PUSH, 1, push), "frame 1 came"),
        "wrong step": (
            lambda: frames.text_frame(Kind.PUSH, 2, {**push, "step": 5})
            + frames.tensor_header(3, DTYPES["float32"], 100) + bytes(400),
            "step 5 where 0 was due",
        ),
        "not a request": (lambda: frames.text_frame(Kind.VALUES, 2, {}), "where a request"),
        "not JSON": (
            lambda: PROTOCOL.header(2, Kind.PUSH, 4) + b"\x80\x04N.",
            "not JSON",
        ),
    }  # fmt: skip


@pytest.mark.promise("S10")
def test_a_worker_that_breaks_the_rules_ends_the_job_by_its_name() -> None:
    """It has the key, so it is one of the job; the server takes nothing of it, and says who."""
    from muster_parameter_server.wire import frames
    from muster_parameter_server.wire.frames import Kind

    for name, (made_bytes, words) in _bad_frames().items():
        made = Inside(1, workers=1)
        sock = _enter(made, 0)
        with sock:
            sock.sendall(frames.text_frame(Kind.REGISTER, 1, _registration(made)))
            assert frames.decode(_read(sock, HEADER_BYTES), 1).kind is Kind.READY
            _read(sock, 2)
            sock.sendall(made_bytes())
            answer = frames.decode(_read(sock, HEADER_BYTES), 2)
            told = frames.read_text(_read(sock, answer.size_bytes))
        assert answer.kind is Kind.ERROR and told["class"] == "ProtocolError", name
        assert words in str(told["message"]) and "rank 0" in str(told["message"]), (name, told)
        assert made.codes() == [1], name
