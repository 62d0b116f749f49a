"""The variables that sessions of sshd get: those of the process that started it.

Ranks that mpirun starts through ssh need their own host's PATH, LD_LIBRARY_PATH and SM_*
variables, and nothing else brings them there: PAM, which would read /etc/environment, is off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Session", "session"]

# sshd hands its settings to each session in one message of at most 256 KiB
MAX_BYTES = 160 << 10
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# what sshd or the shell make anew
_ANEW = ("HOME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_")
_SECRET = "MUSTER_JOB_SECRET"


class Session(NamedTuple):
    """`text`: the words of one SetEnv. `left_out`: names for whose values there is no room."""

    text: str
    left_out: tuple[str, ...]


def session(environ: Mapping[str, str]) -> Session:
    """All variables that can be set; where they are too many, the longest are left out."""
    words = {name: _word(name, value) for name, value in environ.items() if _carried(name, value)}
    left_out: list[str] = []
    room = MAX_BYTES
    for name in sorted(words, key=lambda name: len(words[name])):
        room -= len(words[name].encode(errors="surrogateescape")) + 1
        if room < 0:
            left_out.append(name)
    text = " ".join(words[name] for name in sorted(words) if name not in left_out)
    return Session(text, tuple(sorted(left_out)))


def _carried(name: str, value: str) -> bool:
    own = name in (*_ANEW, _SECRET) or name.startswith("SSH_")
    return bool(_NAME.fullmatch(name)) and not own and "\n" not in value and "\r" not in value


def _word(name: str, value: str) -> str:
    """One word for sshd, whose quotes know the escapes of a backslash and of a quote."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}={quoted}"'
