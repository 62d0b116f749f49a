"""How workers and servers end: which end of a script is a goodbye, and what signals make of it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from muster.rank_bootstrap import python_main
from tests.parameter_server.support.servers import (
    END_S,
    Inside,
    Maker,
    Servers,
    connect,
    script,
    servers_fixture,
    together,
)
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

pytestmark = pytest.mark.torch
__all__ = ["servers_fixture"]

# rank 1 of two in async mode: nobody waits for it, so only its end can tell of it
ENDING = """
import gc, sys, torch
from muster_parameter_server import ServerOptimizer, sgd
torch.set_num_threads(1)

def train():
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = ServerOptimizer([weight], sgd(0.1), mode="async", timeout_s=90)
    weight.grad = torch.ones(3)
    optimizer.step()
    return optimizer

how = sys.argv[1]
if how == "collected":
    train()
    gc.collect()
    print("collected", flush=True)
    sys.stdin.read()
    raise ValueError("out of luck")
optimizer = train()
if how == "exit 3":
    sys.exit(3)
if how == "message":
    sys.exit("out of luck")
if how == "raise":
    raise ValueError("out of luck")
if how == "exit 0":
    sys.exit(0)
"""


@pytest.mark.parametrize(
    ("how", "code", "server_code"),
    [("exit 3", 3, 1), ("message", 1, 1), ("raise", 1, 1), ("exit 0", 0, 0), ("end", 0, 0)],
)
def test_only_a_clean_end_of_the_script_is_a_goodbye(
    how: str, code: int, server_code: int, servers: Maker, tmp_path: Path
) -> None:
    """Started as the launcher does: Python alone tells nobody that a script exits with 3."""
    made = servers(1, workers=1)
    path = script(tmp_path, ENDING)
    line = [sys.executable, python_main.__file__, "script", str(path), how]
    worker = made.start(line, RANK="0")
    assert made.ended(worker).code == code
    assert made.codes() == [server_code]
    assert ("rank 0 was lost at step 1" in made.output(made.servers[0])) == bool(server_code)


def test_a_collected_handle_says_no_goodbye(servers: Maker, tmp_path: Path) -> None:
    """Rank 1 goes on for rank 0, and the job fails only with the script of rank 0."""
    import torch

    made = servers(1, workers=2)
    worker = made.worker(script(tmp_path, ENDING), 0, "collected")
    server = connect(made, 1, tensors=[torch.zeros(3)], mode="async")
    made.until_said(worker, "collected")
    server.push_pull([torch.ones(3)])
    server.close()
    assert worker.stdin is not None
    worker.stdin.close()
    assert made.ended(worker).code == 1
    assert made.codes() == [1]
    assert "rank 0 was lost at step 1" in made.output(made.servers[0])


def test_the_last_worker_may_not_be_silent_for_long() -> None:
    import torch

    from muster_parameter_server import DeadlineError

    made = Inside(1, workers=2)

    def last() -> object:
        server = connect(made, 0, timeout_s=5, mode="async")
        wait_until(lambda: not made.listens(), END_S)
        with pytest.raises(DeadlineError, match="rank 0 was silent for 5 s after all others"):
            server.push_pull([torch.ones(1000)])
        return "named"

    def first() -> object:
        connect(made, 1, timeout_s=5, mode="async").close()
        return "left"

    assert together(last, first) == ["named", "left"]
    assert made.codes() == [1]


def test_a_signal_after_all_goodbyes_is_no_failure(servers: Maker) -> None:
    import torch

    made = servers(1, workers=1)
    wait_until(made.listens, END_S)
    with socket.create_connection(made.addresses[0], END_S) as stranger:
        assert stranger.recv(1)  # it is pending, and the server waits for it at its end
        with connect(made, 0) as server:
            server.push_pull([torch.ones(1000)])
        wait_until(lambda: not made.listens(), END_S)
        made.servers[0].send_signal(signal.SIGTERM)
        assert made.codes() == [0]


SIGNALLED = """
import os, signal, sys, threading
from muster_parameter_server.server import main

def at_the_start_of_a_thread(frame, event, argument):
    if event == "call" and frame.f_code is threading.Thread.start.__code__:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)

sys.setprofile(at_the_start_of_a_thread)
sys.exit(main(os.environ))
"""


def test_a_signal_while_a_peer_gets_its_thread_stops_the_server(
    servers: Maker, tmp_path: Path
) -> None:
    script = tmp_path / "signalled.py"
    script.write_text(SIGNALLED)
    made, place = servers(0, workers=1), ("127.0.0.1", free_ports(1)[0])
    address = f"{place[0]}:{place[1]}"
    server = made.start(
        [sys.executable, str(script)],
        PARAMETER_SERVER_ADDRESSES=address, PARAMETER_SERVER_INDEX="0",
    )  # fmt: skip
    made.addresses.append(place)
    wait_until(made.listens, END_S)  # who asks is the peer
    ended = made.ended(server)
    assert (ended.code, "was stopped by SIGTERM" in ended.output) == (143, True), ended.output


def _processor_s(made: Servers) -> float:
    fields = Path(f"/proc/{made.servers[0].pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_server_without_descriptors_rests_and_goes_on(servers: Maker) -> None:
    made = servers(1, workers=1)
    wait_until(made.listens, END_S)
    pid = made.servers[0].pid
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 4, used + 4))
    strangers = [socket.create_connection(made.addresses[0], END_S) for _ in range(12)]
    try:
        time_0, used_0 = time.monotonic(), _processor_s(made)
        wait_until(lambda: time.monotonic() > time_0 + 2, END_S)
        assert _processor_s(made) - used_0 < 0.5
    finally:
        for stranger in strangers:
            stranger.close()
    connect(made, 0).close()
    assert made.codes() == [0]


def test_a_frame_that_a_worker_cannot_read_names_its_server() -> None:
    from muster_parameter_server import ProtocolError
    from muster_parameter_server.client import exchange
    from muster_parameter_server.settings import Address
    from muster_parameter_server.wire.frames import Kind

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        link = exchange.Link(3, Address("10.0.0.9", 8001), ours)
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n".ljust(200))
        with pytest.raises(ProtocolError, match=r"server 3 at 10.0.0.9:8001 in the pull: no frame"):
            exchange.Exchange([link], 0, 5.0).ask("pull", [exchange.Request(Kind.PULL, {})])
