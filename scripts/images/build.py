"""Builds one target with plain `docker build` and BuildKit."""

from __future__ import annotations

import difflib
import os
import re
import sys
import time
from collections.abc import Sequence

from scripts.images.choice import choose
from scripts.images.engine import Client, find_client, outward
from scripts.images.errors import ImageError
from scripts.images.inputs import Inputs, find_inputs
from scripts.images.pins import CHECKOUT, version
from scripts.images.sizes import layers, size_of, table
from scripts.images.targets import (
    Built,
    forget,
    reference,
    remember,
    revision,
    target_of,
)

DOCKERFILE = CHECKOUT / "docker" / "Dockerfile"
LIMIT_S = 5400.0  # the CUDA wheels are gigabytes


def build(
    name: str,
    arguments: tuple[str, ...] = (),
    tag: str = "",
    label: str = "",
    fresh: bool = False,
) -> Built:
    """Builds the target, tags it, and remembers it. Raises ImageError.

    `arguments`: further NAME=value of the Dockerfile. `tag`: in place of the usual one.
    `label`: one more, such as a test run's. `fresh`: nothing is taken from the cache.
    """
    target_of(name)
    _check(arguments)
    client = find_client()
    asked = choose(name, arguments)
    inputs = find_inputs(client, os.environ, asked)
    if not tag:
        forget(name)
    commit = revision()
    say(f"{name}: {client.program} {client.version}, BuildKit" + " by buildx" * client.buildx)
    for note in inputs.notes:
        say(note)
    if asked.refresh:
        say(
            f"Debian's packages of {asked.refresh} (REFRESH=0 takes those of the first build again)"
        )
    wanted = tag or reference(name, commit, asked, inputs.base)
    began_s = time.monotonic()
    code = client.show(
        *command(name, wanted, commit, inputs, client, asked.arguments(), label, fresh),
        limit_s=LIMIT_S,
    )
    if code:
        what = f"{name} was not built: docker build ended with {code}"
        raise ImageError(what, "the last lines above say which step failed, and why")
    image_id = client.must("image", "inspect", "--format={{.Id}}", wanted).strip()
    say(table(layers(client, wanted), size_of(client, inputs.base)))
    say(f"{wanted} in {time.monotonic() - began_s:.1f} s")
    built = Built(name, wanted, image_id, commit, asked.arguments())
    if not tag:
        remember(built)
    return built


def command(
    name: str,
    tag: str,
    commit: str,
    inputs: Inputs,
    client: Client,
    arguments: tuple[str, ...] = (),
    label: str = "",
    fresh: bool = False,
) -> list[str]:
    """The words behind `docker`."""
    words = ["buildx", "build", "--load"] if client.buildx else ["build"]
    if name.endswith("-test"):
        stage = ["--target=test", f"--build-arg=TESTED={name.removesuffix('-test')}"]
    else:
        stage = [f"--target={name}"]
    return [
        *words,
        f"--file={DOCKERFILE}",
        *stage,
        f"--tag={tag}",
        *inputs.arguments(),
        *outward(client),
        f"--build-arg=VERSION={version()}",
        f"--build-arg=REVISION={commit}",
        *(f"--build-arg={one}" for one in arguments),
        *([f"--label={label}"] if label else []),
        *(["--no-cache"] if fresh else []),
        str(CHECKOUT),
    ]


def _check(arguments: Sequence[str]) -> None:
    """Raises ImageError for an argument that the Dockerfile does not have."""
    known = set(re.findall(r"^ARG (\w+)", DOCKERFILE.read_text(), re.MULTILINE))
    for one in arguments:
        name, equals, _ = one.partition("=")
        if not equals or name not in known:
            near = difflib.get_close_matches(name, known, 1)
            cure = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise ImageError(f"build argument {one!r}: the Dockerfile has no such NAME=value", cure)


def say(text: str) -> None:
    """To the person, not into what a script reads."""
    print(f"images: {text}" if "\n" not in text else text, file=sys.stderr, flush=True)
