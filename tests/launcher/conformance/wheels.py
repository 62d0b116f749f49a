"""The folder of wheels that scenarios install from: one tiny package, made on the spot."""

from __future__ import annotations

import zipfile
from pathlib import Path

_INFO = "conformance_tiny-1.0.dist-info"
_FILES = {
    "conformance_tiny.py": "value = 1\n",
    f"{_INFO}/METADATA": "Metadata-Version: 2.1\nName: conformance-tiny\nVersion: 1.0\n",
    f"{_INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n"
    "Tag: py3-none-any\n",
}


def make_wheels(folder: Path) -> Path:
    """`folder` with the wheel of conformance-tiny 1.0."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [*_FILES, f"{_INFO}/RECORD"]
    with zipfile.ZipFile(folder / "conformance_tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in _FILES.items():
            wheel.writestr(name, text)
        wheel.writestr(names[-1], "".join(f"{name},,\n" for name in names))
    return folder
