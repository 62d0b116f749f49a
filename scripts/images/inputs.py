"""What this machine adds to a build: a base, a package index, a certificate, wheels.

None of it is needed on an open network, and none of it stays in an image: the index and the
certificate are secrets of single steps, wheels are mounted. It is taken from docker/build.local.env
(BASE_IMAGE, PIP_CONF, CA_BUNDLE), else from what pip is told on this machine.
"""

from __future__ import annotations

import ast
import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.images.choice import Choice, choose
from scripts.images.engine import Client
from scripts.images.errors import ImageError
from scripts.images.pins import CHECKOUT, pins, read_env

LOCAL = CHECKOUT / "docker" / "build.local.env"
WHEELHOUSE = CHECKOUT / "docker" / "wheelhouse"
LOCAL_BASE = "muster-base/debian:{suite}"  # which `base` makes
SECRET = "/run/secrets/ca_bundle"
KNOWN = ("BASE_IMAGE", "PIP_CONF", "CA_BUNDLE")
INDEXES = ("index-url", "extra-index-url", "trusted-host")
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


class Inputs(NamedTuple):
    """`base`: an image. `pip_conf`, `ca_bundle`: files, None where not needed. `notes`: what was
    found where, for the person."""

    base: str
    pip_conf: Path | None = None
    ca_bundle: Path | None = None
    notes: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The options of `docker build`."""
        secrets = (("pip_conf", self.pip_conf), ("ca_bundle", self.ca_bundle))
        return [
            f"--build-arg=BASE_IMAGE={self.base}",
            *(f"--secret=id={name},src={path}" for name, path in secrets if path is not None),
        ]


def find_inputs(client: Client, environ: Mapping[str, str], choice: Choice | None = None) -> Inputs:
    """For the choice, or the usual one. Raises ImageError when there is no base, or a file that was
    named is not there."""
    given = read_env(LOCAL) if LOCAL.is_file() else {}
    for name in given:
        if name not in KNOWN:
            raise ImageError(f"{LOCAL}: no input is called {name}", f"use {', '.join(KNOWN)}")
    given |= {name: environ[name] for name in KNOWN if environ.get(name)}
    conf, named = _file(given, "PIP_CONF"), _file(given, "CA_BUNDLE")
    settings = pip_settings()
    bundle = named or _certificate(settings, environ)
    base, about_base = _base(client, given.get("BASE_IMAGE", ""), choice or choose("base"))
    notes = [about_base] if about_base else []
    if conf is None and (bundle or any(name in settings for name in INDEXES)):
        conf = _write_conf(settings, bundle)
    if bundle:
        notes.append(f"certificates of this machine are a secret of the build: {bundle}")
    notes += _fill_wheelhouse(settings)
    return Inputs(base, conf, bundle, tuple(notes))


def _base(client: Client, asked: str, choice: Choice) -> tuple[str, str]:
    pinned = choice.base
    # Debian's own Python: another one is in no image that `base` makes
    local = LOCAL_BASE.format(suite=choice.suite) if pinned.startswith("debian:") else ""
    if asked:
        if not client.has(asked) and client.show("pull", "--quiet", asked, limit_s=600):
            raise ImageError(
                f"BASE_IMAGE={asked} is not on this engine and could not be pulled",
                "name an image you have (docker images), or make base-image",
            )
        return asked, f"base image: {asked}"
    if local and not client.has(pinned) and client.has(local):
        return local, f"base image: {local}, made here (the pinned one is not on this engine)"
    if not client.has(pinned) and client.show("pull", "--quiet", pinned, limit_s=600):
        cure = f"make base-image PYTHON={choice.python} (by debootstrap), or " if local else ""
        raise ImageError(
            f"the base image {pinned} is not here and could not be pulled",
            f"{cure}BASE_IMAGE=an image you have with Python {choice.python}",
        )
    return pinned, ""


def _file(given: Mapping[str, str], name: str) -> Path | None:
    if name not in given:
        return None
    path = Path(given[name]).expanduser()
    if not path.is_file():
        raise ImageError(f"{name}={path}: there is no such file", "name one, or leave it out")
    return path


def pip_settings() -> dict[str, str]:
    """What pip is told on this machine by files and variables, by its option's name."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    found: dict[str, str] = {}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
        raise ImageError(f"pip config list: {last}", "mend pip's configuration on this machine")
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


def _certificate(settings: Mapping[str, str], environ: Mapping[str, str]) -> Path | None:
    for text in (settings.get("cert", ""), *(environ.get(name, "") for name in CERTIFICATES)):
        if text and Path(text).is_file():
            return Path(text)
    return None


def _write_conf(settings: Mapping[str, str], bundle: Path | None) -> Path:
    """pip's configuration inside a build: indexes that a container can reach, the certificate."""
    lines = ["[global]"]
    for name in INDEXES:
        words = [word for word in settings.get(name, "").split() if "file:" not in word]
        if words:
            lines.append(f"{name} = {' '.join(words)}")
    if bundle:
        lines.append(f"cert = {SECRET}")
    # it may hold a password: for its owner only, and gone when this process ends
    descriptor, name = tempfile.mkstemp(prefix="muster-pip-", suffix=".conf")
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join(lines) + "\n")
    atexit.register(Path(name).unlink, missing_ok=True)
    return Path(name)


def _fill_wheelhouse(settings: Mapping[str, str]) -> Iterator[str]:
    """Copies torch's wheel from pip's folders of wheels, where they have it."""
    for folder in _folders(settings.get("find-links", "").split()):
        for wheel in sorted(folder.glob(f"torch-{pins()['TORCH_VERSION']}+cpu-*.whl")):
            target = WHEELHOUSE / wheel.name
            if not target.exists() or target.stat().st_size != wheel.stat().st_size:
                part = target.with_suffix(f".{os.getpid()}.part")  # of two builds at once
                shutil.copyfile(wheel, part)
                os.replace(part, target)
            yield f"docker/wheelhouse has {wheel.name}"


def _folders(words: Sequence[str]) -> Iterator[Path]:
    for word in words:
        path = Path(word.removeprefix("file://"))
        if path.is_dir():
            yield path
