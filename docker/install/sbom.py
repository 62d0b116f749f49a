"""Lists all that the image holds: sbom.cdx.json (CycloneDX 1.5) and licenses.txt.

`sbom.py FOLDER` reads the packages of /opt/venv and of dpkg; it runs as an image's last step.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL

VENV = Path("/opt/venv")
FORMAT = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"
LONGEST = 80  # characters of a licence's name; some packages put the whole text there


class Package(NamedTuple):
    """`kind`: pypi or deb. `license`: a name, "" when the package does not say."""

    kind: str
    name: str
    version: str
    license: str
    where: str


def python_packages() -> Iterator[Package]:
    (site,) = VENV.glob("lib/python3.*/site-packages")
    for found in distributions(path=[str(site)]):
        files = [str(path) for path in found.files or () if "licen" in str(path).lower()]
        where = str(site / files[0]) if files else ""
        yield Package("pypi", found.metadata["Name"], found.version, _license(found), where)


def _license(found: Distribution) -> str:
    fields = found.metadata
    stated = fields.get("License-Expression") or fields.get("License") or ""
    if stated and len(stated) <= LONGEST and "\n" not in stated:
        return str(stated)
    named = [c for c in fields.get_all("Classifier") or () if c.startswith("License ::")]
    return ", ".join(c.rpartition(" :: ")[2] for c in named)


def debian_packages() -> Iterator[Package]:
    done = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={FORMAT}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        status, name, version, _ = line.split("\t")
        where = Path("/usr/share/doc") / name / "copyright"
        if status.startswith("ii"):
            yield Package("deb", name, version, "", str(where) if where.exists() else "")


def bill(packages: list[Package]) -> str:
    """The CycloneDX document. It is the same for the same packages."""
    components = [
        Component(
            type=ComponentType.LIBRARY,
            name=one.name,
            version=one.version,
            purl=PackageURL(one.kind, "debian" if one.kind == "deb" else "", one.name, one.version),
            bom_ref=f"{one.kind}:{one.name}@{one.version}",
            licenses=[DisjunctiveLicense(name=one.license)] if one.license else [],
        )
        for one in packages
    ]
    names = "\n".join(f"{one.kind} {one.name} {one.version}" for one in packages)
    bom = Bom(components=components, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, names))
    bom.metadata.timestamp = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return str(JsonV1Dot5(bom).output_as_string(indent=1))


def main(folder: Path) -> None:
    packages = sorted([*python_packages(), *debian_packages()])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sbom.cdx.json").write_text(bill(packages))
    lines = (
        f"{one.kind}\t{one.name} {one.version}\t{one.license or '-'}\t{one.where or '-'}\n"
        for one in packages
    )
    (folder / "licenses.txt").write_text("kind\tpackage\tlicence\ttext\n" + "".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
