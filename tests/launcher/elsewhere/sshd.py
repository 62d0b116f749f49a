"""Real sshd on hosts in namespaces, with keys and known hosts made for one test.

The program is that of Debian's package, unpacked and never installed: `scripts/ci-machine` does so.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.hosts import Networks, address, networks, skip_without_networks
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3] / ".cache" / "openssh"
START_S = 10.0
ALIAS = "gpu1"  # of the first host, in the configuration of ssh alone


class Desk(NamedTuple):
    """Where a person sits: a host of its own beside those that ssh reaches.

    `config`: of ssh. `home`: of root on the hosts.
    """

    net: Networks
    names: tuple[str, ...]
    config: Path
    home: Path

    def inside(self, name: str) -> list[str]:
        return self.net.inside(name)

    def left(self, name: str) -> list[str]:
        """The command lines of what runs on a host, but for what holds its network and sshd."""
        return [line for pid, line in processes(self.net.holders[name]) if "sshd" not in line]


def processes(holder: int) -> list[tuple[int, str]]:
    """(pid, command line) of all other processes in the network of a holder."""
    found = []
    net = os.readlink(f"/proc/{holder}/ns/net")
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if int(name) != holder and os.readlink(f"/proc/{name}/ns/net") == net:
                words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                if words:
                    found.append((int(name), words.decode(errors="replace")))
        except OSError:
            continue
    return found


def skip_without_sshd() -> None:
    skip_without_networks()
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    if not (ROOT / "usr/sbin/sshd").exists():
        pytest.skip(f"no sshd in {ROOT}: scripts/ci-machine unpacks it there")


def _key(path: Path) -> str:
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(made, check=True, timeout=10)
    return path.with_suffix(".pub").read_text()


@contextmanager
def ssh_hosts(folder: Path, names: Sequence[str]) -> Iterator[Desk]:
    """Hosts with a sshd each and a `desk` without one; the key of the desk opens all of them, and a
    login there is a talkative one."""
    skip_without_sshd()
    folder.mkdir()
    mine, theirs = _key(folder / "id"), _key(folder / "host_key")
    (folder / "authorized").write_text(mine)
    listed = [f"{name},{address(place + 1)} {theirs}" for place, name in enumerate(names)]
    (folder / "known_hosts").write_text("".join(listed))
    config = folder / "config"
    config.write_text(
        f"IdentityFile {folder}/id\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known_hosts\n"
        "GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\nConnectTimeout 5\nUser root\n"
        f"Host {ALIAS}\nHostName {names[0]}\n"
    )
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized\nStrictModes no\n"
        "PidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
        "PermitRootLogin yes\nLogLevel INFO\n"
        # as by default, where from the 10th on that has not logged in only some are refused
        "MaxStartups 10:100:10\n"
        f"SetEnv PYTHONPATH={os.environ.get('PYTHONPATH', '')}\n"  # the code under test
    )
    (folder / "passwd").write_text(
        f"root:x:0:0::{folder}/home:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    (folder / "home").mkdir()
    (folder / "home" / ".bashrc").write_text("echo Welcome; echo all is well >&2\n")
    with networks(["desk", *names], whole=True, known=folder / "hosts") as net:
        daemons = [_sshd(folder, net.inside(name), name) for name in names]
        try:
            for name in names:
                wait_until(
                    lambda name=name: "listening" in (folder / f"{name}.log").read_text(),  # type: ignore[misc]
                    START_S,
                    lambda name=name: (folder / f"{name}.log").read_text(),  # type: ignore[misc]
                )
            yield Desk(net, tuple(names), config, folder / "home")
        finally:
            for daemon in daemons:
                daemon.terminate()
                daemon.wait(10)


def _sshd(folder: Path, inside: list[str], name: str) -> subprocess.Popen[bytes]:
    """It looks up its user by the name `sshd`, and wants /run/sshd."""
    script = (
        f"mount --bind {shlex.quote(str(folder / 'passwd'))} /etc/passwd && mount -t tmpfs run /run"
        " && mkdir -m 755 /run/sshd && ip addr show >/dev/null && exec "
    )
    sshd = [str(ROOT / "usr/sbin/sshd"), "-D", "-e", "-f", str(folder / "sshd_config")]
    libraries = [
        str(ROOT / place) for place in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
    ]
    environ = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ":".join(libraries)}
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            [*inside, "sh", "-c", script + shlex.join(sshd)], env=environ, stderr=log
        )
