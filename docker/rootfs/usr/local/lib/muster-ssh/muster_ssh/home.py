"""What ssh clients find by themselves: ssh its settings, paramiko the key in ~/.ssh.

paramiko, with which SDK v3's MPI driver waits for its workers, reads no settings, only
~/.ssh/known_hosts and ~/.ssh/id_*. Nothing that the user put there is changed or hidden.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from muster_ssh.place import PREFIX, write
from muster_ssh.policy import MARK

__all__ = ["publish"]

SYSTEM_CONFIG = "/etc/ssh/ssh_config.d/50-muster.conf"


def publish(folder: str, config: str, known: str, home: str) -> Iterator[str]:
    """Does it; yields a sentence for each thing that could not be done.

    `home`: that of /etc/passwd, where ssh looks; paramiko looks where HOME says. The key comes
    last: a client that finds it finds all the rest.
    """
    yield from _settings(folder, config, home)
    own = os.path.expanduser("~/.ssh")
    try:
        os.makedirs(own, 0o700, exist_ok=True)
        _know(os.path.join(own, "known_hosts"), known)
        yield from _link(f"{folder}/id_ed25519", os.path.join(own, "id_ed25519"))
    except OSError as error:
        yield f"paramiko will not find the key: {error} (make {own} writable)"


def _settings(folder: str, config: str, home: str) -> Iterator[str]:
    write(f"{folder}/ssh_config", config)
    if os.geteuid() == 0:
        try:
            return write(SYSTEM_CONFIG, config, 0o644)
        except OSError:
            pass  # a read-only root
    own = os.path.join(home, ".ssh", "config")
    try:
        os.makedirs(os.path.dirname(own), 0o700, exist_ok=True)
        if os.path.exists(own) and MARK not in _lines(own)[0]:
            yield f"{own} is yours and stays: put `Include {folder}/ssh_config` on top of it"
            return None
        write(own, config)
    except OSError as error:
        yield f"ssh needs `-F {folder}/ssh_config`, as no settings can be written: {error}"
    return None


def _know(path: str, known: str) -> None:
    """Replaces our lines of an earlier start, keeps all others."""
    theirs = [line for line in _lines(path) if not line.rstrip().endswith(f" {MARK}")]
    if theirs and theirs[-1] and not theirs[-1].endswith("\n"):
        theirs[-1] += "\n"
    write(path, "".join(theirs) + known)


def _lines(path: str) -> list[str]:
    """The lines of the file; one empty one where there are none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.readlines() or [""]
    except FileNotFoundError:
        return [""]


def _link(key: str, path: str) -> Iterator[str]:
    try:
        if PREFIX in os.readlink(path):
            os.unlink(path)
    except OSError:
        pass  # there is none, or it is no link
    try:
        os.symlink(key, path)
    except FileExistsError:
        yield f"{path} is yours and stays: paramiko will not find the key {key}"
