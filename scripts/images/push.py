"""Pushes an image under a tag that never moves, and reads it back to see that it is the same.

Standard output has one line: the reference by digest. What happens is told on standard error.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from scripts.images import ecr
from scripts.images.engine import Client, find_client
from scripts.images.errors import ImageError
from scripts.images.login import from_environment, logged_in, stored
from scripts.images.pins import CHECKOUT
from scripts.images.push_problem import explained
from scripts.images.pushed import (
    Image,
    Pushed,
    contents_of,
    image_of,
    is_insecure,
    verified,
    write,
)
from scripts.images.registry import Login, Manifest, Registry, manifest_of, reached
from scripts.images.targets import TARGETS, last_built

ADDRESS = "MUSTER_PUSH_REGISTRY"
LIMIT_S = 3600.0
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?|\[[0-9a-f:]+\](:\d{1,5})?", re.I)
_REPOSITORY = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Order(NamedTuple):
    """What is to be pushed, and where. `address`: where `host` is reached, mostly the same."""

    target: str
    image: str
    host: str
    address: str
    repository: str
    tag: str
    create: bool
    manifest: Path
    limit_s: float

    @property
    def place(self) -> str:
        """The repository as the engine has to name it."""
        return f"{self.address}/{self.repository}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--registry",
        required=True,
        metavar="HOST",
        help="host name, with :port; `ecr` is the ECR of the credentials' account and region",
    )
    parser.add_argument("--repository", required=True, metavar="NAME", help="such as team/muster")
    parser.add_argument(
        "--create", action="store_true", help="make the repository when ECR has none of that name"
    )
    parser.add_argument(
        "--tag", default="", help="in place of the one of the build; one that exists never moves"
    )
    parser.add_argument(
        "--build",
        type=int,
        default=0,
        metavar="N",
        help="ends the tag with -bN: for a rebuild of a commit, such as one for security updates",
    )
    parser.add_argument(
        "--manifest", default="", metavar="FILE", help="default: dist/images/TARGET.json"
    )
    parser.add_argument(
        "--image",
        default="",
        metavar="REFERENCE",
        help="push this image of yours, with --tag; TARGET is then only what it is called",
    )
    parser.add_argument(
        "--address",
        default=os.environ.get(ADDRESS, ""),
        metavar="HOST",
        help=f"where the registry is reached, when not by its name (default: {ADDRESS})",
    )
    parser.add_argument(
        "--timeout", type=float, default=LIMIT_S, metavar="SECONDS", help="default: %(default)g"
    )


def run(args: argparse.Namespace) -> int:
    """Does what `add_arguments` describes. Raises ImageError."""
    with _ended_by_signals():
        order = _order(args)
        client = find_client(building=False)
        image = image_of(client, order.target, order.image)
        pushed = _push(order, client, image)
        write(pushed, order.manifest)
    _say(f"wrote {order.manifest}")
    print(pushed.reference, flush=True)
    return 0


def _order(args: argparse.Namespace) -> Order:
    """The arguments, checked before anything is asked of anybody."""
    if not args.registry:
        raise ImageError("no registry is given", "REGISTRY=host, or REGISTRY=ecr for your own ECR")
    if not args.repository:
        raise ImageError("no repository is given", "REPOSITORY=name, such as team/muster")
    for name, value in (("--registry", args.registry), ("--address", args.address)):
        if value and not _HOST.fullmatch(value):
            cure = "give only the host, with :port; its path belongs to --repository"
            raise ImageError(f"{name} {value!r} is not the name of a host", cure)
    if not _REPOSITORY.fullmatch(args.repository) or not 2 <= len(args.repository) <= 256:
        cure = "small letters and digits, with . _ - / between them, 2 to 256 of them"
        raise ImageError(f"--repository {args.repository!r} is not a name of one", cure)
    image, tag = _what(args)
    if args.build < 0:
        raise ImageError(f"--build {args.build} is no number of a build", "1 or more")
    tag += f"-b{args.build}" if args.build else ""
    if not _TAG.fullmatch(tag):
        cure = "up to 128 letters, digits, . _ -, not beginning with . or -"
        raise ImageError(f"{tag!r} is not a tag", cure)
    host = ecr.own_host() if args.registry == ecr.OWN else args.registry
    return Order(
        args.target,
        image,
        host,
        args.address or host,
        args.repository,
        tag,
        args.create,
        Path(args.manifest or CHECKOUT / "dist" / "images" / f"{args.target}.json"),
        args.timeout,
    )


def _what(args: argparse.Namespace) -> tuple[str, str]:
    """The image and its tag. The tag of a build names its version and its commit."""
    if args.image:
        if not args.tag:
            cure = "give --tag, best with the commit in it: a tag never moves"
            raise ImageError(f"nothing says what {args.image} is to be called there", cure)
        if args.target in TARGETS:
            cure = "call yours something else: it is what its image manifest says"
            raise ImageError(f"{args.target} is an image of muster's own", cure)
        return args.image, args.tag
    if args.target.endswith("-test"):
        raise ImageError(f"{args.target} only carries tests", "push the image that they are of")
    built = last_built(args.target)
    if not args.tag and (not built.revision or built.revision.endswith("-dirty")):
        why = "differs from the last commit" if built.revision else "is not known to git"
        cure = f"commit and `make image TARGET={args.target}`, or choose a tag yourself with --tag"
        raise ImageError(f"{built.reference} was built from code that {why}", cure)
    return built.image_id, args.tag or built.reference.partition(":")[2]


def _push(order: Order, client: Client, image: Image) -> Pushed:
    """The whole way: repository, login, tag, layers, and the check of what arrived."""
    known = ecr.recognised(order.host)
    login: Login | None
    if known:
        ecr.have_repository(known, order.repository, order.create, _say)
        login = ecr.credentials(known)
    else:
        login = from_environment(os.environ)
        if order.create:
            _say("note: --create is for ECR; other registries make repositories their own way")
    with ExitStack() as stack:
        if login:
            client = stack.enter_context(logged_in(client, order.address, login))
            _say(f"logged in to {order.address} as {login.user}")
        reader = login or stored(order.address, os.environ)
        insecure = is_insecure(client, order.address)
        registry = stack.enter_context(reached(order.address, reader, insecure))
        there = manifest_of(registry, order.repository, order.tag)
        if there is None:
            there = _upload(order, client, image, registry)
        else:
            same = _same(order, registry, image, there)
            _say(f"{order.place}:{order.tag} is already there, and {same}")
        return verified(
            registry, image, there, host=order.host, repository=order.repository, tag=order.tag
        )


def _same(order: Order, registry: Registry, image: Image, there: Manifest) -> str:
    """Why what has the tag there stands for this image. Raises ImageError when it does not."""
    known = {image.image_id, *image.digests(order.place)}
    if not known.isdisjoint({there.config, there.digest, *there.parts}):
        return "is this image"
    if there.config and contents_of(registry, order.repository, there) == image.contents:
        return f"is another build of the same contents ({there.config})"
    raise ImageError(
        f"{order.host}/{order.repository}:{order.tag} exists and is another image "
        f"({there.digest}); this one is {image.image_id}",
        "tags never move: commit the change and build again; number a rebuild of the same commit "
        "with --build 2 (make push BUILD=2); or choose another tag with --tag",
    )


def _upload(order: Order, client: Client, image: Image, registry: Registry) -> Manifest:
    """What the registry has afterwards, which is what the engine says that it sent."""
    name = f"{order.place}:{order.tag}"
    tagged = client.run("tag", image.image_id, name)
    if tagged.returncode:
        raise explained(f"naming {image.image_id} {name}", tagged.stderr)
    _say(f"pushing {name}")
    try:
        _show_push(client, name, order.limit_s)
        there = manifest_of(registry, order.repository, order.tag)
        sent = image_of(client, order.target, name).digests(order.place)
    except BaseException:
        if image.tags:  # another name keeps the image
            client.run("rmi", name)
        raise
    if there is None or there.digest not in sent:
        found = there.digest if there else "nothing"
        raise ImageError(
            f"{name} is not what was pushed: the engine sent {', '.join(sent) or 'nothing'} and "
            f"the registry has {found}",
            "do not use it; see who else pushes there, and push again under another tag",
        )
    return there


def _show_push(client: Client, name: str, limit_s: float) -> None:
    """Pushes with the progress on standard error. Raises ImageError."""
    argv = client.argv("push", name)
    with tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run(
                argv, env=client.environ(), stdout=2, stderr=errors, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            cure = "push again, what arrived stays there; or give more time with --timeout"
            raise ImageError(f"pushing {name}: not done in {limit_s:g} s", cure) from None
        errors.seek(0)
        said = errors.read()
    if done.returncode:
        raise explained(f"pushing {name}", said)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an error does, so that no credential stays behind."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(f"push: {text}", file=sys.stderr, flush=True)
