"""What `muster sbom` finds: the packages of this Python and of dpkg, and what they bring along."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackagePath, distributions
from pathlib import Path

from muster.types.values import NamedTuple

_FORMAT = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\n"
_LONGEST = 80  # characters of a licence's name; some packages put the whole text there
_LIMIT_S = 60.0
# loaded by the name of the file, as modules of Python are not. A version in it is that of the
# interface, not of the library
_SHARED = re.compile(r"lib.+\.so(\.\d+)*")


class Library(NamedTuple):
    """A shared library that a wheel has in itself, or a part that the wheel's own list names."""

    path: str
    name: str
    version: str = ""
    sha256: str = ""
    purl: str = ""


class Package(NamedTuple):
    """One installed package.

    `kind`: pypi or deb. `license`: a name, "" when the package does not say; `where`: the file that
    has its text. `source`: the source package of Debian's.
    """

    kind: str
    name: str
    version: str
    license: str
    where: str
    arch: str = ""
    source: str = ""
    bundled: tuple[Library, ...] = ()


def os_release() -> dict[str, str]:
    path = Path("/etc/os-release")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name: value.strip().strip("\"'") for name, _, value in pairs}


def debian_packages() -> list[Package]:
    """Those that are installed; none where there is no dpkg."""
    argv = ["dpkg-query", "--show", f"--showformat={_FORMAT}"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
    except FileNotFoundError:
        return []
    found = []
    for line in done.stdout.splitlines():
        status, name, version, arch, source = line.split("\t")
        where = Path("/usr/share/doc") / name / "copyright"
        if status.startswith("ii"):
            text = str(where) if where.exists() else ""
            found.append(Package("deb", name, version, "", text, arch, source))
    return found


def python_packages() -> list[Package]:
    """Those that this Python imports, each once."""
    found: dict[str, Package] = {}
    for one in distributions():
        name = one.metadata["Name"]
        if name and name not in found:
            where = next(_texts(one), "")
            bundled = tuple(sorted({*_libraries(one), *_listed(one)}))
            found[name] = Package("pypi", name, one.version, _license(one), where, bundled=bundled)
    return list(found.values())


def _texts(one: Distribution) -> Iterator[str]:
    for path in one.files or ():
        if "licen" in str(path).lower():
            yield str(path.locate())


def _license(one: Distribution) -> str:
    fields = one.metadata
    for field in ("License-Expression", "License"):
        stated = fields.get_all(field) or [""]
        if stated[0] and len(stated[0]) <= _LONGEST and "\n" not in stated[0]:
            return str(stated[0])
    named = [text for text in fields.get_all("Classifier") or () if text.startswith("License ::")]
    return ", ".join(text.rpartition(" :: ")[2] for text in named)


def _libraries(one: Distribution) -> Iterator[Library]:
    """The shared libraries of the wheel, with what its own list of files says of them."""
    for path in one.files or ():
        if _SHARED.fullmatch(path.name) and Path(str(path.locate())).is_file():
            yield Library(_path(path), path.name, "", _digest(path))


def _path(path: PackagePath) -> str:
    return str(Path(str(path.locate())).resolve())


def _digest(path: PackagePath) -> str:
    """As the wheel's own list of files has it; nothing is read."""
    if path.hash is None or path.hash.mode != "sha256":
        return ""
    return base64.urlsafe_b64decode(path.hash.value + "=" * (-len(path.hash.value) % 4)).hex()


def _listed(one: Distribution) -> Iterator[Library]:
    """What the wheel's own bills of materials name (PEP 770)."""
    for path in one.files or ():
        if re.search(r"\.dist-info/sboms/[^/]+\.json$", str(path)):
            yield from _parts(Path(str(path.locate())))


def _parts(path: Path) -> Iterator[Library]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    listed = document.get("components") if isinstance(document, Mapping) else None
    for part in listed if isinstance(listed, list) else ():
        if isinstance(part, Mapping) and part.get("name"):
            name, version = str(part["name"]), str(part.get("version", ""))
            yield Library(f"{path}#{name}@{version}", name, version, "", str(part.get("purl", "")))
