"""A mount whose server can be stopped: from then on nobody who touches it gets an answer.

A FUSE file system by the kernel's protocol, without a library: one folder `data` and one file
`rows` in a root where nothing can be made. As a program it is the server:
`python silent_mount.py FOLDER READ_S`. A read of the file takes so many seconds; with 0 none is
ever answered: who waits for its pages is in state D, until the server ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LOOKUP, FORGET, GETATTR, STATFS, INIT, OPENDIR, READDIR, RELEASEDIR = 1, 2, 3, 17, 26, 27, 28, 29
OPEN, READ, RELEASE, FLUSH = 14, 15, 18, 25
INTERRUPT, BATCH_FORGET = 36, 42
ROOT, DATA, ROWS = 1, 2, 3
NAMES = {b"data": DATA, b"rows": ROWS}
ROWS_BYTES = 1 << 20
DIRECT_IO = 1  # every read comes here, none is answered from pages
ASYNC_READ = 1  # readers wait for a page, and not for the answer to a request
MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class Mount:
    """`stop` the server, and every call into the folder blocks until it is killed.

    It stops between two requests: one that it had read could not even be killed, and who waits
    for it neither (the kernel's way with FUSE alone; of a network file system every wait can).
    """

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        self._server = server

    def stop(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(b"\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == b"stopped\n"


@contextmanager
def silent_mount(folder: Path, read_s: float = 0) -> Iterator[Mount]:
    """Mounts over `folder`, which is made; gone at the end, whoever still waits for it. `read_s`:
    how long a read of `rows` takes, 0 for ever."""
    if os.getuid() or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("needs root and /dev/fuse")
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, str(Path(__file__).resolve()), str(folder), str(read_s)]
    environ = {"PATH": os.environ["PATH"]}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=environ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"mounted\n"
            yield Mount(server)
        finally:
            server.kill()  # the kernel then answers all who wait with an error
            _libc.umount2(os.fsencode(folder), MNT_DETACH)


def main(folder: str, read_s: float) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if _libc.mount(b"silent", os.fsencode(folder), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    _serve_one(device, read_s)  # INIT
    print("mounted", flush=True)
    while not select.select([0, device], [], [])[0].count(0):
        _serve_one(device, read_s)
    print("stopped", flush=True)
    signal.pause()


def _serve_one(device: int, read_s: float) -> None:
    request = os.read(device, 1 << 18)
    _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
    if opcode in (FORGET, BATCH_FORGET, INTERRUPT) or (opcode == READ and not read_s):
        return
    number, body = _answer(opcode, node, request[40:])
    if opcode == READ:
        time.sleep(read_s)
        body = bytes(struct.unpack_from("<QQI", request, 40)[2])
    elif opcode == OPEN and read_s:
        body = struct.pack("<QII", 0, DIRECT_IO, 0)
    os.write(device, struct.pack("<IiQ", 16 + len(body), -number, unique) + body)


def _answer(opcode: int, node: int, rest: bytes) -> tuple[int, bytes]:
    if opcode == INIT:
        return 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, ASYNC_READ, 8, 8, 4096, 1, 1, 0, 0)
    if opcode == GETATTR:
        return 0, struct.pack("<QII", 0, 0, 0) + _attributes(node)
    if opcode == LOOKUP:
        found = NAMES.get(rest.rstrip(b"\0")) if node == ROOT else None
        if found is None:
            return errno.ENOENT, b""
        return 0, struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + _attributes(found)
    if opcode == STATFS:
        return 0, struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
    if opcode in (OPEN, OPENDIR):
        return 0, struct.pack("<QII", 0, 0, 0)
    if opcode in (READ, RELEASE, RELEASEDIR, FLUSH, READDIR):
        return 0, b""
    return errno.ENOSYS if opcode == 34 else errno.EROFS, b""  # access is the kernel's own matter


def _attributes(node: int) -> bytes:
    mode, size = stat.S_IFDIR | 0o777, 0
    if node == ROWS:
        mode, size = stat.S_IFREG | 0o444, ROWS_BYTES
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, *[0] * 7, mode, 2, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
