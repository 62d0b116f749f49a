"""Connections to a leader from somebody who is not of the job, or only says so."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from muster.run.channel import wire
from muster.run.channel.identity import PROTOCOL
from tests.launcher.support.peers.attacked_leader import NAMES, Visitor

LEFT_S = 8.0  # 5 s for a handshake, and what a busy machine needs


class Reachable(Protocol):
    """A leader to talk to; `visitors` are closed by whoever owns it."""

    address: str
    port: int
    job: str
    visitors: set[Visitor]


class Target:
    """The leader of some job that another fixture owns."""

    def __init__(self, address: str, port: int, job: str) -> None:
        self.address = address
        self.port = port
        self.job = job
        self.visitors: set[Visitor] = set()


class Attacker:
    """One connection to the leader, from some loopback address."""

    def __init__(self, target: Reachable, source: str = "") -> None:
        self._target = target
        self.sock = socket.socket()
        target.visitors.add(self)
        self.sock.settimeout(20)
        if source:
            self.sock.bind((source, 0))
        try:
            self.sock.connect((target.address, target.port))
        except ConnectionRefusedError:
            self.close()
            raise
        self.began_s = time.monotonic()
        self.leader_nonce = ""
        self.nonce = random.randbytes(wire.NONCE_BYTES).hex()

    def frame(self) -> list[object]:
        """What the leader says next; [] when it hangs up."""
        head = self._exactly(4)
        payload = self._exactly(int.from_bytes(head, "big")) if head else b""
        return wire.decode(payload) if payload else []

    def challenge(self) -> Attacker:
        """Takes the leader's nonce."""
        name, protocol, nonce = self.frame()
        assert (name, protocol) == ("challenge", PROTOCOL)
        self.leader_nonce = str(nonce)
        return self

    def hello(self, place: int, secret: bytes, **fields: object) -> list[object]:
        """A hello with a proof that fits it, made with that secret."""
        host_index = fields.get("host_index", place)
        proof = ""
        if secret:
            nonces = (bytes.fromhex(self.leader_nonce), bytes.fromhex(self.nonce))
            parts = (*nonces, str(host_index).encode())
            proof = wire.derive(secret, "follower", *parts).hex()
            if fields.get("resume"):
                proof = wire.resume_proof(secret, parts, 0)
        values = {
            "kind": "hello",
            "protocol": PROTOCOL,
            "job": self._target.job,
            "host_index": place,
            "name": NAMES[place % len(NAMES)],
            "agreed": {"toolkit": "1"},
            "nonce": self.nonce,
            "proof": proof,
            "resume": False,
            "received": 0,
        }
        return list({**values, **fields}.values())

    def say(self, fields: list[object]) -> Attacker:
        return self.send(framed(wire.encode(fields)))

    def send(self, data: bytes) -> Attacker:
        self.sock.sendall(data)
        return self

    def dropped(self) -> bool:
        """Whether the leader hangs up without another word."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def close(self, reset: bool = False) -> None:
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()
        self._target.visitors.discard(self)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self.sock.recv(size - len(data))
            except ConnectionError:
                return b""
            if not piece:
                return b""
            data += piece
        return data


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def mutated(payload: bytes, chance: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(chance.randint(1, 6)):
        where = chance.randrange(len(data))
        how = chance.randrange(3)
        if how == 0:
            data[where] = chance.randrange(256)
        elif how == 1:
            del data[where : where + chance.randint(1, 4)]
        else:
            data[where:where] = chance.randbytes(chance.randint(1, 4))
        data = data or bytearray(b"x")
    return bytes(data)


BOMBS: Sequence[bytes] = (
    b"[" * 4000,
    b'["hello",' + b'{"a":' * 700 + b"1" + b"}" * 700 + b"]",
    b'["hello",1,"j",' + b"9" * 4000 + b"]",
    b'["hello",NaN,Infinity,-Infinity]',
    b'["hello",1e99999,-1e99999]',
    b'["hello",{"a":1,"a":2,"a":{"a":3,"a":4}}]',
    b'["hello","\\ud800","\\udfff\\ud800"]',
    b'["hello","\xff\xfe\xed\xa0\x80"]',
    b'\xef\xbb\xbf["hello"]',
    '["hello"]'.encode("utf-16"),
    b'"' + b"\\u0000" * 600 + b'"',
    b"[" + b'"hello",' * 500 + b"1]",
    b"\x80\x04cos\nsystem\n(S'touch /tmp/pickled'\ntR.",
    b"null",
    b"{}",
    b"[]",
    b" " * 4000,
)
FULL = 64_000  # bytes: as much as a frame of a known peer may hold
BIG_BOMBS: Sequence[bytes] = (
    b"[" * FULL,
    b'["m",1,0,' + b"[" * (FULL // 2) + b"]" * (FULL // 2 - 20) + b"]",
    b'["m",1,0,' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"]",
    b'["m",' + b"9" * FULL + b',0,["Go"]]',
    b'["m",1,0,["Registered",' + b"9" * FULL + b"]]",
    b'["m",1,0,["Registered",1' + b"0" * 4000 + b"]]",
    b'["h",' + b"-" * FULL + b"]",
    b'["h",1e' + b"9" * FULL + b"]",
    b'["m",1,0,["' + b"\\u0000" * 10_000 + b'"]]',
    b'["m",1,0,["HostEnded",[' + b"[]," * 20_000 + b"[]],[],{}]]",
    b'["m",1,0,["HostEnded",[],[],{' + b'"a":"b",' * 7_000 + b'"a":"b"}]]',
)
SIZES = (0, 1 << 12, (1 << 12) + 1, 1 << 16, (1 << 16) + 1, 1 << 31, (1 << 32) - 1, (1 << 32) - 512)


def shot(attacker: Attacker, chance: random.Random) -> bytes:
    """Something that no peer of the job sends; where it takes a challenge it has read one."""
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.randint(1, 2000))
    if kind == 1:
        return framed(chance.randbytes(chance.randint(1, 2000)))
    if kind == 2:
        return framed(chance.choice(BOMBS))
    if kind == 3:
        return chance.choice(SIZES).to_bytes(4, "big") + chance.randbytes(chance.randint(0, 70_000))
    hello = wire.encode(attacker.challenge().hello(5, chance.randbytes(16)))
    if kind == 4:
        return framed(mutated(hello, chance))
    if kind == 5:
        return framed(hello)[: chance.randint(1, len(hello))]
    if kind == 6:
        return framed(hello) * chance.randint(2, 20)
    return mutated(framed(hello), chance)


def attack(target: Reachable, chance: random.Random) -> tuple[Attacker, bool]:
    """One attacker that has shot; whether it stays to see what comes."""
    source = f"127.{chance.randint(1, 250)}.{chance.randint(0, 250)}.{chance.randint(2, 250)}"
    attacker = Attacker(target, source)
    try:
        attacker.send(shot(attacker, chance))
    except (ConnectionError, ValueError):  # it has hung up already, or hung up unheard
        pass
    stays = chance.random() < 0.05
    if not stays:
        attacker.close(reset=chance.random() < 0.3)
    return attacker, stays


def until_gone(attackers: Iterable[Attacker], each: Callable[[float], None]) -> None:
    """Reads every attacker's connection to its end; `each` gets how long it lasted."""
    for attacker in attackers:
        while not attacker.dropped():
            pass
        each(time.monotonic() - attacker.began_s)
        attacker.close()
