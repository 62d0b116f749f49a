"""A real registry and ECR's API as processes of this machine, for tests that push.

The registry is Debian's docker-registry, unpacked below `.cache` and never installed.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.ports import free_ports
from tests.support.venvs import CACHE
from tests.support.waiting import wait_until

__all__ = ["Counter", "Registry", "counted", "docker_registry", "moto", "program"]

START_S = 30.0
FETCH_S = 120.0
UNPACKED = CACHE / "docker-registry"


class Registry(NamedTuple):
    """A running registry. `address`: HOST:PORT. `log`: what it wrote."""

    address: str
    log: Path


@functools.cache
def program() -> str | None:
    """The path of docker-registry, which is fetched once; None where it cannot be."""
    found = shutil.which("docker-registry")
    path = UNPACKED / "usr" / "bin" / "docker-registry"
    if found or path.exists():
        return found or str(path)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    fetch = CACHE / f"docker-registry-{secrets.token_hex(4)}"
    fetch.mkdir(parents=True)
    try:
        for argv in (
            ["apt-get", "-qq", "download", "docker-registry"],
            ["sh", "-ec", "exec dpkg-deb -x docker-registry_*.deb unpacked"],
        ):
            done = subprocess.run(
                argv, cwd=fetch, capture_output=True, timeout=FETCH_S, check=False
            )
            if done.returncode:
                return None
        shutil.rmtree(UNPACKED, ignore_errors=True)
        (fetch / "unpacked").rename(UNPACKED)
    finally:
        shutil.rmtree(fetch, ignore_errors=True)
    return str(path)


@contextmanager
def docker_registry(
    folder: Path, users: Mapping[str, str] | None = None, host: str = "127.0.0.1"
) -> Iterator[Registry]:
    """A registry with its data below `folder`; `users`: names and passwords that it asks for.

    Skips the test where the program cannot be had.
    """
    binary = program()
    if binary is None:
        pytest.skip("no docker-registry here, and apt-get cannot download Debian's")
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": False}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"{host}:{port}", "secret": secrets.token_hex(16)},
    }
    if users:
        passwords = folder / "htpasswd"
        passwords.write_text("".join(f"{u}:{_bcrypt(p)}\n" for u, p in users.items()))
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(passwords)}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary, "serve", str(folder / "config.yml")],
            stdout=output,
            stderr=output,
            env={"PATH": os.defpath, "HOME": str(folder), "OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        wait_until(lambda: _answers(f"http://{host}:{port}/v2/"), START_S)
        assert process.poll() is None, log.read_text()
        yield Registry(f"{host}:{port}", log)
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def moto() -> Iterator[str]:
    """AWS's API, as moto knows it, with nothing in it. Gives its URL."""
    from moto.server import ThreadedMotoServer  # which takes a second

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        reset = urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset, timeout=START_S).close()  # all servers of a process are one
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def _bcrypt(password: str) -> str:
    """The one form that the registry takes; Debian's crypt knows it, Python's standard library
    soon no longer does."""
    program = 'print crypt($ARGV[0], "\\$2b\\$04\\$" . ("." x 21) . "u")'
    done = subprocess.run(["perl", "-e", program, password], capture_output=True, check=True)
    found = done.stdout.decode()
    assert found.startswith("$2b$"), "this machine's crypt knows no bcrypt"
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False


class Counter:
    """Stands before a registry and counts what goes to it. `address`: HOST:PORT of its own.

    `edit`: what becomes of that on its way. `stalls_after_bytes`: then nothing goes on, and
    `stalled` is set.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.received_bytes = 0
        self.edit: Callable[[bytes], bytes] = bytes
        self.stalls_after_bytes: int | None = None
        self.stalled = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [near, far]
            for source, sink, counts in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._carry, args=(source, sink, counts), daemon=True
                ).start()

    def _carry(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(self._passing(data) if counts else data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of them has left

    def _passing(self, data: bytes) -> bytes:
        with self._lock:
            self.received_bytes += len(data)
            many = self.received_bytes > (self.stalls_after_bytes or float("inf"))
        if many:
            self.stalled.set()
            self._closed.wait()
        return self.edit(data)


@contextmanager
def counted(registry: Registry) -> Iterator[Counter]:
    counter = Counter(registry.address)
    try:
        yield counter
    finally:
        counter.close()
