"""The images that there are, their tags, and what is known of the last build of each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from scripts.images.choice import Choice, choose
from scripts.images.errors import ImageError
from scripts.images.pins import CHECKOUT, pins, version

REPOSITORY = "muster"
BUILT = CHECKOUT / ".cache" / "images"
CONTEXT = ("docker", "toolkit")  # what an image is made of


class Target(NamedTuple):
    """`framework`: what the tag says of it, with its pin in docker/versions.env. `published`: it is
    built and pushed where nothing else is said."""

    name: str
    framework: str = ""
    pin: str = ""
    published: bool = True


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("base"),
        Target("cpu", "torch", "TORCH_VERSION"),
        Target("cpu-devel", "torch", "TORCH_VERSION"),
        Target("cuda-efa", "torch", "TORCH_VERSION"),
        # it has no lock yet: making one needs AWS's index (docs/how-to/images/accelerators.md)
        Target("neuron", "torch", "NEURON_TORCH_VERSION", published=False),
    )
}


class Built(NamedTuple):
    """The last build of a target: the reference it was given, the image's id, and the arguments."""

    target: str
    reference: str
    image_id: str
    revision: str
    arguments: tuple[str, ...] = ()


def target_of(name: str) -> Target:
    """The target of that name, with or without `-test`. Raises ImageError."""
    plain = name.removesuffix("-test")
    if plain in TARGETS:
        return TARGETS[plain]
    raise ImageError(f"no target {plain!r}", f"TARGET is one of {', '.join(TARGETS)}")


def revision() -> str:
    """The commit, with `-dirty` when what images are made of differs from it; "" outside git,
    unless CodeBuild says from which commit it took a source without git."""
    head = _git("rev-parse", "--short=12", "HEAD") or _codebuild()
    changed = head and _git("status", "--porcelain", "--", *CONTEXT)
    return f"{head}-dirty" if changed else head


def _codebuild() -> str:
    named = os.environ.get("CODEBUILD_RESOLVED_SOURCE_VERSION", "")
    return named[:12] if re.fullmatch("[0-9a-f]{40}", named) else ""


def reference(name: str, commit: str, choice: Choice | None = None, base: str = "") -> str:
    """The immutable tag: version, framework, device, Python, system, commit, the day of REFRESH,
    and what else makes it another image. `base`: "" for the pinned one."""
    target, choice = target_of(name), choice or choose(name)
    torch = (target.pin == "TORCH_VERSION" and choice.torch) or pins().get(target.pin, "")
    words = [
        version(),
        f"{target.framework}{torch}" if target.framework else "",
        name,
        f"py{choice.python.replace('.', '')}",
        choice.suite,
        commit,
        f"r{choice.refresh}" if choice.refresh else "",
        _variant(choice, base),
    ]
    return f"{REPOSITORY}:{'-'.join(word for word in words if word)}"


def _variant(choice: Choice, base: str) -> str:
    """A few characters for a base that is not the pinned one, and for further arguments, or ""."""
    given = sorted([*choice.further, *([base] if base not in ("", choice.base) else [])])
    return f"v{hashlib.sha256(repr(given).encode()).hexdigest()[:6]}" if given else ""


def forget(name: str) -> None:
    """A build that fails leaves no name of an older image behind."""
    (BUILT / f"{name}.json").unlink(missing_ok=True)


def remember(built: Built) -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    path = BUILT / f"{built.target}.json"
    path.with_suffix(".part").write_text(json.dumps(built._asdict(), indent=1) + "\n")
    path.with_suffix(".part").replace(path)


def last_built(name: str) -> Built:
    """What the last build of the target gave. Raises ImageError when there was none."""
    target_of(name)
    try:
        found = Built(**json.loads((BUILT / f"{name}.json").read_text()))
        return found._replace(arguments=tuple(found.arguments))
    except (OSError, ValueError, TypeError) as error:
        raise ImageError(f"no image {name} was built here", f"make image TARGET={name}") from error


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=30
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
