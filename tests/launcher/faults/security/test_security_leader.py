"""A leader under attack while true hosts run (promises S03, S19).

The leader and the true hosts are processes of their own; whoever is not of the job comes from here.
"""

from __future__ import annotations

import json
import random
import re
import resource
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.run.channel import wire
from muster.run.channel.leader import HANDSHAKE_S, PENDING_LIMIT
from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.peers.attacked_leader import LeaderUnderAttack
from tests.launcher.support.peers.attackers import (
    LEFT_S,
    Attacker,
    Target,
    attack,
    framed,
    until_gone,
)
from tests.support.effort import chance, fuzz_s
from tests.support.waiting import wait_until, within

GROWTH_KIB = 2 << 10  # of the leader's memory, whoever comes
WARM_SHOTS = 500
FUZZ_S = fuzz_s()
JOINS_AFTER_S = 5.0  # a true host, in the midst of the garbage
JOIN_S = 10.0  # of a host that comes during an attack, its start of Python included


@pytest.mark.effort
@pytest.mark.promise("S03")
@pytest.mark.promise("S19")
@pytest.mark.timeout(FUZZ_S + 300)
def test_garbage_of_every_kind_harms_nobody(attacked: LeaderUnderAttack) -> None:
    leader, source = attacked.leader, chance()
    descriptors = leader.descriptors()
    for _ in range(WARM_SHOTS):
        attack(attacked, source)[0].close()
    before, began = leader.resident_kib(), time.monotonic()
    shots, joined_s, stayed = 0, 0.0, deque[Attacker]()
    while time.monotonic() < began + FUZZ_S:
        attacker, stays = attack(attacked, source)
        shots += 1
        if stays:
            stayed.append(attacker)
        if len(stayed) > 10 * PENDING_LIMIT:
            stayed.popleft().close()
        if not joined_s and time.monotonic() > began + JOINS_AFTER_S:
            joined_s = attacked.late_host_joins_within_s(3)
    stayed.extend(Attacker(attacked) for _ in range(2 * PENDING_LIMIT))  # all of them say nothing
    over = time.monotonic()
    until_gone(stayed, lambda _lasted: None)
    assert time.monotonic() - over < within(LEFT_S)
    grown = leader.resident_kib() - before
    print(f"{shots} shots in {time.monotonic() - began:.0f} s, {grown} KiB more memory")
    assert shots > 50 * FUZZ_S
    assert grown < GROWTH_KIB
    assert 0 < joined_s < within(JOIN_S)
    attacked.settle(descriptors + 1)
    _, most, limit = leader.stats()
    assert most == limit == PENDING_LIMIT  # they did crowd the door, and no more got in
    assert not [event for event in leader.of("peer_joined", "peer_said") if event[1] in (4, 5)]


@pytest.mark.promise("S19")
def test_ten_thousand_connections_leave_no_trace(attacked: LeaderUnderAttack) -> None:
    leader, source = attacked.leader, chance()
    descriptors = leader.descriptors()
    _burst(attacked, source, 500)
    before, began = leader.resident_kib(), time.monotonic()
    for burst in range(20):
        _burst(attacked, source, 500)
        if burst == 10:
            assert attacked.late_host_joins_within_s(3) < within(JOIN_S)
    taken = time.monotonic() - began
    grown = leader.resident_kib() - before
    print(f"10,000 connections in {taken:.1f} s, {grown} KiB more memory")
    assert grown < GROWTH_KIB
    attacked.settle(descriptors + 1)
    assert leader.stats()[1] == PENDING_LIMIT


def _burst(target: LeaderUnderAttack, source: random.Random, count: int) -> None:
    """So many connections at the same time, from as many addresses; the leader drops them."""
    made = [Attacker(target, f"127.{source.randint(1, 250)}.7.{n % 250 + 1}") for n in range(count)]
    for attacker in made:
        if source.random() < 0.5:
            attacker.challenge()
        attacker.close(reset=source.random() < 0.5)


@pytest.mark.promise("S19")
def test_a_flood_that_stays_is_let_go_and_a_true_host_comes_through(
    attacked: LeaderUnderAttack,
) -> None:
    """Connections that never close from their side: the door is always crowded."""
    made = [Attacker(attacked) for _ in range(10 * PENDING_LIMIT)]
    assert attacked.late_host_joins_within_s(4) < within(JOIN_S)
    made += [Attacker(attacked) for _ in range(PENDING_LIMIT)]
    lasted: list[float] = []
    until_gone(made, lasted.append)
    assert max(lasted) < within(LEFT_S)


