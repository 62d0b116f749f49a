"""The network of isolated hosts: one switch, one link each, no way out. Made by `ip`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from muster.types.files import find_program

INTERFACE = "eth0"
PREFIX_BITS = 16
_FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")


def host_address(host_index: int) -> str:
    """The address of a host by its index in the cluster: 10.77.0.1, ..."""
    number = host_index + 1
    return f"10.77.{number >> 8}.{number & 255}"


def make_switch(pids: Sequence[int]) -> None:
    """A bridge in this network namespace with a link into that of every process."""
    commands = ["link set lo up", "link add name switch type bridge", "link set switch up"]
    for number, pid in enumerate(pids, start=1):
        commands += [
            f"link add name port{number} type veth peer name {INTERFACE} netns {pid}",
            f"link set port{number} master switch",
            f"link set port{number} up",
        ]
    run_ip(commands)


def configure(address: str) -> None:
    """This network namespace's own end of the link, and its loopback."""
    run_ip(
        [
            "link set lo up",
            f"address add {address}/{PREFIX_BITS} broadcast + dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ]
    )


def run_ip(commands: Sequence[str]) -> None:
    """All commands in one `ip -batch`. Raises OSError with its words."""
    program = find_program(_FOLDERS, "ip")
    if not program:
        raise OSError(2, "iproute2 is not installed (apt-get install iproute2)", "ip")
    in_r, in_w = os.pipe()
    err_r, err_w = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, in_r, 0), (os.POSIX_SPAWN_DUP2, err_w, 2)]
    argv = [program, "-batch", "-"]
    pid = os.posix_spawn(program, argv, {"PATH": "/usr/sbin:/usr/bin"}, file_actions=actions)
    os.close(in_r)
    os.close(err_w)
    with os.fdopen(in_w, "w", encoding="ascii") as pipe:
        pipe.write("\n".join(commands) + "\n")
    with os.fdopen(err_r, encoding="utf-8", errors="replace") as pipe:
        words = pipe.read().strip()
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise OSError(5, words.splitlines()[0] if words else f"status {status}", "ip")
