"""`python -m scripts.images COMMAND`: what the Makefile's image targets call."""

from __future__ import annotations

import argparse
import subprocess
import sys

from scripts.images import base_image, build, check, push
from scripts.images.buildx import have_buildx
from scripts.images.engine import find_client
from scripts.images.errors import ImageError
from scripts.images.scan import scan, summary
from scripts.images.targets import TARGETS, last_built
from scripts.images.traces import traces


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="images", description=__doc__, allow_abbrev=False)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, what in (
        ("build", "build one target and tag it"),
        ("name", "print the reference that was built last"),
        ("base", "make the base image with debootstrap"),
        ("test", "run the tests that run inside the image"),
        ("push", "push what was built to a registry"),
        ("scan", "look through every layer for keys, credentials, traces"),
        ("buildx", "fetch docker buildx for `bake`, checked by hash"),
    ):
        one = commands.add_parser(name, help=what, description=what, allow_abbrev=False)
        if name not in ("base", "buildx"):
            one.add_argument("target", help=f"one of {', '.join(TARGETS)}")
        if name == "build":
            one.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
        if name == "base":
            one.add_argument("--python", default="", help="for images of another Python")
        if name == "push":
            push.add_arguments(one)
    return made


def main() -> int:
    args = parser().parse_args()
    try:
        if args.command == "build":
            print(build.build(args.target, tuple(args.build_arg)).reference)
        elif args.command == "name":
            print(last_built(args.target).reference)
        elif args.command == "base":
            print(base_image.make_base(args.python))
        elif args.command == "test":
            return check.test_inside(args.target)
        elif args.command == "scan":
            reference = last_built(args.target).reference
            found = scan(find_client(building=False), reference, traces())
            print(summary(reference, found))
            return 1 if found else 0
        elif args.command == "buildx":
            print(have_buildx())
        else:
            return push.run(args)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        what = f"{error.cmd[0]} {error.cmd[1]}" if isinstance(error.cmd, list) else error.cmd
        print(f"images: {what} did not end in {error.timeout:g} s; try again, or see what holds "
              "it", file=sys.stderr)  # fmt: skip
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"images: {where}{error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
