"""A stub of Neuron's apt repository, signed by a key made for the test, and of its wheels."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.images.stub.libraries import library, linked

KEY_FILE = "GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB"
TOOL_S = 60.0


class Key(NamedTuple):
    home: Path
    fingerprint: str


@contextmanager
def made_key(home: Path) -> Iterator[Key]:
    """A signing key in a GNUPGHOME of its own. Skips the test where there is no gpg."""
    if shutil.which("gpg") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("gpg and dpkg-deb are needed to make the stub repository")
    home.mkdir(mode=0o700, parents=True)
    name = "Stub of a test <stub@localhost>"
    try:
        _gpg(home, "--passphrase", "", "--quick-generate-key", name, "rsa2048", "sign", "1d")
        listed = _gpg(home, "--with-colons", "--list-keys").decode()
        lines = [line.split(":") for line in listed.splitlines()]
        yield Key(home, next(line[9] for line in lines if line[0] == "fpr"))
    finally:  # gpg has started an agent, which would stay
        argv = ["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"]
        subprocess.run(argv, check=True, capture_output=True, timeout=TOOL_S)


def make_repository(
    folder: Path,
    key: Key,
    versions: Mapping[str, str],
    shown: Key,
    newer: Mapping[str, str] | None = None,
) -> None:
    """Packages of those versions below `folder`, signed by `key`; `shown` is the key that the
    repository offers for download. `newer`: further versions of the same packages."""
    listed = []
    for name, version in [*versions.items(), *(newer or {}).items()]:
        deb = _make_deb(folder / "pool", name, version)
        data = deb.read_bytes()
        listed.append(
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: stub\n"
            f"Filename: pool/{deb.name}\nSize: {len(data)}\n"
            f"SHA256: {hashlib.sha256(data).hexdigest()}\nDescription: stub\n"
        )
    packages = "\n".join(listed).encode()
    suite = folder / "dists" / "jammy"
    (suite / "main/binary-amd64").mkdir(parents=True)
    (suite / "main/binary-amd64/Packages").write_bytes(packages)
    release = (
        f"Origin: stub\nSuite: jammy\nCodename: jammy\nArchitectures: amd64\nComponents: main\n"
        f"Date: {formatdate(usegmt=True)}\nSHA256:\n"
        f" {hashlib.sha256(packages).hexdigest()} {len(packages)} main/binary-amd64/Packages\n"
    )
    (suite / "Release").write_text(release)
    _gpg(key.home, "--clearsign", "--output", str(suite / "InRelease"), str(suite / "Release"))
    (folder / KEY_FILE).write_bytes(_gpg(shown.home, "--armor", "--export", shown.fingerprint))


def _make_deb(pool: Path, name: str, version: str) -> Path:
    """The package, with the library or the program that the real one is known for."""
    root = pool / f"root-{name}-{version}"
    neuron = root / "opt" / "aws" / "neuron"
    if name.endswith("-runtime-lib"):
        linked(neuron / "lib/libnrt.so.1.0", "libnrt.so.1")
    elif name.endswith("-collectives"):
        library(neuron / "lib/libnccom.so.2")
    else:
        (neuron / "bin").mkdir(parents=True)
        (neuron / "bin/neuron-ls").write_text("#!/bin/sh\necho stub\n")
        (neuron / "bin/neuron-ls").chmod(0o755)
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: stub\n"
        "Description: stub\n"
    )
    deb = pool / f"{name}_{version}_amd64.deb"
    argv = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(deb)]
    subprocess.run(argv, check=True, capture_output=True, timeout=TOOL_S)
    return deb


def _gpg(home: Path, *words: str) -> bytes:
    argv = ["gpg", "--homedir", str(home), "--batch", "--yes", "--pinentry-mode", "loopback"]
    return subprocess.run([*argv, *words], check=True, capture_output=True, timeout=TOOL_S).stdout
