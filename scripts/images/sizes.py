"""How large an image is, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from scripts.images.engine import Client


class Layer(NamedTuple):
    """`size_bytes`: unpacked. `made_by`: the step of the Dockerfile."""

    size_bytes: int
    made_by: str


def layers(client: Client, reference: str) -> list[Layer]:
    """The layers of an image that hold anything, the lowest first."""
    text = client.must("history", "--no-trunc", "--human=false", "--format={{json .}}", reference)
    rows = [json.loads(line) for line in text.splitlines()]
    found = [Layer(int(row["Size"]), _step(row["CreatedBy"])) for row in reversed(rows)]
    return [layer for layer in found if layer.size_bytes]


def size_of(client: Client, reference: str) -> int:
    """Bytes of an image, unpacked."""
    return int(client.must("image", "inspect", "--format={{.Size}}", reference))


def beside_base(found: Sequence[Layer], base_bytes: int) -> int:
    """Bytes that an image has more than its base, whose files are in its lowest layer."""
    return sum(layer.size_bytes for layer in found) - base_bytes


def table(found: Sequence[Layer], base_bytes: int) -> str:
    """A line for each layer, and the sum."""
    rows = [f"  {layer.size_bytes / 1e6:9.1f} MB  {layer.made_by[:100]}" for layer in found]
    total = sum(layer.size_bytes for layer in found)
    end = f"{beside_base(found, base_bytes) / 1e6:.1f} MB beside the base"
    return "\n".join([*rows, f"  {total / 1e6:9.1f} MB  in all, {end}"])


def _step(text: str) -> str:
    words = text.replace("/bin/bash -euo pipefail -c", "").replace("# buildkit", "")
    return " ".join(words.split())
