"""The core that is measured: a release's, made with the release's compiler, where it can be."""

from __future__ import annotations

import os
import platform
import subprocess
import zipfile
from collections.abc import MutableMapping
from pathlib import Path

from muster_collectives.binding import library
from muster_collectives.runtime.errors import CoreError

CHECKOUT = Path(__file__).resolve().parents[2]
VARIABLE = "COLLECTIVES_CORE"
_CORE = "muster_collectives/_native/libmuster_core.so"
_BUILD_S = 900


def choose(environ: MutableMapping[str, str]) -> str:
    """Has all that is started with `environ` use the release's core, unless it names one already;
    says in words which core that is."""
    if not environ.get(VARIABLE):
        try:
            environ[VARIABLE] = str(_release(CHECKOUT / ".cache" / "wheels"))
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            return f"{_isa('')}, compiled here, for there is no release: {error}"
        return f"{_isa(environ[VARIABLE])}, of a release"
    return f"{_isa(environ[VARIABLE])}, {os.path.basename(environ[VARIABLE])} given by {VARIABLE}"


def _release(folder: Path) -> Path:
    """Raises RuntimeError with what the script says where the wheels cannot be made."""
    done = subprocess.run(
        [CHECKOUT / "scripts" / "release-wheels", folder], capture_output=True, text=True,
        check=False, timeout=_BUILD_S,
    )  # fmt: skip
    wheels = list(folder.glob(f"muster_parallel-*_{platform.machine()}.whl"))
    if done.returncode or len(wheels) != 1:
        raise RuntimeError((done.stderr.strip() or f"no wheel for {platform.machine()}")[-300:])
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract(_CORE, folder))


def _isa(path: str) -> str:
    try:
        found: bytes = library.load(path).mc_isa()
    except CoreError as error:
        return f"none ({error})"
    return found.decode()
