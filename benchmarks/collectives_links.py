"""Nodes on one machine: network namespaces on a bridge, each with a link of a given rate.

Needs root and `ip` and `tc`. All that is made is taken away at the end of the block, also after an
error; names begin with `mcb`, and what an earlier run has left is taken away first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SWITCH = "mcbs"
_LIMIT_S = 20.0
# what of a link's rate is payload: headers of Ethernet, IP and TCP with time stamps
PAYLOAD = 0.95


class LinksError(RuntimeError):
    """The machine refuses namespaces, links or their shaping; the text has its words."""


def why_not() -> str:
    """Why nodes cannot be made here; "" where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"no {' and no '.join(missing)} (apt-get install iproute2)" if missing else ""


def node(number: int) -> str:
    return f"mcbn{number}"


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
    _remove(nodes)
    try:
        _ip("netns", "add", SWITCH)
        _inside(SWITCH, "ip", "link", "add", "br0", "type", "bridge")
        _inside(SWITCH, "ip", "link", "set", "br0", "up")
        for number in range(nodes):
            _add(number)
        yield
    finally:
        _remove(nodes)


def shape(nodes: int, mbit_per_s: int) -> None:
    """Both directions of every link. Raises LinksError."""
    rate = ["rate", f"{mbit_per_s}mbit", "burst", "256kb", "latency", "30ms"]
    for number in range(nodes):
        for where, end in ((node(number), interface(number)), (SWITCH, far_end(number))):
            _inside(where, "tc", "qdisc", "replace", "dev", end, "root", "tbf", *rate)


def _add(number: int) -> None:
    name, near, far = node(number), interface(number), far_end(number)
    _ip("netns", "add", name)
    _ip("link", "add", near, "netns", name, "type", "veth", "peer", "name", far, "netns", SWITCH)
    _inside(name, "ip", "addr", "add", f"{address(number)}/24", "dev", near)
    for end in (near, "lo"):
        _inside(name, "ip", "link", "set", end, "up")
    _inside(SWITCH, "ip", "link", "set", far, "master", "br0")
    _inside(SWITCH, "ip", "link", "set", far, "up")


def _remove(nodes: int) -> None:
    for name in (*map(node, range(nodes)), SWITCH):
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
