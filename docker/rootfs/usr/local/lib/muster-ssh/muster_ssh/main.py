"""Makes keys and settings of this job, then becomes the real sshd with the caller's arguments."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping, Sequence

from muster_ssh import SshError, keys, policy
from muster_ssh.addresses import listen_addresses
from muster_ssh.home import publish
from muster_ssh.identity import Identity, port, read
from muster_ssh.place import random_seed, take, write
from muster_ssh.session import session

__all__ = ["main", "prepare"]

REAL = "/usr/sbin/sshd.distrib"  # where docker/install/ssh.sh moved it
PRIVSEP = "/run/sshd"
FAILED = 255  # sshd's own


def main() -> int:
    """Does not return unless something is wrong."""
    environ = {name: value for name, value in os.environ.items() if name != "MUSTER_JOB_SECRET"}
    try:
        config = prepare(os.environ)
        if os.geteuid() == 0:
            os.makedirs(PRIVSEP, 0o755, exist_ok=True)
        # sshd starts itself again for each connection, so its own path comes first, not ours
        os.execve(REAL, [REAL, *arguments(config, sys.argv[1:])], environ)
    except SshError as error:
        _say(str(error))
    except OSError as error:
        _say(f"{REAL} cannot be started: {error}: is openssh-server installed as in our images?")
    return FAILED


def arguments(config: str, given: Sequence[str]) -> list[str]:
    """Ours first: what the caller says wins. In the foreground sshd speaks to stderr, since
    nobody reads a system log here."""
    quiet = "-D" in given and not any(word.startswith(("-e", "-E")) for word in given)
    return ["-f", config, *(["-e"] if quiet else []), *given]


def prepare(environ: Mapping[str, str]) -> str:
    """Writes all files; the path of sshd's settings. Raises SshError."""
    job, on = read(environ), port(environ)
    user, home = _user()
    folder, in_memory = take()
    if not in_memory:
        _say(f"no memory can be written to as files: the keys lie on a disk, in {folder}")
    if not job.text:
        _say("no job name or host list: the keys are random and no other host has them")
    variables = session(environ)
    if variables.left_out:
        _say(f"too long for sessions of sshd, left out: {', '.join(variables.left_out)}")
    try:
        _keys(folder, job, on)
        listen = listen_addresses(job)
        config = policy.sshd_config(folder, user, on, listen, variables.text)
        write(f"{folder}/sshd_config", config)
        with open(f"{folder}/known_hosts", encoding="utf-8") as file:
            known = file.read()
        client = policy.ssh_config(folder, user, on, job.peers)
        for problem in publish(folder, client, known, home):
            _say(problem)
    except OSError as error:
        raise SshError(f"keys cannot be written: {error}: make {folder} writable") from error
    return f"{folder}/sshd_config"


def _keys(folder: str, job: Identity, on: int) -> None:
    seed = keys.job_key(job.text, job.secret) if job.text else random_seed(folder)
    user = keys.key(seed, keys.USER)
    hosts = {name: keys.key(seed, keys.for_host(name)) for name in (*job.peers, job.host)}
    known = policy.known_hosts([(name, hosts[name].public) for name in job.peers], on)
    write(f"{folder}/known_hosts", known)
    write(f"{folder}/authorized_keys", policy.authorized_keys(user.public))
    write(f"{folder}/host_key", hosts[job.host].private)
    write(f"{folder}/id_ed25519", user.private)


def _user() -> tuple[str, str]:
    """The name of this user and where its clients look for their files."""
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        raise SshError(
            f"user {os.geteuid()} has no entry in /etc/passwd, which ssh needs: "
            "add one to the image, or run as root"
        ) from None
    return user.pw_name, user.pw_dir


def _say(text: str) -> None:
    print(f"sshd: {text}", file=sys.stderr, flush=True)
