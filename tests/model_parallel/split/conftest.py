"""Under a Python without torch none of these tests is collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_mp_*.py"]
