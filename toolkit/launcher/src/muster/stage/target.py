"""Installs into a folder without touching the interpreter's own packages (protocol.md 11).

`pip install --target` alone does not look at what is installed: it would fetch torch anew for
every host. So pip is first asked what is missing, and only that is installed, without dependencies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from muster.spec.errors import InstallError
from muster.spec.job import Settings
from muster.spec.steps import Log
from muster.stage import pins
from muster.stage.fingerprint import fingerprint
from muster.stage.install import SITE
from muster.stage.pip import Pip
from muster.stage.requirements import options_of

_MARK = ".muster-installed"


def install_into(
    settings: Settings, wanted: Sequence[str], code_dir: str, folder: str, pip: Pip, log: Log
) -> None:
    """Makes the install target hold what `wanted` (pip's arguments, in `folder`) asks for beyond
    what the interpreter and the target have. Needs no network when nothing is missing.

    What was installed for equal code before is known by a mark in `target`, and is not asked for
    again: a package cannot be rebuilt by a host without a network. A folder of ours that is of
    another job or Python is emptied first: it may lie on a volume that outlives the image.
    """
    target = settings.install_target
    mark = f"{fingerprint(code_dir)} {os.path.realpath(pip.python)}"  # a link names no release
    if _read(os.path.join(target, _MARK)) == mark:
        log("install", "everything is installed already", target=target)
        return
    if os.path.basename(target) == SITE:
        shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target, exist_ok=True)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="muster-pip-") as private:
        before = pins.installed(pip, private)
        held = () if settings.replace_torch else pins.constrained(before)
        report = os.path.join(private, "report.json")
        missing = _missing(wanted, held, report, folder, pip)
        if missing:
            after = {**before, **_versions(missing)}
            if not settings.replace_torch:
                pins.check(before, after)
            pins.warn_of_replaced(before, after, log)
            names = " ".join(str(item["metadata"]["name"]) for item in missing)
            log("install", "installing", what=names, target=target, python=pip.python)
            options = options_of(os.path.join(folder, wanted[-1])) if "-r" in wanted else []
            listed = os.path.join(private, "missing.txt")
            with open(listed, "w", encoding="utf-8") as file:
                file.write("\n".join([*options, *pinned(missing), ""]))
            pip.call(
                ["install", "--upgrade", "--no-deps", "--target", target, "-r", listed], folder
            )
        else:
            log("install", "all requirements are satisfied", python=pip.python)
    with open(os.path.join(target, _MARK), "w", encoding="utf-8") as file:
        file.write(mark)


def _missing(
    wanted: Sequence[str], held: Sequence[str], report: str, folder: str, pip: Pip
) -> list[dict[str, Any]]:
    """pip's own account of what it would install. Raises InstallError."""
    pip.call(["install", "--dry-run", "--report", report, *wanted], folder, held=held)
    try:
        found: list[dict[str, Any]] = json.loads(_read(report))["install"]
    except (ValueError, KeyError) as error:
        raise InstallError(
            f"pip of {pip.python} gave no report of what is missing",
            f"{pip.python} -m pip install --upgrade 'pip>=23'",
        ) from error
    return found


def _versions(missing: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found = (item["metadata"] for item in missing)
    return {pins.normalized(str(each["name"])): str(each["version"]) for each in found}


def pinned(missing: Sequence[Mapping[str, Any]]) -> list[str]:
    """Requirement lines for exactly the files of a report.

    With hashes when every file has one, so that the second call gets what the first one checked.
    """
    lines, hashes = [], []
    for item in missing:
        name, info = item["metadata"]["name"], item["download_info"]
        if item.get("is_direct"):
            lines.append(f"{name} @ {_address(info)}")
            hashes.append("")
        else:
            lines.append(f"{name}=={item['metadata']['version']}")
            hashes.append(info.get("archive_info", {}).get("hashes", {}).get("sha256", ""))
    if all(hashes):
        return [
            f"{line} --hash=sha256:{digest}" for line, digest in zip(lines, hashes, strict=True)
        ]
    return lines


def _address(info: Mapping[str, Any]) -> str:
    address = str(info["url"])
    if "vcs_info" in info:
        address = f"{info['vcs_info']['vcs']}+{address}@{info['vcs_info']['commit_id']}"
    return address + (f"#subdirectory={info['subdirectory']}" if info.get("subdirectory") else "")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
