"""Hosts in namespaces: each with a network and a host name of its own, all on one switch.

Files and processes are this machine's. Needs root.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

NETWORK = "10.78.0"
NETWORK_6 = "fd78::"
INTERFACE = "eth0"
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")  # should the tests be killed


class Networks(NamedTuple):
    """Networks of hosts. `holders`: name -> pid of a process in the host's network, {} for that of
    this machine. `mark`: part of the hosts' own names, which Open MPI gives to its files. `mounts`:
    whether each host has mounts of its own."""

    holders: Mapping[str, int]
    mark: str
    mounts: bool = False

    def inside(self, name: str) -> list[str]:
        """What stands before a command that is to run on a host."""
        nsenter = shutil.which("nsenter") or "nsenter"
        own = ["-m"] if self.mounts else []
        return [nsenter, "-t", str(self.holders[name]), "-n", "-u", *own]


OURS = Networks({}, "")


def address(place: int, family: int = 4) -> str:
    """The address of a host by its place."""
    return f"{NETWORK_6}{place + 1}" if family == 6 else f"{NETWORK}.{place + 1}"


@contextmanager
def networks(
    names: Sequence[str],
    interfaces: Sequence[str] = (),
    whole: bool = False,
    known: Path | None = None,
) -> Iterator[Networks]:
    """A network for each host, all on one switch.

    `interfaces`: what each host calls its own end, `eth0` where not given. `whole`: each also has
    its bare name, IPv6, a default route, and mounts of its own, in which there is no name server.
    `known`: a file that is written and becomes /etc/hosts of whole ones, so that they know names.
    """
    holders: list[subprocess.Popen[bytes]] = []
    try:
        mark = secrets.token_hex(4)
        alone = ["--mount"] if whole else []
        # what ranks share in memory is their host's, and no other test's
        own_mounts = "mount -t tmpfs tmpfs /dev/shm && mount --bind /dev/null /etc/resolv.conf && "
        silent = own_mounts if whole else ""
        if known is not None:
            lines = [f"{address(place)} {name}\n" for place, name in enumerate(names)]
            known.write_text("".join(["127.0.0.1 localhost\n", *lines]))
            silent += f"mount --bind {shlex.quote(str(known))} /etc/hosts && "
        for name in ("switch", *names):
            own = name if whole else f"{name}-{mark}"
            hold = ("sh", "-c", f"hostname {own} && {silent}echo up && exec sleep 3600")
            holders.append(
                subprocess.Popen(
                    [*ENDS_WITH_US, "unshare", "--net", "--uts", *alone, *hold],
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
        for holder in holders:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"
        switch, *hosts = (holder.pid for holder in holders)
        _join(switch, hosts, interfaces, whole)
        yield Networks(dict(zip(names, hosts, strict=True)), mark, whole)
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()


def _join(switch: int, hosts: Sequence[int], interfaces: Sequence[str], whole: bool) -> None:
    commands = ["link add name switch type bridge", "link set switch up"]
    for place, pid in enumerate(hosts):
        commands += [
            f"link add name port{place} type veth peer name {INTERFACE} netns {pid}",
            f"link set port{place} master switch",
            f"link set port{place} up",
        ]
    _ip(switch, commands)
    for place, pid in enumerate(hosts):
        own = interfaces[place] if interfaces else INTERFACE
        renamed = [f"link set {INTERFACE} name {own}"] if own != INTERFACE else []
        more = [f"address add {address(place, 6)}/64 dev {own} nodad"] if whole else []
        routes = [f"route add {to} dev {own}" for to in ("default", "::/0")] if whole else []
        _ip(
            pid,
            [
                "link set lo up",
                *renamed,
                f"address add {address(place)}/24 broadcast + dev {own}",
                *more,
                f"link set {own} up",
                *routes,
            ],
        )


def _ip(pid: int, commands: Sequence[str]) -> None:
    text = "\n".join(commands) + "\n"
    argv = ["nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 0, done.stderr


def skip_without_networks() -> None:
    """Skips where hosts cannot have networks of their own."""
    if os.getuid() != 0:
        pytest.skip("only root may make networks")
    missing = [
        name for name in ("unshare", "nsenter", "setpriv", "ip") if shutil.which(name) is None
    ]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        pytest.skip(f"this machine allows no namespaces: {tried.stderr.strip()}")
