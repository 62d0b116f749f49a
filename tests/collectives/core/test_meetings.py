"""How ranks come together without torch: what one of them cannot do is told to all, at once."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from muster_collectives.bootstrap.addresses import listen
from muster_collectives.bootstrap.channel import PROTOCOL, Channel
from muster_collectives.bootstrap.rendezvous import Rendezvous, join
from muster_collectives.bootstrap.service import Service
from muster_collectives.core import RendezvousError
from muster_collectives.wire import ANSWER_BYTES, FIRST_KIND, HEADER_BYTES, NONCE_BYTES
from tests.collectives.core.test_locality import needs_root
from tests.collectives.support import ranks
from tests.collectives.support.jobs import CHECKOUT, SOURCES
from tests.support.ports import free_port

LONG_S = 60.0  # the ranks' deadline: what is told at once is told long before
AT_ONCE_S = 20.0
MEETS = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from muster_collectives.core import CollectiveError, init
began, said = time.monotonic(), {"kind": ""}
try:
    init(timeout_s=float(sys.argv[2])).close()
except CollectiveError as error:
    said = {"kind": type(error).__name__, "text": str(error), "ranks": list(error.ranks)}
print(json.dumps({**said, "took_s": time.monotonic() - began}), flush=True)
"""


def meet(
    each: Sequence[Mapping[str, str]], env: Mapping[str, str], timeout_s: float = LONG_S
) -> list[dict[str, Any]]:
    """What each rank's `init` ended with; `each` has the variables of each rank."""
    argv = ["-I", "-S", "-c", MEETS, str(SOURCES), str(timeout_s)]
    ended = ranks.run(len(each), argv, env=env, each_env=each, timeout_s=90)
    assert [one.code for one in ended] == [0] * len(each), ranks.shown(ended)
    return [json.loads(one.output.strip().rpartition("\n")[2]) for one in ended]


@pytest.mark.parametrize("wrong", [0, 2])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("COLLECTIVES_INTERFACE", "ib7", id="no such interface"),
        pytest.param("COLLECTIVES_ADDRESS", "192.0.2.7", id="another host's address"),
    ],
)
def test_a_rank_that_cannot_listen_is_named_with_its_variable_on_all_ranks_at_once(
    name: str, value: str, wrong: int
) -> None:
    each = [{name: value} if rank == wrong else {} for rank in range(3)]
    for said in meet(each, {}):
        assert (said["kind"], said["ranks"]) == ("SettingsError", [wrong]), said
        assert f"rank {wrong} cannot take part: {name}='{value}'" in said["text"], said
        assert said["text"].count("Fix: ") == 1, said
        assert said["took_s"] < AT_ONCE_S, said


def test_several_ranks_that_cannot_listen_are_all_named() -> None:
    each = [{}, {"COLLECTIVES_INTERFACE": "ib7"}, {"COLLECTIVES_INTERFACE": "ib8"}]
    for said in meet(each, {}):
        assert (said["kind"], said["ranks"]) == ("SettingsError", [1, 2]), said


def test_what_a_rank_cannot_do_is_told_though_another_does_not_come() -> None:
    argv = ["-I", "-S", "-c", MEETS, str(SOURCES), str(LONG_S)]
    each = [{"RANK": "0"}, {"RANK": "1", "COLLECTIVES_INTERFACE": "ib7"}]
    ended = ranks.run(2, argv, env={"WORLD_SIZE": "3"}, each_env=each, timeout_s=90)
    for one in ended:
        assert '"kind": "SettingsError"' in one.output, ranks.shown(ended)


KEYS = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from muster_collectives.core import CollectiveError, connect
from tests.collectives.support.meeting import FolderStore
said = {"kind": ""}
try:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    connect(FolderStore(Path(sys.argv[3])), rank, size, name="g", timeout_s=30).close()
except CollectiveError as error:
    said = {"kind": type(error).__name__, "text": str(error), "ranks": list(error.ranks)}
