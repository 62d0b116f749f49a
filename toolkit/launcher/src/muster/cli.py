"""`train` and `muster`: the only callers of exit."""

from __future__ import annotations

import sys


def train() -> None:
    sys.exit(100)


def main() -> None:
    sys.exit(2)
