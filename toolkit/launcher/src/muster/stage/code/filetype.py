"""What a file is by its first bytes, for messages."""

from __future__ import annotations

_SIGNATURES = (
    (b"\x1f\x8b", "gzip"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "an empty zip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf", "7z"),
    (b"Rar!", "rar"),
    (b"\x7fELF", "an executable"),
    (b"<", "XML or HTML"),
)


def detect(head: bytes) -> str:
    """The type in words; `head`: at least the first 512 bytes, or all there are."""
    if not head:
        return "an empty file"
    if is_tar(head):
        return "a tar without gzip"
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if b"\0" in head:
        return "unknown data"
    try:
        head[:500].rsplit(maxsplit=1)[0].decode()
    except (UnicodeDecodeError, IndexError):
        return "unknown data"
    return "text"


def is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"
