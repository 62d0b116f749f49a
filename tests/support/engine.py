"""A container engine for tests, and the one image that they need, which comes from nowhere.

No image is pulled or built. One that holds nothing but folders is imported, and this machine's
programs, Python and checkout are mounted into its containers, read-only.
"""

from __future__ import annotations

import atexit
import functools
import io
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
from os.path import islink
from pathlib import Path
from typing import NamedTuple

import muster
from tests.support.venvs import CACHE, CHECKOUT

__all__ = ["LABEL", "Engine", "NoEngineError", "mounts", "packages", "usable_engine"]

DEFAULT = "unix:///var/run/docker.sock"
STARTED = CACHE / "docker-host"  # scripts/container-engine: the address of the one it started
WHY_NOT = CACHE / "docker-reason"  # the same: why it could not
LABEL = "muster-test"
COMMAND_S = 60.0  # the longest that one command of the client may take on a busy machine
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
FOLDERS = ("proc", "sys", "dev", "tmp", "etc", "run", "root", "usr", "opt/ml", "var/tmp")
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    # what the engine mounts its own over
    "etc/hosts": "",
    "etc/hostname": "",
    "etc/resolv.conf": "",
}


class NoEngineError(Exception):
    """This machine has no container engine that works; the message says why."""


class Engine(NamedTuple):
    """A client program, the address of its engine, and the image to make hosts of."""

    client: str
    address: str
    image: str = ""

    def __call__(
        self, *words: str, data: bytes | None = None, limit_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs a command of the client. Raises subprocess.TimeoutExpired."""
        return subprocess.run(
            self.argv(*words), input=data, capture_output=True, timeout=limit_s, check=False
        )

    def argv(self, *words: str) -> list[str]:
        return [self.client, "-H", self.address, *words]

    def must(self, *words: str, data: bytes | None = None) -> str:
        """The same; what it wrote, stripped. Raises AssertionError with what went wrong."""
        done = self(*words, data=data)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr.decode()}"
        return done.stdout.decode().strip()


def find_engine() -> Engine:
    """The engine of DOCKER_HOST, else the one that CI started, else this machine's.

    Of the clients on this machine the first that gets an answer. Raises NoEngineError.
    """
    clients = dict.fromkeys(
        path
        for path in (shutil.which("docker"), "/usr/bin/docker", "/usr/local/bin/docker")
        if path and os.access(path, os.X_OK)
    )
    if not clients:
        raise NoEngineError("no docker client is installed")
    whys = []
    for address in _addresses():
        for client in clients:
            engine = Engine(client, address)
            try:
                done = engine("version", "--format", "{{.Server.Os}}", limit_s=10)
            except (OSError, subprocess.TimeoutExpired) as error:
                whys.append(f"{client}: {error}")
                continue
            if done.returncode == 0 and done.stdout.strip() == b"linux":
                return engine
            whys.append(f"{client} -H {address}: {(done.stderr or done.stdout).decode().strip()}")
    if "DOCKER_HOST" in os.environ:
        raise NoEngineError(_first_error(whys[0]))
    if WHY_NOT.is_file():
        raise NoEngineError(WHY_NOT.read_text().strip())
    raise NoEngineError(f"{_first_error(whys[0])} (scripts/container-engine starts one)")


def _addresses() -> list[str]:
    given = os.environ.get("DOCKER_HOST")
    if given:
        return [given]
    started = [STARTED.read_text().strip()] if STARTED.is_file() else []
    return [address for address in (*started, DEFAULT) if address]


def usable_engine() -> Engine:
    """The engine with the image, after one container has shown that all that tests need works.

    The image goes when this process ends. Raises NoEngineError, each time with the same reason.
    """
    found = _found()
    if isinstance(found, str):
        raise NoEngineError(found)
    return found


@functools.cache
def _found() -> Engine | str:
    if os.getuid() != 0:
        return "only root may look at the processes of containers and remove what they wrote"
    try:
        engine = find_engine()
        name = f"{LABEL}-{secrets.token_hex(6)}"
        imported = engine("import", "-", f"{name}:folders", data=_image())
        if imported.returncode:
            return f"docker import: {imported.stderr.decode().strip()}"
        engine = engine._replace(image=f"{name}:folders")
        atexit.register(subprocess.run, engine.argv("rmi", "-f", engine.image), capture_output=True)
        _try(engine, name)
    except NoEngineError as error:
        return str(error)
    except subprocess.TimeoutExpired as error:
        return f"docker does not answer in {error.timeout:g} s"
    return engine


def _try(engine: Engine, name: str) -> None:
    """Raises NoEngineError when a container cannot run muster or find its own name."""
    check = "import muster, socket; socket.gethostbyname('algo-1')"
    python = ["env", f"PYTHONPATH={packages()}", sys.executable, "-c", check]
    where = ["--network", name, "--network-alias", "algo-1"]
    try:
        for words in (
            ["network", "create", "--label", LABEL, name],
            ["run", "--rm", "--name", name, *where, *mounts(), engine.image, *python],
        ):
            done = engine(*words)
            if done.returncode:
                raise NoEngineError(f"docker {words[0]}: {_first_error(done.stderr.decode())}")
    finally:
        engine("rm", "-f", name)
        engine("network", "rm", name)


def _first_error(text: str) -> str:
    """The line that says what is wrong."""
    said = text.strip().splitlines() or ["it failed without a word"]
    return next((line for line in said if "rror:" in line or "rror " in line), said[-1])


def packages() -> str:
    """The folder that holds the package muster."""
    return str(Path(muster.__file__).parents[1])


def _mounted() -> list[str]:
    """The folders of this machine that hosts see, none of them below another."""
    wanted = {"/usr", *(path for path in SYSTEM if os.path.isdir(path) and not islink(path))}
    for path in (str(CHECKOUT), packages(), sys.prefix, sys.base_prefix):
        wanted |= {path, os.path.realpath(path)}
    found: list[str] = []
    for path in sorted(wanted):
        if not any(path.startswith(f"{above}/") for above in found):
            found.append(path)
    return found


def mounts() -> list[str]:
    """The options of `docker create` for what containers of the image see of this machine."""
    return [f"--mount=type=bind,src={path},dst={path},readonly" for path in _mounted()]


def _image() -> bytes:
    """An archive of empty folders, where things are mounted, and of the links of this machine."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        folders = {
            str(folder)
            for path in [*FOLDERS, *(path.lstrip("/") for path in _mounted())]
            for folder in [Path(path), *Path(path).parents][:-1]
        }
        for path in sorted(folders):
            member = tarfile.TarInfo(path)
            member.type = tarfile.DIRTYPE
            member.mode = 0o1777 if path in ("tmp", "var/tmp") else 0o755
            archive.addfile(member)
        for path in filter(islink, SYSTEM):
            member = tarfile.TarInfo(path.lstrip("/"))
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            archive.addfile(member)
        for path, text in FILES.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()
