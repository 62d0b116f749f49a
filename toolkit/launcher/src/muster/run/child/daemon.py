"""From what a launcher asks for to the launch daemon that this host starts: its own, or none.

A request comes from another host, so it never names a program, an environment or a component: this
host's plan does. Only the few values that the launcher alone knows are taken from it, each one
matched as a whole. Promises: S02.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence

from muster.plan.launchplan import Command, Daemon
from muster.types.errors import LaunchError

SHOWN = 2000  # characters of a request that the lines below a refusal quote
VALUE_SHOWN = 60
# How both versions have a login shell of sh or ksh read its profile first; `)` comes last.
PROFILE = ("(", "test", "!", "-r", "./.profile", "||", ".", "./.profile;")
MOST_BYTES = 60_000  # of a request as JSON: it goes to its host in one frame


def daemon_command(daemon: Daemon | None, asked: Sequence[str], leader: str, host: str) -> Command:
    """The command of this host's launch daemon.

    `leader`: the address that the leader joined with; a URI must name it. Raises LaunchError for a
    request that holds anything but what the plan allows.
    """
    if daemon is None:
        raise _refusal(host, "no launch daemon is part of this host's plan", asked)
    words = _without_program(daemon, asked, host)
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word in daemon.flags:
            continue
        if word not in daemon.switches or len(words) < 2:
            raise _refusal(host, f"{word[:VALUE_SHOWN]!r} is not allowed", asked)
        name, value = words.pop(0), _unquoted(words.pop(0))
        _check(daemon, name, value, leader, host, asked)
        if name in daemon.asked and found.setdefault(name, value) != value:
            raise _refusal(host, f"{name} is given twice", asked)
    missing = [name for name in daemon.asked if name not in found]
    if missing:
        raise _refusal(host, f"{missing[0]} is missing", asked)
    passed = (word for name in daemon.asked for word in (daemon.switches[0], name, found[name]))
    command = daemon.command
    return command._replace(argv=(*command.argv, *passed))


def fits(asked: Sequence[str]) -> bool:
    """Whether a request is short enough to be passed on."""
    return sum(map(len, asked)) <= MOST_BYTES and len(json.dumps(list(asked))) <= MOST_BYTES


def _check(
    daemon: Daemon, name: str, value: str, leader: str, host: str, asked: Sequence[str]
) -> None:
    patterns: Mapping[str, str] = daemon.asked if name in daemon.asked else daemon.known
    pattern = patterns.get(name)
    if pattern is None:
        raise _refusal(host, f"the option {name[:VALUE_SHOWN]} is not allowed", asked)
    if not re.fullmatch(pattern.replace("{leader}", re.escape(leader)), value):
        raise _refusal(host, f"the option {name} may not be {value[:VALUE_SHOWN]!r}", asked)


def _without_program(daemon: Daemon, asked: Sequence[str], host: str) -> list[str]:
    """The words after the program. Launchers may put assignments for a shell before it, which
    are no part of it here: nothing but the program's name counts."""
    if tuple(asked[: len(PROFILE)]) == PROFILE and asked[-1] == ")":
        asked = asked[len(PROFILE) : -1]
    first = asked[0].strip() if asked else ""
    if os.path.basename(first.rpartition(";")[2]) not in daemon.programs:
        raise _refusal(host, f"{first[-VALUE_SHOWN:]!r} is not its launch daemon", asked)
    return list(asked[1:])


def _unquoted(value: str) -> str:
    """Launchers quote values for a shell that is not there."""
    quoted = len(value) >= 2 and value[0] == value[-1] == '"'
    return value[1:-1] if quoted else value


def _refusal(host: str, why: str, asked: Sequence[str]) -> LaunchError:
    shown = " ".join([*(word[-VALUE_SHOWN:] for word in asked[:1]), *asked[1:]])[:SHOWN]
    return LaunchError(
        f"{host} refused what the leader's launcher asked it to start: {why}",
        "remove the options that change how Open MPI starts its daemons",
        f"what was asked for: {shown!r}",
    )
