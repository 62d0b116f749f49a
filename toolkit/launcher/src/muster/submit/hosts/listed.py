"""The file of hosts, and the command that reaches each. Pure but for reading the file."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cache

from muster.arguments import UsageError
from muster.contract.engines.hosts import listed_hosts
from muster.contract.engines.values import MAX_COUNT
from muster.types.cluster import address_of
from muster.types.errors import ConfigError
from muster.types.plain import short
from muster.types.values import NamedTuple

CONFIG, FOLDER = "F", "TMPDIR"  # of --set: all others are options of ssh_config
MAX_BYTES = 1 << 20
_USER = r"(?:[A-Za-z0-9_][\w.+@-]*@)?"
_DESTINATION = re.compile(
    rf"{_USER}(?P<name>[A-Za-z0-9][\w.:%-]*)"
    rf"|ssh://{_USER}(?:\[(?P<in6>[0-9A-Fa-f:]+)\]|(?P<named>[A-Za-z0-9][\w.-]*))(?::[0-9]+)?",
    re.ASCII,
)
_PORT = re.compile(r"[^:/]+:[0-9]+", re.ASCII)  # which ssh would look up as a part of the name


class Destination(NamedTuple):
    """`destination`: as ssh takes it. `name`: in the job. `address`: by which the other hosts reach
    it, "" for its name."""

    destination: str
    name: str
    address: str = ""


@cache  # a pipe, as of <(COMMAND), can be read once
def read_hosts(path: str) -> tuple[Destination, ...]:
    """The hosts of a file, first of all the leader. Raises UsageError."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read(MAX_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        fix = "write a file with one destination of ssh a line, and name it: --on hosts:FILE"
        raise UsageError(f"--on hosts:{path}: {why}", fix) from None
    hosts: list[Destination] = []
    for number, line in enumerate(text.splitlines(), 1):
        if entry := line.partition("#")[0].strip():
            hosts.append(_host(entry, len(hosts), f"{path}, line {number}"))
    if not 1 <= len(hosts) <= MAX_COUNT:
        what = f"{len(hosts)} hosts" if hosts else "it names no host"
        raise UsageError(f"--on hosts:{path}: {what}", f"from 1 to {MAX_COUNT}, one a line")
    try:
        listed_hosts(in_the_job(hosts), path)
    except ConfigError as error:
        problem = error.problems[0]
        raise UsageError(f"--on hosts:{problem}", "name every host once") from None
    leader = leader_of(hosts)
    if len(hosts) > 1 and (leader in ("localhost", "::1") or leader.startswith("127.")):
        what = f"--on hosts:{path}: {leader}, the leader, is another host for each of them"
        raise UsageError(what, "write NAME=ADDRESS, by which the others reach it: node-a=10.0.0.7")
    return tuple(hosts)


def leader_of(hosts: Sequence[Destination]) -> str:
    """The name or address by which the others reach the first."""
    return hosts[0].address or hosts[0].name


# what ssh would take for an option is no destination
def _host(entry: str, index: int, where: str) -> Destination:
    destination, equals, address = entry.partition("=")
    found, port = _DESTINATION.fullmatch(destination), _PORT.fullmatch(destination)
    if found is None or port or (equals and not address_of(address)):
        fix = "write node-a, me@node-a, or node-a=10.0.0.7 for the address that other hosts use"
        fix = f"write ssh://{entry}" if found and port else fix
        raise UsageError(f"{where}: {short(entry)} is no destination of ssh", fix)
    name = found["name"] or found["in6"] or found["named"]
    if address_of(name):
        address, name = address or name, f"node-{index}" if ":" in name else name
    return Destination(destination, name, address)


def in_the_job(hosts: Sequence[Destination]) -> str:
    """The list as MUSTER_HOSTS has it."""
    return ",".join(f"{one.name}={one.address}" if one.address else one.name for one in hosts)


def ssh(host: Destination, settings: Mapping[str, str]) -> list[str]:
    """The client up to the host: no terminal, no question. `settings` as --set gave them."""
    words = ["ssh", "-T", "-o", "BatchMode=yes"]
    for name, value in settings.items():
        if name == CONFIG:
            words += ["-F", value]
        elif name != FOLDER:
            words += ["-o", f"{name}={value}"]
    return [*words, "--", host.destination]


def attended(python: str) -> str:
    """What the host's login shell is to run, whichever that is; so it is one word for `sh`.

    The Python of this machine may not be there, and then it is the `muster` on the PATH of a login:
    a command by ssh has a shorter one, without what ~/.profile adds.
    """
    if python != sys.executable:
        return shlex.join([python, "-m", "muster", "run", "--attended"])
    here = shlex.quote(python)
    login = "exec sh -lc 'exec muster run --attended'"
    script = f"if [ -x {here} ]; then exec {here} -m muster run --attended; fi; {login}"
    return shlex.join(["exec", "sh", "-c", script])
