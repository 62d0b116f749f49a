"""Makes the base image with debootstrap, where no registry can be reached to pull it from.

The mirrors are those of this machine's apt, and apt in the image goes on using them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.images.build import say
from scripts.images.choice import choose, pythons
from scripts.images.engine import Client, find_client
from scripts.images.errors import ImageError
from scripts.images.inputs import LOCAL_BASE
from scripts.images.targets import BUILT

LIMIT_S = 900.0
EPOCH_S = 1767225600  # as in docker/install/step.sh
APT = Path("/etc/apt")
# as Debian's own slim images are: no manuals, no translations; licences stay
SLIM = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
"""
EMPTIED = ("var/lib/apt/lists", "var/cache/apt", "var/log", "tmp", "run", "usr/share/doc")


def make_base(python: str = "") -> str:
    """The reference of the image, which is made unless the engine has it; for the usual Python or
    another one. Raises ImageError."""
    choice = choose("base", [f"PYTHON={python}"] if python else [])
    if not choice.base.startswith("debian:"):
        raise ImageError(
            f"Python {choice.python} is in no release of Debian that is made here",
            f"pull {choice.base}, or BASE_IMAGE=an image you have with it",
        )
    suite = choice.suite
    reference = LOCAL_BASE.format(suite=suite)
    client = find_client(building=False)
    if client.has(reference):
        say(f"{reference} is there already (docker rmi {reference} to have it made anew)")
        return reference
    archive = BUILT / f"base-{suite}.tar"
    if not archive.is_file():
        _debootstrap(suite, archive)
    return _import(client, archive, reference)


def _debootstrap(suite: str, archive: Path) -> None:
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise ImageError("debootstrap is not installed", "apt-get install debootstrap")
    if os.getuid() != 0:
        raise ImageError("only root can run debootstrap", "sudo make base-image")
    mirror = find_mirror(suite)
    say(f"debootstrap {suite} from this machine's mirror")
    BUILT.mkdir(parents=True, exist_ok=True)
    began_s = time.time()
    with tempfile.TemporaryDirectory(prefix="muster-base-") as folder:
        root = Path(folder) / "root"
        done = subprocess.run(
            [
                program, "--variant=minbase", "--include=ca-certificates", "--force-check-gpg",
                suite, str(root), mirror,
            ],
            stdout=2, check=False, timeout=LIMIT_S,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S)},  # the day in /etc/shadow
        )  # fmt: skip
        if done.returncode:
            raise ImageError(
                f"debootstrap ended with {done.returncode}", "see its lines above; try it again"
            )
        _slim(root)
        (root / "etc/apt/sources.list").write_text(apt_lines(suite))
        _pack(root, archive, began_s)


def find_mirror(suite: str) -> str:
    """The address that this machine's apt has for the suite, or for another one that images are
    made of: a mirror has them all. Raises ImageError."""
    known = list(sources())
    for wanted in (suite, *sorted({name for name, _ in pythons().values()})):
        for address in (address for address, suites in known if wanted in suites):
            if "@" in address.partition("://")[2].partition("/")[0]:
                raise ImageError(
                    "apt's mirror on this machine is named with a password, which an image would "
                    "keep", "put it into /etc/apt/auth.conf.d, or BASE_IMAGE=an image you have",
                )  # fmt: skip
            return address
    raise ImageError(
        f"apt on this machine has no source for {suite}",
        "make base-image on a Debian machine, or BASE_IMAGE=an image you have",
    )


def apt_lines(suite: str) -> str:
    """What apt in the image reads: the suite, and its updates where this machine has them."""
    found = {name: address for address, suites in sources() for name in suites}
    here = next(
        name for name in (suite, *(name for name, _ in pythons().values())) if name in found
    )
    rows = (
        (found.get(f"{here}{part}"), f"{suite}{part}") for part in ("", "-updates", "-security")
    )
    return "".join(f"deb {address} {name} main\n" for address, name in rows if address)


def sources() -> Iterator[tuple[str, list[str]]]:
    """Addresses and their suites, of both forms of apt's lists."""
    for path in [APT / "sources.list", *sorted((APT / "sources.list.d").glob("*"))]:
        text = path.read_text() if path.is_file() else ""
        for line in text.splitlines():
            words = re.sub(r"\[[^]]*\]", "", line).split()
            if len(words) > 3 and words[0] == "deb":
                yield words[1], [words[2]]
        for block in re.split(r"\n\s*\n", text):
            fields = dict(re.findall(r"^(URIs|Suites):\s*(.+)$", block, re.MULTILINE))
            off = re.search(r"^(Enabled:\s*no|Types:\s*deb-src\s*$)", block, re.M | re.I)
            if len(fields) == 2 and not off:
                yield fields["URIs"].split()[0], fields["Suites"].split()


def _slim(root: Path) -> None:
    """Leaves what Debian's own slim images have."""
    (root / "etc/dpkg/dpkg.cfg.d/docker-slim").write_text(SLIM)
    for name in ("usr/share/man", "usr/share/locale", "usr/share/info"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir()
    for path in (root / "usr/share/doc").rglob("*"):
        if path.is_file() and path.name != "copyright":
            path.unlink()
    for name in EMPTIED[:-1]:
        for path in (root / name).iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)
    (root / "var/log/apt").mkdir(parents=True)


def _pack(root: Path, archive: Path, began_s: float) -> None:
    """What was made since then gets one time, so that the same packages are the same archive."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.mtime >= began_s:
            member.mtime = EPOCH_S
        return None if member.name.startswith("dev/") else member  # the engine makes its own

    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as packed:
        for path in sorted(root.iterdir()):
            packed.add(path, path.name, filter=kept)
    os.replace(part, archive)


def _import(client: Client, archive: Path, reference: str) -> str:
    code = client.show("import", '--change=CMD ["bash"]', str(archive), reference, limit_s=LIMIT_S)
    if code:
        raise ImageError(f"docker import ended with {code}", "see its lines above")
    say(f"{reference} made; builds take it where the pinned base is not there")
    return reference