print(json.dumps(said), flush=True)
"""


@pytest.mark.parametrize("other", ["", "cd" * 16], ids=["none", "another"])
def test_a_key_that_differs_is_said_on_all_ranks_and_shown_to_nobody(
    other: str, tmp_path: Path
) -> None:
    """Over a store that asks for no key, as torch's."""
    key = "ab" * 16
    argv = ["-I", "-S", "-c", KEYS, str(SOURCES), str(CHECKOUT), str(tmp_path)]
    each = [{"COLLECTIVES_KEY": text} for text in (key, other, key)]
    ended = ranks.run(3, argv, each_env=each, timeout_s=90)
    for one in ended:
        said = json.loads(one.output.strip().rpartition("\n")[2])
        assert (said["kind"], said["ranks"]) == ("SettingsError", [1]), ranks.shown(ended)
        assert "COLLECTIVES_KEY of rank 1 is not that of rank 0" in said["text"]
        assert key not in one.output and "cd" * 16 not in one.output
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key.encode() not in kept and bytes.fromhex(key) not in kept


GROUPS = """
import itertools, json, os, sys, time
from array import array
sys.path.insert(0, sys.argv[1])
from muster_collectives.core import init, new_group
def held():
    return len(os.listdir("/proc/self/fd"))
with init(timeout_s=60) as world:
    world.all_reduce(array("d", [1.0]))
    first = held()
    fours = itertools.cycle(itertools.combinations(range(world.size), 4))
    made = [new_group(world, ranks) for ranks in itertools.islice(fours, int(sys.argv[2]))]
    mine = [group for group in made if group is not None]
    before = held()
    for turn in (mine, mine[::-1]):
        for group in turn:
            total = array("d", [1.0])
            group.all_reduce(total)
            assert total[0] == 4.0
    said = {"groups": len(mine), "at_rest": before - first, "held": held() - first}
    said["threads"] = len(os.listdir("/proc/self/task"))
    world.barrier()
    began = time.monotonic()
    for group in mine:
        group.close()
    print(json.dumps({**said, "left": held() - first, "took_s": time.monotonic() - began}))
"""


@pytest.mark.parametrize(
    ("nodes", "at_rest", "used"),
    [
        pytest.param(1, 1, 1, id="one node"),
        pytest.param(6, 0, 3, id="nodes of a rank"),
        pytest.param(2, 1, 4, id="two nodes"),
    ],
)
def test_a_hundred_overlapping_groups_of_four_live_in_one_process(
    nodes: int, at_rest: int, used: int
) -> None:
    """Six ranks: each is in two thirds of the groups. A group has the memory of its node, where it
    is not alone there, and its connections; all else belongs to the process. They close at once, in
    whatever order ranks come to it."""
    more = 5 + 2  # connections of the world, where a rank waits long for others; eventfds
    argv = ["-I", "-S", "-c", GROUPS, str(SOURCES), "150"]
    ended = ranks.run(6, argv, nodes=nodes, timeout_s=90)
    for one in ended:
        said = json.loads(one.output.strip().rpartition("\n")[2])
        assert said["groups"] == 100, ranks.shown(ended)
        assert said["at_rest"] <= 100 * at_rest + more, said
        assert said["held"] <= 100 * used + more, said
        assert said["left"] <= more, said
        assert said["threads"] <= 4, said  # its own, the listener's; of rank 0: the store's
        assert said["took_s"] < 10, said  # 30 s with 0.3 s for each


# --- where rank 0 and the others listen

KNOWN_BY_NAME = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from muster_collectives.bootstrap.channel import Channel
from muster_collectives.bootstrap.rendezvous import join
port = int(sys.argv[3])
found = join(sys.argv[2], port, 0, 2, secret=b"s", timeout_s=20)
for host in sys.argv[4:]:
    try:
        socket.create_connection((host, port), 5).close()
        print(host)
    except ConnectionRefusedError:
        pass
