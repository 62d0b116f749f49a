"""A client of the container engine that can build with BuildKit, found once and named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.images.errors import ImageError
from scripts.images.pins import CHECKOUT

STARTED = CHECKOUT / ".cache" / "docker-host"  # of scripts/container-engine
LAST_OWN_BUILDKIT = 23  # from this version on clients build through the plugin buildx only
ANSWER_S = 20.0
ALLOW = "sudo usermod -aG docker $USER and log in again, or use sudo"
INSTALL = "install Docker (Debian: apt-get install docker.io) and start it, or set DOCKER_HOST"


class Client(NamedTuple):
    """`program`: its path. `host`: the engine's address, "" for its default.

    `buildx`: whether it builds through that plugin, else with its own BuildKit.
    `config`: the folder of its configuration in place of the user's own.
    """

    program: str
    host: str
    version: str
    buildx: bool
    config: str = ""

    def argv(self, *words: str) -> list[str]:
        return [self.program, *(["-H", self.host] if self.host else []), *words]

    def environ(self) -> dict[str, str]:
        own = {"DOCKER_CONFIG": self.config} if self.config else {}
        return {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain", **own}

    def run(
        self, *words: str, limit_s: float = 120, data: bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command and keeps what it writes; never raises for its exit code."""
        done = subprocess.run(
            self.argv(*words), env=self.environ(), input=data, capture_output=True, check=False,
            timeout=limit_s,
        )  # fmt: skip
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def must(self, *words: str, limit_s: float = 120, data: bytes | None = None) -> str:
        """What the command writes. Raises ImageError with its last line when it fails."""
        done = self.run(*words, limit_s=limit_s, data=data)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise ImageError(f"docker {words[0]}: {''.join(last) or 'failed without a word'}")
        return done.stdout

    def show(self, *words: str, limit_s: float) -> int:
        """Runs a command whose progress is for the person's eyes; stdout goes to stderr."""
        argv = self.argv(*words)
        return subprocess.run(
            argv, env=self.environ(), stdout=2, check=False, timeout=limit_s
        ).returncode

    def has(self, reference: str) -> bool:
        """Whether the engine has that image."""
        return self.run("image", "inspect", reference).returncode == 0


def outward(client: Client) -> list[str]:
    """Options that give a build or a container this machine's way to other machines: an engine
    may have been started without a network of its own (scripts/container-engine starts such)."""
    there = client.run("network", "inspect", "bridge").returncode == 0
    return [] if there else ["--network=host"]


def address(environ: Mapping[str, str]) -> str:
    """The engine to talk to: DOCKER_HOST, else the checkout's own, else "" (the default)."""
    if environ.get("DOCKER_HOST"):
        return ""  # the client reads it
    return STARTED.read_text().strip() if STARTED.is_file() else ""


def find_client(building: bool = True) -> Client:
    """The first client that reaches an engine and, when `building`, can build with BuildKit.

    Raises ImageError when there is none, saying for each why.
    """
    host = address(os.environ)
    reasons = []
    for program in _programs():
        for where in dict.fromkeys((host, "")):
            found = _try(program, where, building)
            if isinstance(found, Client):
                return found
            reasons.append(f"{program}: {found}")
    if not reasons:
        raise ImageError("no program `docker` is on PATH", INSTALL)
    denied = [reason for reason in reasons if "permission denied" in reason]
    if denied:
        raise ImageError(denied[0], ALLOW)
    raise ImageError("; ".join(dict.fromkeys(reasons)), INSTALL)


def _programs() -> Iterator[str]:
    seen = set()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder) / "docker"
        if os.access(path, os.X_OK) and (real := path.resolve()) not in seen:
            seen.add(real)
            yield str(path)


def _try(program: str, host: str, building: bool) -> Client | str:
    """The client, or why it is of no use."""
    client = Client(program, host, "", False)
    said = _answer(client.argv("version", "--format", "{{.Client.Version}} {{.Server.Version}}"))
    version, _, server = said.stdout.strip().partition(" ")
    if said.returncode or not server:
        return (said.stderr.strip().splitlines() or ["the engine does not answer"])[-1]
    buildx = _answer([program, "buildx", "version"]).returncode == 0
    major = version.partition(".")[0]
    own = major.isdecimal() and int(major) < LAST_OWN_BUILDKIT
    if building and not buildx and not own:
        return f"version {version} needs its plugin buildx to build (apt-get install docker-buildx)"
    return Client(program, host, version, buildx)


def _answer(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))
