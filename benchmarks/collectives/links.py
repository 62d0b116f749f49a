"""Nodes on one machine: network namespaces on a bridge, each with a link of a given rate.

Needs root and `ip` and `tc`. All that is made is taken away at the end of the block, also after an
error. Names have the number of this process, so that runs beside each other do not meet; what a
killed run has left is taken away by the next.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_MINE = f"mcb{os.getpid()}"
SWITCH = f"{_MINE}s"
_NAMES = re.compile(r"mcb(\d+)(?:s|n\d+)")
_LIMIT_S = 20.0
_QUEUE_MS, _BURST_KB = 30, 256
# what of a link's rate is payload: headers of Ethernet, IP and TCP with time stamps
PAYLOAD = 0.95
BLOCK, CYCLIC = "block", "cyclic"
# the variables that tell a rank which namespace to enter, and the one processor of its node
NAMESPACE, PROCESSOR = "BENCH_NAMESPACE", "BENCH_PROCESSOR"
_CONTROL = Path("/proc/sys/net/ipv4")
_FILTERED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_NEW_NETWORK = 0x40000000


class LinksError(RuntimeError):
    """The machine refuses namespaces, links or their shaping; the text has its words."""


def why_not() -> str:
    """Why nodes cannot be made here; "" where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"no {' and no '.join(missing)} (apt-get install iproute2)" if missing else ""


def node(number: int) -> str:
    return f"{_MINE}n{number}"


def interface(number: int) -> str:
    return f"mcbv{number}"


def far_end(number: int) -> str:
    """The other end of a node's link, in the namespace SWITCH."""
    return f"mcbp{number}"


def address(number: int) -> str:
    return f"10.79.0.{number + 1}"


@contextmanager
def links(nodes: int) -> Iterator[None]:
    """`nodes` namespaces that reach each other. Raises LinksError."""
    _remove(_left())
    try:
        _ip("netns", "add", SWITCH)
        _inside(SWITCH, "ip", "link", "add", "br0", "type", "bridge")
        _inside(SWITCH, "ip", "link", "set", "br0", "up")
        if _FILTERED.exists():  # where Docker runs, a firewall looks at each packet of a bridge
            _inside(SWITCH, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=0")
        for number in range(nodes):
            _add(number)
        yield
    finally:
        _remove([*map(node, range(nodes)), SWITCH])


def shape(
    nodes: int, mbit_per_s: int, queue_ms: int = _QUEUE_MS, burst_kb: int = _BURST_KB
) -> None:
    """Both directions of every link. What would wait longer than `queue_ms` is lost, and sent
    again. Raises LinksError."""
    for number in range(nodes):
        shape_way(node(number), interface(number), mbit_per_s, queue_ms, burst_kb)
        shape_way(SWITCH, far_end(number), mbit_per_s, queue_ms, burst_kb)


def shape_way(
    namespace: str, end: str, mbit_per_s: int, queue_ms: int = _QUEUE_MS, burst_kb: int = _BURST_KB
) -> None:
    """What leaves a namespace through this end of a link. After a rest `burst_kb` pass at once.
    Raises LinksError."""
    rate = ["rate", f"{mbit_per_s}mbit", "burst", f"{burst_kb}kb", "latency", f"{queue_ms}ms"]
    _inside(namespace, "tc", "qdisc", "replace", "dev", end, "root", "tbf", *rate)


def unpaced(nodes: int) -> None:
    """TCP as most hosts have it, where this one's default is BBR: that spaces packets by timers,
    which cost more processor time than the data on a link without a rate. Raises LinksError."""
    default = (_CONTROL / "tcp_congestion_control").read_text().strip()
    allowed = (_CONTROL / "tcp_allowed_congestion_control").read_text().split()
    if not default.startswith("bbr"):
        return
    other = "cubic" if "cubic" in allowed else "reno"  # reno is everywhere
    for number in range(nodes):
        _inside(node(number), "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={other}")


def placed(nodes: int, local: int, order: str = BLOCK) -> list[dict[str, str]]:
    """Variables of each rank: ranks node after node (BLOCK), or in turns over nodes (CYCLIC).
    Where this machine has a processor for each, a rank keeps to its own: no node has those of
    another."""
    places = [rank // local if order == BLOCK else rank % nodes for rank in range(nodes * local)]
    own = sorted(os.sched_getaffinity(0))
    return [
        {
            **({PROCESSOR: str(own[rank])} if len(places) <= len(own) else {}),
            NAMESPACE: node(place), "MASTER_ADDR": address(places[0]),
            "GLOO_SOCKET_IFNAME": interface(place), "COLLECTIVES_INTERFACE": interface(place),
            "COLLECTIVES_NODE": node(place),  # they share a kernel, and could find that out
        }
        for rank, place in enumerate(places)
    ]  # fmt: skip


def enter(environ: Mapping[str, str]) -> None:
    """This process into the node that it is placed on, if it is on one. Before any thread is
    started. Raises OSError."""
    if PROCESSOR in environ:
        os.sched_setaffinity(0, [int(environ[PROCESSOR])])
    namespace = environ.get(NAMESPACE)
    if namespace is None:
        return
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(handle)


def _add(number: int) -> None:
    name, near, far = node(number), interface(number), far_end(number)
    _ip("netns", "add", name)
    _ip("link", "add", near, "netns", name, "type", "veth", "peer", "name", far, "netns", SWITCH)
    _inside(name, "ip", "addr", "add", f"{address(number)}/24", "dev", near)
    for end in (near, "lo"):
        _inside(name, "ip", "link", "set", end, "up")
    _inside(SWITCH, "ip", "link", "set", far, "master", "br0")
    _inside(SWITCH, "ip", "link", "set", far, "up")


def _left() -> list[str]:
    """Namespaces of runs whose process is gone."""
    names = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    owners = {name: found[1] for name in names if (found := _NAMES.fullmatch(name))}
    return [name for name, owner in owners.items() if not os.path.exists(f"/proc/{owner}")]


def _remove(names: Sequence[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False,
                       timeout=_LIMIT_S)  # fmt: skip


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _inside(namespace: str, *words: str) -> None:
    _run(["ip", "netns", "exec", namespace, *words])


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode:
        raise LinksError(f"{' '.join(argv)}: {done.stderr.strip()}")