found.close()
"""


def reached(name: str, hosts: Sequence[str], begin: Sequence[str] = ()) -> list[str]:
    """At which of `hosts` a rank 0 is found whose MASTER_ADDR is `name`."""
    argv = [*begin, sys.executable, "-I", "-S", "-c", KNOWN_BY_NAME]
    said = subprocess.run(
        [*argv, str(SOURCES), name, str(free_port()), *hosts],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    return said.stdout.split()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("hosts", [("::1", "127.0.0.1"), ("127.0.0.1", "::1")])
def test_a_rank_with_addresses_of_two_families_is_reached_at_both(hosts: tuple[str, ...]) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen(hosts, 8) as sock:
        for host in hosts:
            socket.create_connection((host, sock.getsockname()[1]), 5).close()


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("127.0.1.1 rank0.test", id="loopback at home"),
        pytest.param("::1 rank0.test", id="loopback at home, IPv6"),
        pytest.param("127.0.0.2 rank0.test\n127.0.0.3 rank0.test", id="two addresses"),
        pytest.param("::1 rank0.test\n127.0.0.1 rank0.test", id="two families"),
    ],
)
def test_a_name_that_may_stand_for_other_addresses_is_listened_for_at_all(
    lines: str, tmp_path: Path
) -> None:
    needs_root("unshare")
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{lines}\n")
    bind = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']
    if subprocess.run([*bind, str(hosts), "true"], timeout=30, check=False).returncode:
        pytest.skip("this container may not mount")
    everywhere = ["127.0.0.1", "127.0.0.2", "::1"]
    assert reached("rank0.test", everywhere, [*bind, str(hosts)]) == everywhere


def test_an_address_that_is_given_as_one_is_the_only_one_that_is_listened_at() -> None:
    assert reached("127.0.0.1", ["127.0.0.1", "127.0.0.2"]) == ["127.0.0.1"]


# --- the service of rank 0's store

SECRET = b"secret of a job"


@contextmanager
def service(size: int) -> Iterator[tuple[Service, int]]:
    """A store as rank 0 has it, and its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    serving = Service(listener, size, SECRET)
    try:
        yield serving, port
    finally:
        serving.close()


def come(port: int, rank: int, timeout_s: float = 10.0) -> Rendezvous:
    return join("127.0.0.1", port, rank, 4, secret=SECRET, timeout_s=timeout_s)


def test_a_rank_that_gave_its_first_connection_up_is_let_in_and_one_that_spoke_is_not() -> None:
    with service(4) as (_, port):
        first = come(port, 1)  # welcomed, and never heard of again
        second = come(port, 1)
        second.set("key", b"1")
        assert second.get("key", 5.0) == b"1"
        with pytest.raises(RendezvousError):
            first.set("key", b"2")
        second.close()
        with pytest.raises(RendezvousError, match="rank 1 is here already"):
            join("127.0.0.1", port, 1, 4, secret=SECRET, timeout_s=0.5)


def test_a_service_that_is_slow_to_welcome_a_rank_is_waited_for() -> None:
    """It has greeted, and is busy for longer than a port is tried for."""
    nonce, tries = os.urandom(NONCE_BYTES), []

    def serve_slowly(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            sock.sendall(PROTOCOL.hello(nonce))
            came = sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)
            answer = PROTOCOL.read_answer(SECRET, nonce, came)
            tries.append(answer.rank)
            if not select.select([sock], [], [], 3.0)[0]:  # readable: the rank has given up
                sock.sendall(PROTOCOL.welcome(SECRET, nonce, answer))
                sock.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as others:
        slow = others.submit(serve_slowly, listener)
        come(listener.getsockname()[1], 3).close()
        slow.result(20)
    assert tries == [3]


def test_idle_strangers_do_not_keep_a_rank_out() -> None:
    with service(4) as (_, port), ExitStack() as held:
        for _ in range(256 + 4):
            held.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        came = come(port, 1, timeout_s=8.0)  # less than strangers are given
        came.set("key", b"1")
        came.close()


