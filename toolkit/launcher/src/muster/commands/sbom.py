"""`muster sbom`: the bill of materials of the image that it runs in, as CycloneDX 1.5.

The last step of muster's images calls it; an image built on them calls it after its own installs.
The same packages give the same text. Looking is in sbom_packages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from muster.commands.sbom_packages import Package, debian_packages, os_release, python_packages
from muster.version import __version__

PLACE = "/usr/share/muster"
_Component = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the bill of materials of this image, as CycloneDX 1.5."
    parser.add_argument(
        "--output", metavar="DIR",
        help=f"write sbom.cdx.json and licenses.txt there ({PLACE} is where images have them) "
        "in place of printing the first",
    )  # fmt: skip
    parser.add_argument("--name", default="", help="what the image is called")
    parser.add_argument("--version", default="", help="the image's version")


def run(args: argparse.Namespace) -> int:
    """Prints it, or writes the files; 1 where they cannot be written."""
    release = os_release()
    system = debian_packages()
    if not system:
        sys.stderr.write("muster sbom: no dpkg here: packages of the system are not listed\n")
    packages = sorted([*python_packages(), *system])
    text = bill(packages, release, args.name, args.version, _timestamp(os.environ))
    if not args.output:
        sys.stdout.write(text)
        return 0
    folder = Path(args.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sbom.cdx.json").write_text(text, encoding="utf-8")
        (folder / "licenses.txt").write_text(licenses(packages), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"muster sbom: {error.filename or folder}: {error.strerror}\n")
        return 1
    return 0


def bill(
    packages: Sequence[Package], release: Mapping[str, str], name: str, version: str, when: str
) -> str:
    """The document. `release`: of /etc/os-release."""
    names = "\n".join(f"{one.kind} {one.name} {one.version}" for one in packages)
    subject = {"type": "container", "bom-ref": "image", "name": name or "unnamed image"}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, names)}",
        "version": 1,
        "metadata": {
            "timestamp": when,
            "tools": {
                "components": [{"type": "application", "name": "muster", "version": __version__}]
            },
            "component": {**subject, **({"version": version} if version else {})},
        },
        "components": [
            *_operating_system(release),
            *(_component(one, release) for one in packages),
        ],
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def licenses(packages: Sequence[Package]) -> str:
    """A line for each: the licence that it states, and the file that holds the text."""
    lines = (
        f"{one.kind}\t{one.name} {one.version}\t{one.license or '-'}\t{one.where or '-'}\n"
        for one in packages
    )
    return "kind\tpackage\tlicence\ttext\n" + "".join(lines)


def _operating_system(release: Mapping[str, str]) -> Iterator[_Component]:
    """Scanners choose by it which advisories count."""
    if release.get("ID"):
        yield {
            "type": "operating-system",
            "bom-ref": "os",
            "name": release["ID"],
            "version": release.get("VERSION_ID", ""),
            "description": release.get("PRETTY_NAME", ""),
        }


def _component(one: Package, release: Mapping[str, str]) -> _Component:
    reference = f"{one.kind}:{one.name}@{one.version}"
    made: _Component = {
        "type": "library",
        "bom-ref": reference,
        "name": one.name,
        "version": one.version,
        "purl": _purl(one, release),
    }
    if one.license:
        made["licenses"] = [{"license": {"name": one.license}}]
    if one.bundled:
        made["components"] = [
            {
                "type": "library",
                "bom-ref": f"{reference}/{library.path}",
                "name": library.name,
                **({"version": library.version} if library.version else {}),
                **({"purl": library.purl} if library.purl else {}),
                **({"hashes": [{"alg": "SHA-256", "content": library.sha256}]}
                   if library.sha256 else {}),
                "properties": [{"name": "muster:file", "value": library.path}],
            }
            for library in one.bundled
        ]  # fmt: skip
    return made


def _purl(one: Package, release: Mapping[str, str]) -> str:
    version = quote(one.version, safe=":~")
    if one.kind == "pypi":
        return f"pkg:pypi/{one.name.lower().replace('_', '-')}@{version}"
    known = {
        "arch": one.arch,
        "distro": "-".join(filter(None, (release.get("ID"), release.get("VERSION_ID")))),
        "upstream": one.source if one.source != one.name else "",
    }
    further = "&".join(f"{name}={quote(text, safe=':~')}" for name, text in known.items() if text)
    place = release.get("ID", "debian")
    return f"pkg:deb/{place}/{quote(one.name)}@{version}?{further}"


def _timestamp(environ: Mapping[str, str]) -> str:
    """Now, or the time that a build which is to be repeated has named."""
    named = environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(named) if named.isdecimal() else None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
