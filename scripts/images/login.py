"""Logging in to a registry without a trace: no password on a command line, none left on a disk.

The client keeps what it logged in with in its configuration folder. Ours is private, lies in
memory where the machine has such a place, and goes away with the push. The user's own stays as
it is, and is only read, for a login that the user made.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scripts.images.engine import Client
from scripts.images.errors import ImageError
from scripts.images.push_problem import explained
from scripts.images.registry import HUB, Login, private_folder

__all__ = ["from_environment", "logged_in", "stored"]

HELPER_S = 30.0
LOGIN_S = 120.0
HUB_KEY = "https://index.docker.io/v1/"  # under which docker keeps a login to its own registry


def from_environment(environ: Mapping[str, str]) -> Login | None:
    """The login of REGISTRY_USER and REGISTRY_PASSWORD; None when neither is set."""
    user, password = environ.get("REGISTRY_USER", ""), environ.get("REGISTRY_PASSWORD", "")
    if bool(user) != bool(password):
        there, missing = ("USER", "PASSWORD") if user else ("PASSWORD", "USER")
        raise ImageError(
            f"REGISTRY_{there} is set and REGISTRY_{missing} is not",
            "set both, or neither to use the login that docker has",
        )
    return Login(user, password) if user else None


@contextmanager
def logged_in(client: Client, host: str, login: Login) -> Iterator[Client]:
    """A client that is logged in to the registry while the block runs.

    Raises ImageError when the login is refused.
    """
    with private_folder() as folder:
        # with an entry in it the client does not look for a store of the desktop to use instead
        Path(folder, "config.json").write_text(json.dumps({"auths": {host: {}}}))
        private = client._replace(host=_engine(client), config=str(folder))
        _log_in(private, host, login)
        yield private


def _engine(client: Client) -> str:
    """The engine's address, also where a context of the user's configuration names it."""
    if client.host or os.environ.get("DOCKER_HOST"):
        return client.host
    said = client.run("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
    return said.stdout.strip() if said.returncode == 0 else ""


def _log_in(client: Client, host: str, login: Login) -> None:
    doing = f"logging in to {host} as {login.user}"
    words = ("login", "--username", login.user, "--password-stdin", host)
    try:
        done = client.run(*words, limit_s=LOGIN_S, data=login.password.encode())
    except subprocess.TimeoutExpired:
        raise ImageError(f"{doing}: no answer in {LOGIN_S:g} s", "is the registry there?") from None
    if done.returncode:
        raise explained(doing, (done.stderr or done.stdout).replace(login.password, "***"))


def stored(host: str, environ: Mapping[str, str]) -> Login | None:
    """The login that the user made with `docker login`; None where there is none to be read.

    It is asked of the credential helper that the user's configuration names, else read from it.
    """
    host = HUB_KEY if host == HUB else host
    folder = environ.get("DOCKER_CONFIG") or Path(environ.get("HOME", "/"), ".docker")
    try:
        config = json.loads(Path(folder, "config.json").read_text())
        helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
        if helper:
            return _helped(str(helper), host)
        encoded = config.get("auths", {}).get(host, {}).get("auth", "")
        user, _, password = base64.b64decode(encoded).decode().partition(":")
    except (OSError, ValueError, AttributeError):
        return None
    return Login(user, password) if user and password else None


def _helped(helper: str, host: str) -> Login | None:
    """What `docker-credential-HELPER get` answers; None when it has nothing for that host."""
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=host,
            capture_output=True,
            text=True,
            timeout=HELPER_S,
            check=False,
        )
        found = json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    user, password = found.get("Username", ""), found.get("Secret", "")
    # <token>: not a password but something to be exchanged for one, which only docker can
    return Login(user, password) if user and password and user != "<token>" else None
