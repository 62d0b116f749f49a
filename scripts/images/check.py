"""Runs the tests that run inside an image, in its child that carries them."""

from __future__ import annotations

import json
import secrets

from scripts.images.build import build, say
from scripts.images.engine import Client, find_client
from scripts.images.errors import ImageError
from scripts.images.targets import last_built, target_of

LIMIT_S = 900.0


def test_inside(name: str) -> int:
    """Builds the `-test` child and runs it without a network; pytest's exit code.

    Raises ImageError when the child does not stand on the image that was built last: what is
    tested is what is pushed.
    """
    plain = target_of(name).name
    client = find_client()
    tested = last_built(plain)
    child = build(f"{plain}-test", tested.arguments)
    below, all_of_it = (_layers(client, one.image_id) for one in (tested, child))
    if all_of_it[: len(below)] != below:
        raise ImageError(
            f"the test child stands on another image than {tested.reference}: something changed",
            f"make image TARGET={plain}, then try again",
        )
    container = f"muster-{plain}-test-{secrets.token_hex(6)}"
    try:
        code = client.show(
            "run", f"--name={container}", "--network=none", child.image_id, limit_s=LIMIT_S
        )
    finally:
        client.run("rm", "--force", container)
    say(f"{tested.reference}: its tests {'passed' if code == 0 else f'ended with {code}'}")
    return code


def _layers(client: Client, image_id: str) -> list[str]:
    found = client.must("image", "inspect", "--format={{json .RootFS.Layers}}", image_id)
    layers: list[str] = json.loads(found)
    return layers
