"""`--internet`: a way out for hosts in namespaces, by pasta (Debian's package passt).

    helper           stays in this machine's network; one pasta for each host that asks
     `- pasta        hands what comes out of a host's interface to sockets of its own

A host asks over a socket, which tells the helper its process as the helper numbers it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import time

from muster.arguments import UsageError
from muster.local.backends.netns import kernel
from muster.types.files import find_program, read_text

INTERFACE = "inet0"
TUN = "/dev/net/tun"
READY_S = 10.0
POLL_S = 0.02
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_NO_TABLE = ("-t", "none", "-u", "none", "-T", "none", "-U", "none")  # no port is let in


def find_pasta() -> str:
    """Its path. Raises UsageError where there is none, or it could not work."""
    found = find_program(os.environ.get("PATH", os.defpath).split(os.pathsep), "pasta")
    if not found:
        raise UsageError(
            "--internet needs pasta, which is not installed",
            "apt-get install passt, or use --isolation process or docker",
        )
    if not os.access(TUN, os.R_OK | os.W_OK):
        raise UsageError(
            f"--internet: this user may not open {TUN}",
            "run as root, or use --isolation process or docker",
        )
    return found


def start_helper(pasta: str) -> socket.socket:
    """Forks the helper, which ends with this process; returns what hosts ask by."""
    ours, hosts = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork():
        ours.close()
        return hosts
    code = 1
    try:
        kernel.die_with(parent)
        hosts.close()
        _serve(pasta, ours)
        code = 0
    finally:
        os._exit(code)


def _serve(pasta: str, asked: socket.socket) -> None:
    asked.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    is_root = kernel.has_namespace_powers()
    if is_root:  # for files that stand for networks, which pasta opens after it gave up powers
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0700")
    while True:
        word, found, _, _ = asked.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not word:
            return
        host = _CREDENTIALS.unpack(found[0][2])[0]
        try:
            _connect(pasta, host, is_root)
        except (OSError, subprocess.SubprocessError) as error:
            asked.send(str(error).encode()[:500])


def _connect(pasta: str, host: int, is_root: bool) -> None:
    target = [str(host)]
    if is_root:
        file = f"/tmp/{host}"
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
        kernel.mount(f"/proc/{host}/ns/net", file, flags=kernel.MS_BIND)
        target = ["--runas", "0:0", "--netns-only", "--netns", file]
    argv = [pasta, "-f", "--config-net", "--no-map-gw", "-I", INTERFACE, *_NO_TABLE, *target]
    me = os.getpid()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: kernel.die_with(me),  # noqa: PLW1509 - the helper has one thread
    )
    limit = time.monotonic() + READY_S
    while time.monotonic() < limit:
        if process.poll() is not None:
            assert process.stderr is not None
            said = process.stderr.read().decode(errors="replace").split("\n")
            lines = [line for line in said if line and "syslog" not in line]
            raise OSError(5, f"pasta ended: {lines[-1] if lines else process.returncode}")
        if _is_ready(f"/proc/{host}/net/route"):
            return
        time.sleep(POLL_S)
    process.send_signal(signal.SIGKILL)
    raise OSError(110, f"pasta made no interface within {READY_S:g} s")


def _is_ready(routes: str) -> bool:
    """Whether the table has a default route by the interface."""
    rows = read_text(routes).splitlines()
    return any(row.split()[:2] == [INTERFACE, "00000000"] for row in rows)


def ask(helper: socket.socket, name: str) -> None:
    """In a host: its interface. Raises OSError."""
    helper.send(b"?")
    poll = select.poll()
    poll.register(helper, select.POLLIN)
    limit = time.monotonic() + READY_S + 1
    while not _is_ready("/proc/net/route"):
        if poll.poll(POLL_S * 1000):
            raise OSError(5, helper.recv(1000).decode(errors="replace") or "no helper", name)
        if time.monotonic() > limit:
            raise OSError(110, "no way to the internet was made", name)
