"""A desk to push from: an engine, small images, and `python -m scripts.images push` itself."""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.images.build import command
from scripts.images.inputs import find_inputs
from tests.images.support.registries import Registry, docker_registry
from tests.support.engine import Engine, NoEngineError, mounts, usable_engine
from tests.support.images import LABEL, RUN, client
from tests.support.venvs import CHECKOUT

__all__ = [
    "MOTO_ACCOUNT",
    "Desk",
    "desk",
    "desk_of_test",
    "guarded",
    "registry",
    "with_a_changed_toolkit",
]

LIMIT_S = 600.0
MOTO_ACCOUNT = "123456789012"
MOTO_TOKEN = f"{MOTO_ACCOUNT}-auth-token"  # the password that moto gives for ECR


class Desk:
    """Whoever pushes: with a home of his own, whose docker configuration is to stay as it is."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.mark = f"muster-test-{RUN}/{secrets.token_hex(3)}"  # the repository
        self.manifest = folder / "manifest.json"
        self.home = folder / "home"
        self.settings = self.home / ".docker" / "config.json"
        self.settings.parent.mkdir(parents=True)
        self.settings.write_text('{"auths": {"registry.example": {"auth": "b3RoZXI6cHc="}}}\n')
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "DOCKER_HOST": engine.address,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def image(self, text: str, bulk: bytes = b"") -> str:
        """The reference of a new image: a layer with `bulk`, one on it with `text` as /toolkit."""
        below = self.layer(self.engine.image, "bulk", bulk) if bulk else self.engine.image
        return self.layer(below, "toolkit", text.encode())

    def layer(self, below: str, name: str, data: bytes) -> str:
        """Another image: `below` and a file. Its container never runs."""
        reference = f"{self.mark}:{name}-{secrets.token_hex(3)}"
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        container = self.engine.must("create", f"--label={LABEL}={RUN}", below, "/bin/true")
        try:
            self.engine.must("cp", "-", f"{container}:/", data=archive.getvalue())
            self.engine.must("commit", f"--change=LABEL {LABEL}={RUN}", container, reference)
        finally:
            self.engine("rm", "-f", container)
        return reference

    def argv(self, registry: str, *words: str) -> list[str]:
        where = [f"--registry={registry}", f"--repository={self.mark}"]
        command = [sys.executable, "-m", "scripts.images", "push", "mine", *where]
        return [*command, f"--manifest={self.manifest}", *words]

    def push(self, registry: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """What `python -m scripts.images push` does and says."""
        return subprocess.run(
            self.argv(registry, *words),
            cwd=CHECKOUT,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def pushed(self, registry: str, *words: str, **environ: str) -> dict[str, Any]:
        """The image manifest of a push that went well."""
        done = self.push(registry, *words, **environ)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(self.manifest.read_text())
        assert done.stdout == f"{told['reference']}\n"
        return told

    def refused(self, registry: str, *words: str, **environ: str) -> str:
        """What a push that cannot be done says: one sentence and its cure, and no reference."""
        done = self.push(registry, *words, **environ)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert not self.manifest.exists()
        what, cure = done.stderr.splitlines()[-2:]
        assert what.startswith("images: "), done.stderr
        assert cure.startswith("  cure: "), done.stderr
        return f"{what}\n{cure}"

    def run(self, reference: str, *words: str) -> str:
        """What a program of the image says, which sees this machine's /usr."""
        mark = f"--label={LABEL}={RUN}"
        return self.engine.must("run", "--rm", mark, "--network=none", *mounts(), reference, *words)

    def forget(self) -> None:
        """Removes every name of the engine that was made here."""
        listing = self.engine.must("images", "--digests", "--format", "{{json .}}")
        for line in listing.splitlines():
            one = json.loads(line)
            if self.mark in one["Repository"]:
                for sign, name in ((":", one["Tag"]), ("@", one["Digest"])):
                    if name != "<none>":
                        self.engine("rmi", "-f", f"{one['Repository']}{sign}{name}")
        left = self.engine.must("images", "--digests", "--format", "{{.Repository}}")
        assert self.mark not in left


@contextmanager
def desk_of_test(folder: Path) -> Iterator[Desk]:
    """Skips the test where no engine answers."""
    try:
        desk = Desk(usable_engine(), folder)
    except NoEngineError as error:
        pytest.skip(str(error))
    if shutil.which("skopeo") is None:
        pytest.skip("no skopeo here, with which a push is verified: apt-get install skopeo")
    try:
        yield desk
    finally:
        desk.forget()


def with_a_changed_toolkit(target: str, folder: Path, reference: str) -> str:
    """The image built once more from a copy of the checkout with one more line in muster's cli."""
    for name in ("docker", "toolkit", "tests/images/inside"):
        junk = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / name, folder / name, symlinks=True, ignore=junk)
    module = folder / "toolkit" / "launcher" / "src" / "muster" / "cli.py"
    module.write_text(module.read_text() + "# changed\n")
    builder = client()
    inputs = find_inputs(builder, os.environ)
    words = command(target, reference, "changed", inputs, builder, label=f"{LABEL}={RUN}")
    there = (*words[:-1], f"--file={folder}/docker/Dockerfile", str(folder))
    builder.must(*there, limit_s=LIMIT_S)
    return reference


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_of_test(tmp_path / "desk") as made:
        yield made


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One that asks for no password."""
    with docker_registry(tmp_path_factory.mktemp("registry")) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One that knows ECR's user, with moto's token, and a user of its own."""
    users = {"AWS": MOTO_TOKEN, "somebody": "correct-horse"}
    with docker_registry(tmp_path_factory.mktemp("guarded"), users) as made:
        yield made
