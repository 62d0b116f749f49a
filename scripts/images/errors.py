"""What a person is told when an image cannot be made."""

from __future__ import annotations


class ImageError(Exception):
    """`what` went wrong, and the `cure`, each one clear sentence."""

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(f"{what}\n  cure: {cure}" if cure else what)
        self.what = what
        self.cure = cure
