"""Images built from this checkout, for tests that need the real ones. Built once in a test run.

Their tags carry the run and go with it; what was built stays in the engine's build cache.
"""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import subprocess

import pytest

from scripts.images.build import build
from scripts.images.engine import Client, find_client
from scripts.images.errors import ImageError
from scripts.images.inputs import find_inputs

MUST = "TEST_MUST_HAVE_IMAGES"
LABEL = "muster.test-run"
RUN = secrets.token_hex(6)  # the value of LABEL on everything that this test run makes


def image(target: str, *arguments: str) -> str:
    """The reference of the image, which the engine has. Skips the test where this machine has no
    engine or no base; a build that fails fails the test. `arguments`: NAME=value for the build."""
    client()
    return _built(target, arguments)


def client() -> Client:
    """A client that can build here. Skips the test with the reason when there is none."""
    found = _client()
    if isinstance(found, ImageError):
        if os.environ.get(MUST):  # set where the machine was prepared for them
            pytest.fail(f"no images here, although {MUST} is set: {found}")
        pytest.skip(f"no images here: {found.what}")
    return found


def contained(
    engine: Client, *words: str, limit_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """`docker run` with these words; the container is gone afterwards, however it ended."""
    name = f"muster-test-{secrets.token_hex(6)}"
    try:
        return engine.run(
            "run", f"--name={name}", f"--label={LABEL}={RUN}", *words, limit_s=limit_s
        )
    finally:
        engine.run("rm", "--force", "--volumes", name)


@functools.cache
def _built(target: str, arguments: tuple[str, ...]) -> str:
    tag = "-".join([target, *(one.lower().replace("=", ".") for one in arguments)])
    reference = f"muster-test-{RUN}:{tag}"
    build(target, arguments, tag=reference, label=f"{LABEL}={RUN}")
    atexit.register(_remove, reference)
    return reference


def _remove(reference: str) -> None:
    client().run("rmi", "--force", reference)


@functools.cache
def _client() -> Client | ImageError:
    try:
        found = find_client()
        find_inputs(found, os.environ)
    except ImageError as error:
        return error
    return found
