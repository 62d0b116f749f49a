"""Runs the tests that run inside an image, in its child that carries them."""

from __future__ import annotations

from scripts.images.build import build, say
from scripts.images.engine import find_client

LIMIT_S = 900.0


def test_inside(name: str) -> int:
    """Builds the `-test` child and runs it without a network; pytest's exit code."""
    child = build(f"{name.removesuffix('-test')}-test")
    client = find_client(building=False)
    code = client.show("run", "--rm", "--network=none", child.reference, limit_s=LIMIT_S)
    say(f"{child.reference}: its tests {'passed' if code == 0 else f'ended with {code}'}")
    return code
