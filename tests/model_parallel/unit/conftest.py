"""Under a Python without torch only the tests of what needs none are collected."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

WITHOUT_TORCH = {"both_tables", "checkpoint_layout", "keys"}  # and all of shape/

collect_ignore = [
    file.name
    for file in Path(__file__).parent.glob("test_mp_*.py")
    if find_spec("torch") is None and file.stem.removeprefix("test_mp_") not in WITHOUT_TORCH
]
