"""Whether the ranks of this host exchange anything, for a job whose ranks may train a model each.

On a machine without GPUs Hugging Face's libraries wrap no model in DistributedDataParallel unless
they are told to use the CPU: every rank trains by itself, with a process group or without, and the
job ends well. From outside it shows in that torch is loaded into all ranks and nothing moves
between them once the group is there. The looks end with the first one that shows otherwise.

A warning must be true, so it is not given where anything may move unseen: a GPU or another device
is open, MPI or our own core is loaded (both talk through memory), the kernel counts no bytes. Any
connection of a rank's process tree counts, but those to the web. Ranks that have ended cannot be
looked at: whether something moved after the last look, the counters of the whole host say, and
where others use its network, too, the warning is left out.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from muster.run.loop import Loop
from muster.run.rank import Rank
from muster.run.rank_shim import descendants
from muster.spec.values import NamedTuple

PAUSE_S, LONG_PAUSE_S = 2.0, 10.0
LONG_AFTER_S = 120.0
ENOUGH_LOOKS = 3
LAST_BYTES = 32768  # of all that the host received after the last look: the job's own end is in it
LEAST_BYTES = 256  # between two looks: the end of a connection moves less, a step of a model more
EXCHANGED_NOTHING = (
    "the ranks here exchanged nothing: a script that trains has made one model per rank "
    "(Hugging Face on CPUs: set ACCELERATE_USE_CPU=1; docs/frameworks.md)"
)
_TALK_UNSEEN = ("/libmpi.", "/muster_collectives/_native/")
_DEVICES = ("/dev/nvidia", "/dev/neuron", "/dev/kfd", "/dev/infiniband")
_WEB = (80, 443)  # a model that is downloaded, metrics that are sent
_HEADER, _ESTABLISHED, _TCP_INFO = 16, 1, 2
_COUNTS_AT = 120  # bytes_acked and bytes_received in the kernel's struct tcp_info


class Sight(NamedTuple):
    """What one look shows. `alive`: a rank still runs; `all_have_torch`: all run, and have it
    loaded; `moved`: a connection's inode -> bytes both ways, None where they may not show what is
    exchanged."""

    alive: bool
    all_have_torch: bool
    moved: Mapping[int, int] | None


class Traffic(NamedTuple):
    """Of a host since its start: TCP connections made and accepted, bytes received."""

    opened: int
    received_bytes: int


def traffic_of_host() -> Traffic | None:
    """What the kernel has counted, of this network namespace; None where it does not say."""
    tcp = _counters("/proc/net/snmp", "Tcp")
    ip = _counters("/proc/net/netstat", "IpExt")
    try:
        return Traffic(tcp["ActiveOpens"] + tcp["PassiveOpens"], ip["InOctets"])
    except KeyError:
        return None


def _counters(path: str, protocol: str) -> dict[str, int]:
    rows = [
        line.split()[1:] for line in _text(path).splitlines() if line.startswith(f"{protocol}:")
    ]
    return dict(zip(rows[0], map(int, rows[1]), strict=False)) if len(rows) == 2 else {}


class GroupWatch:
    """Watches `ranks`, all that this host has of the world."""

    def __init__(self, loop: Loop, ranks: Sequence[Rank]) -> None:
        self._loop = loop
        self._ranks = ranks
        self._began_s = time.monotonic()
        self._moved: Mapping[int, int] = {}
        self._quiet_looks = 0
        self._traffic: Traffic | None = None
        self._looked_s = 0.0
        self._pause_s = PAUSE_S
        self._settled = False

    def look(self) -> None:
        """Now, and again until the ranks are seen to talk or have ended. On a thread of its own:
        the kernel may keep one waiting who asks about a process that hangs."""
        pids = [
            rank.wrapped.pid
            for rank in self._ranks
            if not rank.ended_s and rank.wrapped is not None and rank.wrapped.pid
        ]
        try:
            threading.Thread(target=self._see, args=(pids,), name="groups", daemon=True).start()
        except RuntimeError:
            pass  # no thread can be had: nothing is known, so nothing is said

    def _see(self, pids: Sequence[int]) -> None:
        traffic = traffic_of_host()
        seen = glance(pids, len(self._ranks))
        self._loop.post(lambda: self._take(seen, traffic))

    def _take(self, seen: Sight, traffic: Traffic | None) -> None:
        self._settled = seen.moved is None or any(
            count - self._moved.get(inode, count) > LEAST_BYTES
            for inode, count in seen.moved.items()
        )
        are_new = set(seen.moved or {}) - set(self._moved)  # they have not had the time to talk
        self._moved = seen.moved or {}
        self._quiet_looks = 0 if are_new else self._quiet_looks + seen.all_have_torch
        if seen.all_have_torch:
            self._traffic = traffic
        self._looked_s = time.monotonic()
        if self._looked_s - self._began_s > LONG_AFTER_S:
            self._pause_s = LONG_PAUSE_S
        if seen.alive and not self._settled:
            self._loop.after(self._pause_s, self.look)

    def warning(self) -> str:
        """After the end of all ranks; "" unless each has run by itself, as far as can be known."""
        to_the_end = time.monotonic() - self._looked_s < 2 * self._pause_s
        quiet = self._quiet_looks >= ENOUGH_LOOKS and not self._settled
        return EXCHANGED_NOTHING if quiet and to_the_end and self._was_quiet_since() else ""

    def _was_quiet_since(self) -> bool:
        """Whether nothing can have moved after the last look at all ranks."""
        before, now = self._traffic, traffic_of_host()
        if before is None or now is None:
            return False
        received_bytes = now.received_bytes - before.received_bytes
        return now.opened == before.opened and received_bytes < LAST_BYTES


def glance(pids: Sequence[int], ranks: int) -> Sight:
    """Of the ranks' processes, and of the connections of all below them."""
    maps = [_text(f"/proc/{pid}/maps") for pid in pids]
    hidden = any(name in text for name in _TALK_UNSEEN for text in maps)
    return Sight(
        alive=bool(pids),
        all_have_torch=len(pids) == ranks and all("/libtorch" in text for text in maps),
        moved=None if hidden else moved([*pids, *descendants(*pids)]),
    )


def moved(tree: Sequence[int]) -> Mapping[int, int] | None:
    """What has gone over each connection of these processes but to the web; None where it cannot
    be known."""
    try:
        open_files = [link for pid in tree for link in _links(pid)]
        if any(link.startswith(_DEVICES) for link in open_files):
            return None
        held = {int(link[8:-1]) for link in open_files if link.startswith("socket:[")}
        return {inode: count for inode, count in connections() if inode in held}
    except (OSError, struct.error):
        return None


def _links(pid: int) -> Iterator[str]:
    """What a process has open. Raises PermissionError where nobody else may see it."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                yield os.readlink(f"/proc/{pid}/fd/{name}")
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


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
