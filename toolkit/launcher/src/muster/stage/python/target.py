"""Installs into a folder without touching the interpreter's own packages.

`pip install --target` alone does not look at what is installed: it would fetch torch anew for
every host. So pip is first asked what is missing, and only that is installed, without dependencies.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from muster.stage.code.fingerprint import fingerprint
from muster.stage.python import pins
from muster.stage.python.pip import Pip
from muster.stage.python.requirements import lines_of, options_of
from muster.types.errors import InstallError
from muster.types.files import read_text
from muster.types.job import SITE, Settings
from muster.types.steps import Log

_MARK = ".muster-installed"
_PLAIN = re.compile(r"[\w.-]+(\s*\[[^\]]*\])?\s*([<>=!~;(].*)?")  # a name and its versions


def install_into(
    settings: Settings, wanted: Sequence[str], code_dir: str, folder: str, pip: Pip, log: Log
) -> None:
    """Makes the install target hold what `wanted` (pip's arguments, in `folder`) asks for beyond
    what the interpreter and the target have. Needs no network when nothing is missing.

    What was installed for equal requirements before is known by a mark in `target`, and is not
    asked for again: a package cannot be rebuilt by a host without a network. A folder of muster
    that is of another job or Python is filled anew: it may lie on a volume that outlives the image.
    """
    target = settings.install_target
    mark = f"{_asked(wanted, code_dir, folder)} {os.path.realpath(pip.python)}"  # a link names none
    if read_text(os.path.join(target, _MARK)) == mark:
        log("install", "everything is installed already", target=target)
        return
    import tempfile

    is_ours = os.path.basename(target) == SITE
    with (
        tempfile.TemporaryDirectory(prefix="muster-pip-") as private,
        _anew(target) if is_ours else nullcontext(),
    ):
        os.makedirs(target, exist_ok=True)
        before = pip.installed(private)
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


def _asked(wanted: Sequence[str], code_dir: str, folder: str) -> str:
    """A digest of what is asked for: of the lines of a requirements file that refers to no other
    file, of the whole code otherwise."""
    if "-r" in wanted:
        import hashlib

        lines = [line.strip() for _, line in lines_of(os.path.join(folder, wanted[-1]))]
        if all(
            _PLAIN.fullmatch(line) and not os.path.exists(os.path.join(folder, line))
            for line in lines
        ):
            return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return fingerprint(code_dir)


@contextmanager
def _anew(target: str) -> Iterator[None]:
    """`target` is empty inside; what it held comes back where the block fails."""
    before = f"{target}.before"
    if os.path.isdir(before):  # an install was killed: what lies in the target is half of it
        shutil.rmtree(target, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            os.rename(target, before)
    try:
        yield
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        with suppress(OSError):
            os.rename(before, target)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _missing(
    wanted: Sequence[str], held: Sequence[str], report: str, folder: str, pip: Pip
) -> list[dict[str, Any]]:
    """pip's own account of what it would install. Raises InstallError."""
    pip.call(["install", "--dry-run", "--report", report, *wanted], folder, held=held)
    try:
        found: list[dict[str, Any]] = json.loads(read_text(report, -1))["install"]
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