# --- the store, as a rank has it


class BrokenOffError(Exception):
    """What a signal handler raises."""


def break_off(number: int, frame: object) -> NoReturn:
    raise BrokenOffError


@contextmanager
def alarm(handler: Callable[[int, object], object]) -> Iterator[None]:
    """A signal in a moment, amid what the block does."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_question_that_a_signal_handler_breaks_off_leaves_no_answer_to_the_next() -> None:
    with service(4) as (_, port):
        own, other = come(port, 1), come(port, 2)
        with alarm(break_off), pytest.raises(BrokenOffError):
            own.get("first", 30.0)
        other.set("first", b"of first")
        other.set("second", b"of second")
        with pytest.raises(RendezvousError, match="BrokenOffError of a signal handler"):
            assert own.get("second", 5.0) == b"of second"
        other.close()


def test_a_thread_that_waits_for_a_key_holds_no_other_up() -> None:
    """Two threads of each rank that make a group each, in orders that cross."""
    with service(4) as (_, port), ThreadPoolExecutor(8) as threads:
        ranks = [come(port, 1), come(port, 2)]
        waits = [
            threads.submit(rank.get, f"{name} of {1 - index}", 20.0)
            for name in ("a", "b", "c")
            for index, rank in enumerate(ranks)
        ]
        for name in ("c", "a", "b"):
            for index, rank in enumerate(ranks):
                rank.set(f"{name} of {index}", name.encode())
        assert [each.result(10.0) for each in waits] == [b"a", b"a", b"b", b"b", b"c", b"c"]
        late = [threads.submit(ranks[0].get, "never", wait_s) for wait_s in (0.1, 0.3)]
        assert [type(each.exception(10.0)) for each in late] == [TimeoutError] * 2
        kept = threads.submit(ranks[0].get, "never", 20.0)
        ranks[0].set("here", b"1")
        ranks[0].close()
        assert isinstance(kept.exception(10.0), RendezvousError)
        ranks[1].close()


# --- a channel amid a frame


def test_an_answer_of_the_store_has_a_bound_that_is_said_and_the_store_serves_on() -> None:
    with service(4) as (_, port):
        rank = come(port, 1)
        rank.set("big", bytes(1 << 20))
        assert len(rank.get_all(["big"] * 63, AT_ONCE_S)) == 1
        with pytest.raises(RendezvousError, match=r"65 values(.|\n)*ask for fewer"):
            rank.get_all(["big"] * 65, AT_ONCE_S)
        assert rank.get("big", AT_ONCE_S) == bytes(1 << 20)
        rank.close()


def test_an_abort_in_a_signal_handler_amid_a_frame_ends_the_connection_and_does_not_hang() -> None:
    """The other side reads nothing, so that the frame is half sent when the signal comes."""
    own, other = socket.socketpair()
    channel, told = Channel(own), []

    def abort(number: int, frame: object) -> None:
        try:
            channel.send(FIRST_KIND, timeout_s=1.0)
        except ConnectionError as error:
            told.append(str(error))

    with alarm(abort), pytest.raises(ConnectionError):
        channel.send(FIRST_KIND, b"", bytes(64 << 20), timeout_s=10.0)
    assert told == ["an earlier frame was left half sent"]
    channel.close()
    other.close()


def test_nothing_is_sent_after_half_a_frame() -> None:
    own, other = socket.socketpair()
    channel, head = Channel(own), HEADER_BYTES
    with alarm(break_off), pytest.raises(BrokenOffError):
        channel.send(FIRST_KIND, b"", bytes(64 << 20), timeout_s=10.0)
    with pytest.raises(ConnectionError, match="half sent"):
        channel.send(FIRST_KIND, timeout_s=1.0)
    came = 0
    while part := other.recv(1 << 20):
        came += len(part)
    assert head < came < 64 << 20  # and its end: the other side is not left waiting
    channel.close()
    other.close()
