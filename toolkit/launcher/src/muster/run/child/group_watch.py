"""Whether the ranks of this host exchange anything, for a job whose ranks may train a model each.

On a machine without GPUs Hugging Face's libraries wrap no model in DistributedDataParallel unless
they are set to use the CPU: every rank trains by itself, with a process group or without, and the
job ends well. From outside it shows in that torch is loaded into all ranks and nothing moves
between them once the group is there. The looks end with the first one that shows otherwise.

A warning must be true, so it is not given where anything may move unseen: a GPU or another device
is mapped, MPI or muster's own core is loaded (both talk through memory), the kernel counts no
bytes. Any connection of a rank's process tree counts, but those to the web. Ranks that have ended
cannot be looked at, nor connections that came and went between two looks: of those the counters of
the whole network namespace say, and where others use it, too, the warning is left out.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from muster.run.base.background import BackgroundCall
from muster.run.base.loop import Loop
from muster.run.child.rank import Rank
from muster.run.child.rank_shim import descendants
from muster.types.files import read_text

PAUSE_S = 2.0
ENOUGH_LOOKS = 3
LAST_BYTES = 32768  # of all that the host received after the last look: the job's own end is in it
LEAST_BYTES = 256  # between two looks: the end of a connection moves less, a step of a model more
EXCHANGED_NOTHING = (
    "the ranks here exchanged nothing: a script that trains has made one model per rank "
    "(Hugging Face on CPUs: set ACCELERATE_USE_CPU=1; docs/how-to/frameworks.md)"
)
_TALK_UNSEEN = ("/libmpi.", "/muster_collectives/_native/",
                "/dev/nvidia", "/dev/neuron", "/dev/kfd", "/dev/infiniband")  # fmt: skip
_WEB = (80, 443)  # a model that is downloaded, metrics that are sent
_COUNTED = ("ActiveOpens", "PassiveOpens", "InOctets")
_HEADER, _ESTABLISHED, _TCP_INFO = 16, 1, 2
_COUNTS_AT = 120  # bytes_acked and bytes_received in the kernel's struct tcp_info


class Traffic(NamedTuple):
    """Of this network namespace since its start: TCP connections made and accepted, and bytes."""

    opened: int
    received_bytes: int


class GroupWatch:
    """Watches `ranks`, all that this host has of the world."""

    def __init__(self, loop: Loop, ranks: Sequence[Rank]) -> None:
        self._loop = loop
        self._ranks = ranks
        self._moved: dict[int, int] = {}
        self._quiet_looks = 0  # in a row, and at all ranks with torch
        self._before: Traffic | None = None  # the first of them
        self._last: Traffic | None = None

    def look(self) -> None:
        """Now, and again until the ranks are seen to talk or have ended. On its own thread:
        the kernel may keep one waiting who asks about a process that hangs."""
        pids = [
            rank.handle.pid
            for rank in self._ranks
            if not rank.ended_s and rank.handle is not None and rank.handle.pid
        ]
        if len(pids) == len(self._ranks):  # those that are left say nothing of the world
            seen = BackgroundCall(
                "groups",
                lambda: (traffic_of_host(), *glance(pids)),
                lambda: self._loop.post(lambda: self.take(*seen.result())),
            )

    def take(
        self, traffic: Traffic | None, have_torch: bool, counts: dict[int, int] | None
    ) -> None:
        """What one look has shown; see `traffic_of_host` and `glance`."""
        if counts is None or any(
            count - self._moved.get(inode, count) > LEAST_BYTES for inode, count in counts.items()
        ):
            self._quiet_looks = 0
            return
        are_new = counts.keys() - self._moved.keys()  # they have not had the time to talk
        self._quiet_looks = self._quiet_looks + 1 if have_torch and not are_new else 0
        if not self._quiet_looks:
            self._before = traffic
        self._moved, self._last = counts, traffic
        self._loop.after(PAUSE_S, self.look)

    def warning(self) -> str:
        """After the end of all ranks; "" unless each has run by itself, as far as can be known: a
        connection that came and went between two looks was seen by the host's counters alone."""
        now, before, last = traffic_of_host(), self._before, self._last
        if self._quiet_looks < ENOUGH_LOOKS or not (now and before and last):
            return ""
        was_quiet = now.received_bytes - last.received_bytes < LAST_BYTES
        return EXCHANGED_NOTHING if was_quiet and now.opened == before.opened else ""