@pytest.mark.promise("S03")
@pytest.mark.promise("S19")
def test_whoever_does_not_prove_itself_is_gone_after_five_seconds(
    attacked: LeaderUnderAttack,
) -> None:
    silent, half, slow = (Attacker(attacked).challenge() for _ in range(3))
    hello = framed(wire.encode(half.hello(5, attacked.secret)))
    half.send(hello[: len(hello) // 2])
    gone: dict[str, float] = {}
    began, sent = time.monotonic(), 0
    others = {"silent": silent, "half": half}
    slow.sock.settimeout(0)
    for attacker in others.values():
        attacker.sock.settimeout(0)
    others["slow"] = slow
    while len(gone) < 3 and time.monotonic() < began + 2 * within(LEFT_S):
        for name, attacker in others.items():
            if name not in gone and _hung_up(attacker):
                gone[name] = time.monotonic() - attacker.began_s
        if "slow" not in gone:
            try:  # a byte now and then: every one of them is progress, and none is a hello
                slow.sock.send(b"\0\0\x0f\xff"[sent : sent + 1] or b"x")
            except OSError:
                pass
            sent += 1
        time.sleep(0.05)
    assert sent > 50
    assert set(gone) == {"silent", "half", "slow"}
    for name, lasted in gone.items():
        assert HANDSHAKE_S - 0.5 < lasted < within(LEFT_S), (name, lasted)
    assert not attacked.leader.stats()[0]


def _hung_up(attacker: Attacker) -> bool:
    try:
        return attacker.dropped()
    except BlockingIOError:
        return False


LIES: dict[str, dict[str, object]] = {
    "another secret": {"secret": b"x" * 16},
    "no name of that place": {"name": "algo-2"},
    "a place that is taken": {"place": 1},
    "a claim to come back": {"resume": True},
    "a claim to come back to a taken place": {"place": 1, "resume": True},
}


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeaderUnderAttack]:
    """One leader for all who lie, each of whom leaves it as it was."""
    made = LeaderUnderAttack(tmp_path_factory.mktemp("attacked"))
    try:
        yield made
        made.check_the_true_hosts()
    finally:
        made.close()


@pytest.mark.promise("S03")
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_dropped_at_once_and_without_a_word(stable: LeaderUnderAttack, lie: str) -> None:
    told = len(stable.leader.told)
    fields = dict(LIES[lie])
    place, secret = int(str(fields.pop("place", 5))), fields.pop("secret", stable.secret)
    assert isinstance(secret, bytes)
    liar = Attacker(stable).challenge()
    liar.say(liar.hello(place, secret, **fields))
    assert liar.dropped()
    assert time.monotonic() - liar.began_s < HANDSHAKE_S - 1  # for the lie, not for the time
    liar.close()
    assert len(stable.leader.told) == told


@pytest.mark.promise("S03")
def test_the_truth_is_not_dropped(stable: LeaderUnderAttack) -> None:
    """The hello of the lies without a lie in it is good: they fail for what they say."""
    peer = Attacker(stable).challenge()
    peer.say(peer.hello(5, stable.secret))
    assert peer.frame()[0] == "welcome"
    peer.close()
    stable.leader.wait_for("peer_freed", 5)


@pytest.mark.promise("S03")
def test_the_leaders_own_words_sent_back_prove_nothing(stable: LeaderUnderAttack) -> None:
    mirror = Attacker(stable)
    mirror.challenge().say(["challenge", 1, mirror.leader_nonce])
    assert mirror.dropped()
    # its nonce as one's own, and the proof that the leader itself would give for it
    mirror = Attacker(stable).challenge()
    mirror.nonce = mirror.leader_nonce
    both = bytes.fromhex(mirror.nonce)
    proof = wire.welcome_proof(stable.secret, (both, both, b"5"), 0)
    mirror.say(mirror.hello(5, stable.secret, proof=proof))
    assert mirror.dropped()


@pytest.mark.promise("S03")
def test_one_challenge_is_good_for_one_hello(stable: LeaderUnderAttack) -> None:
    """A true hello, recorded and sent to another challenge of the same leader, proves nothing."""
    true = Attacker(stable).challenge()
    hello = true.hello(5, stable.secret)
    true.close()
    again = Attacker(stable).challenge()
    again.say(hello)
    assert again.dropped()


@pytest.mark.promise("S03")
def test_of_two_that_claim_one_place_at_once_one_is_admitted(attacked: LeaderUnderAttack) -> None:
    for place in (3, 4, 5):
        pair = [Attacker(attacked).challenge() for _ in range(2)]
        for one in pair:
            one.say(one.hello(place, attacked.secret))
        answers = sorted(len(one.frame()) for one in pair)
        assert answers == [0, 4]  # nothing, and a welcome
        assert len(attacked.leader.of("peer_joined")) == place


@pytest.mark.promise("S19")
def test_a_leader_short_of_descriptors_neither_spins_nor_loses_its_hosts(
    attacked: LeaderUnderAttack,
) -> None:
    leader = attacked.leader
    limit = leader.descriptors() + 2
    resource.prlimit(leader.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    flood = [Attacker(attacked) for _ in range(20)]
    leader.wait_for("warned")
    assert "Too many open files" in leader.of("warned")[0][1]
    began, cpu_s = time.monotonic(), leader.cpu_s()
    wait_until(lambda: time.monotonic() > began + 2, 5)
    assert leader.descriptors() <= limit
    assert leader.cpu_s() - cpu_s < 1, "it spins"
    assert attacked.late_host_joins_within_s(3) < 2 * within(JOIN_S)  # attackers make room for it
    assert len(leader.of("warned")) == 1
    until_gone(flood, lambda _lasted: None)


@pytest.mark.promise("S19")
def test_a_low_limit_of_descriptors_is_shared_with_strangers(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = LeaderUnderAttack(tmp_path, open_files=80)
    try:
        attackers = [Attacker(made) for _ in range(200)]
        wait_until(lambda: made.leader.stats()[1] == 20, 10)
        assert not made.leader.of("warned")
        until_gone(attackers, lambda _lasted: None)
        assert made.leader.stats() == (0, 20, 20)
        made.check_the_true_hosts()
    finally:
        made.close()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


@pytest.mark.promise("S19")
@pytest.mark.promise("F62")
def test_a_leader_that_cannot_hold_all_its_hosts_says_so_before_the_join(
    cluster: Callable[..., Cluster],
) -> None:
    names = [f"algo-{i + 1}" for i in range(1000)]
    addresses = {name: f"127.9.{i // 250}.{i % 250 + 1}" for i, name in enumerate(names)}
    job = cluster(
        "print('ran')\n",
        hosts=1,
        resources={"hosts": names},
        environ={"MUSTER_HOST_ADDRESSES": json.dumps(addresses), "MUSTER_JOIN_S": "3"},
    )
    train = [sys.executable, "-m", "muster", "train"]
    job.start(command=["prlimit", "--nofile=256:256", *train])
    result = job.wait(60)["algo-1"]
    assert result.code == 100
    said = re.match(
        r"ConfigError: ulimit -n: the limit of open files is 256; "
        r"the leader of 1000 hosts needs (\d+)",
        result.first_line,
    )
    assert said and 1000 < int(said[1]) < 1100, result.first_line
    assert "ran" not in result.out


def listens(target: Target) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((target.address, target.port)) == 0


@pytest.mark.promise("S19")
def test_a_job_whose_leader_is_flooded_ends_well(cluster: Callable[..., Cluster]) -> None:
    """The whole of `train` under what the tests above do to its control port."""
    script = (
        "import os, time\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists(os.path.join(os.environ['TEST_FOLDER'], 'go')):\n"
        "    time.sleep(0.02)\n"
    )
    job = cluster(script)
    job.environ["TEST_FOLDER"] = str(job.folder)
    job.environ["MUSTER_LOST_AFTER_S"] = "15"
    job.start()
    target = Target(job.addresses["algo-1"], job.ports[0], "a-job")
    source = chance()
    wait_until(lambda: listens(target), 30, lambda: job.story("the leader never listened"))
    for _ in range(3000):
        attack(target, source)[0].close()
    for name in job.names:
        job.wait_for(name, "ready")
    for _ in range(1000):
        attack(target, source)[0].close()
    (job.folder / "go").touch()
    for name, result in job.wait(60).items():
        assert result.code == 0
        for said in ("the connection of", " lost ", "nothing heard"):
            assert not lines(result.err, said), (name, result.err)
        assert "Traceback" not in result.err
        assert "is back" not in result.err