def traffic_of_host() -> Traffic | None:
    """What the kernel has counted; None where it does not say."""
    found: dict[str, int] = {}
    for path in ("/proc/net/snmp", "/proc/net/netstat"):
        lines = [line.split() for line in read_text(path, -1).splitlines()]
        for names, values in zip(lines[::2], lines[1::2], strict=False):
            found.update((n, int(v)) for n, v in zip(names, values, strict=False) if n in _COUNTED)
    if len(found) < len(_COUNTED):
        return None
    return Traffic(found["ActiveOpens"] + found["PassiveOpens"], found["InOctets"])


def glance(pids: Sequence[int]) -> tuple[bool, dict[int, int] | None]:
    """Whether all of these processes have torch loaded; and what went over each connection of
    theirs and of all below them, but to the web: its inode -> bytes both ways, None where that may
    not show what they exchange, or where the machine forbids looking."""
    try:
        tree = [*pids, *descendants(*pids)]
        maps = [read_text(f"/proc/{pid}/maps", -1) for pid in tree]
        if any(name in text for name in _TALK_UNSEEN for text in maps):
            return False, None
        have_torch = all("/libtorch" in text for text in maps[: len(pids)])
        return have_torch, moved(tree)
    except (OSError, struct.error):
        return False, None


def moved(tree: Sequence[int]) -> dict[int, int]:
    """The bytes of each connection of these processes. Raises OSError or struct.error where that
    cannot be known."""
    held = {link for pid in tree for link in links(f"/proc/{pid}/fd")}
    return {inode: count for inode, count in connections() if f"socket:[{inode}]" in held}


def links(folder: str) -> Iterator[str]:
    """What a process has open. Raises PermissionError where only its owner may see it."""
    try:
        for entry in os.scandir(folder):
            try:
                yield os.readlink(entry)
            except FileNotFoundError:  # closed meanwhile
                pass
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended


def connections() -> Iterator[tuple[int, int]]:
    """Inode and bytes of every TCP connection of this host, as `ss -ti` asks for them. Raises
    OSError where the kernel does not answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:  # NETLINK_SOCK_DIAG
        kernel.settimeout(PAUSE_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            what = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 2, 1 << _ESTABLISHED)
            kernel.send(struct.pack("=IHHII", _HEADER + len(what), 20, 0x301, 1, 0) + what)
            more = True
            while more:
                answer = kernel.recv(1 << 17)
                while len(answer) >= _HEADER:
                    size, kind = struct.unpack_from("=IH", answer)
                    if kind == 3:  # done
                        more = False
                        break
                    if kind == 2:
                        raise OSError(f"the kernel counts no bytes ({answer[_HEADER:20].hex()})")
                    yield from _connection(answer[_HEADER:size])
                    answer = answer[(size + 3) & ~3 :]


def _connection(message: bytes) -> Iterator[tuple[int, int]]:
    """One connection of the kernel's answer, unless it leads to the web."""
    (remote_port,) = struct.unpack_from(">H", message, 6)
    (inode,) = struct.unpack_from("=I", message, 68)
    rest = message[72:]
    while len(rest) >= 4 and remote_port not in _WEB:
        size, kind = struct.unpack_from("=HH", rest)
        if kind == _TCP_INFO and size >= 4 + _COUNTS_AT + 16:
            yield inode, sum(struct.unpack_from("=QQ", rest, 4 + _COUNTS_AT))
        rest = rest[max(4, (size + 3) & ~3) :]
