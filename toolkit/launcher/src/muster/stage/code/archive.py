"""Unpacks a code archive from an untrusted source (S07, F52, F55).

Two passes: the whole archive is checked before the first byte is written. `tarfile` only parses
headers; its own extraction, whose filters some supported Pythons lack, is not used.
"""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

from muster.stage.code.filetype import detect, is_tar
from muster.stage.code.members import (
    BLOCK,
    PACK,
    ArchiveLimits,
    ArchiveStream,
    Member,
    accepted,
    rejected,
)
from muster.stage.space import DISK_FULL, shortage
from muster.types.errors import SourceError
from muster.types.plain import size_text

if TYPE_CHECKING:
    import tarfile

_CHUNK = 256 << 10
_HEADER_BYTES = 4096  # budget per member; a member with extended headers takes 1,536
_DEFAULT = ArchiveLimits()


def unpack(path: str, name: str, folder: str, limits: ArchiveLimits = _DEFAULT) -> int:
    """Unpacks the gzipped tar archive at `path` into the fresh, empty `folder`.

    Returns the number of files. `name` is what messages call the archive. Owners, times, set-id
    bits and write permission for others are dropped.
    Raises SourceError; `folder` then holds garbage, which is the caller's to remove.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as raw:
        _require_gzip(raw, name, size)
        import gzip
        import tarfile
        import zlib

        broken = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)
        forged = (ValueError, LookupError, ArithmeticError, RecursionError)  # out of tarfile
        stream = ArchiveStream(gzip.GzipFile(fileobj=raw), name, limits.members * _HEADER_BYTES)
        try:
            tar = _open(stream, name)
            members = accepted(tar, stream, name, size, limits)
            stream.begin_content(stream.budget)
            while stream.read(_CHUNK):
                pass  # to the end, where the checksum is
            stream.begin_content(2 * limits.total_bytes)
            return _write(tar, members, folder, name)
        except (*broken, *forged) as error:
            raise SourceError(
                f"the code archive {name} is cut off or damaged near byte {raw.tell()} of {size}"
                f" ({error})",
                "make the archive again, and compare its size after the upload",
            ) from error


def _require_gzip(raw: IO[bytes], name: str, size: int) -> None:
    head = raw.read(BLOCK)
    raw.seek(0)
    if not head.startswith(b"\x1f\x8b"):
        found = f"{detect(head)} ({size_text(size)})"
        raise SourceError(f"the code archive {name} is {found}; expected a gzipped tar", PACK)


def _open(stream: ArchiveStream, name: str) -> tarfile.TarFile:
    """Raises SourceError when what gzip holds is no tar, tarfile.ReadError when it was one."""
    import tarfile

    try:
        return tarfile.TarFile(fileobj=stream)  # type: ignore[arg-type]  # it reads and seeks only
    except tarfile.ReadError as error:
        if is_tar(stream.last):
            raise
        found = detect(stream.last)
        raise SourceError(
            f"the code archive {name} is gzip of {found}, not of a tar", PACK
        ) from error


def _write(tar: tarfile.TarFile, members: list[Member], folder: str, name: str) -> int:
    """Files and folders first, links last, so that nothing is ever written through a link."""
    sizes = [member.info.size for member in members if member.kind == "file"]
    needed = sum(sizes) + BLOCK * len(members)
    short = shortage(folder, needed)
    if short:
        raise _no_space(folder, name, short)
    current = members[0]
    try:
        for current in sorted(members, key=lambda member: member.kind == "link"):
            _write_member(tar, current, folder)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise _no_space(folder, name, shortage(folder, needed)) from error
        raise SourceError(
            f"unpacking code archive {name} failed at {current.path!r}: {error.strerror}",
            "make the archive again; two of its members may be in each other's way",
        ) from error
    _check_links(members, folder, name)
    return len(sizes)


def _write_member(tar: tarfile.TarFile, member: Member, folder: str) -> None:
    path = os.path.join(folder, member.path)
    if member.kind == "folder":
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if member.kind == "link":
        os.symlink(member.target, path)
        return
    if os.path.lexists(path):
        os.unlink(path)  # a later member of the same name replaces an earlier one
    if member.kind == "same":
        os.link(os.path.join(folder, member.target), path)
        return
    source = tar.extractfile(member.info)
    assert source is not None, "only files have content"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as target:
        while chunk := source.read(_CHUNK):
            target.write(chunk)
        os.fchmod(target.fileno(), member.info.mode & 0o755 | 0o600)


def _check_links(members: list[Member], folder: str, name: str) -> None:
    """Links may lead through other links: only the disk knows where they end."""
    top = os.path.realpath(folder)
    for member in members:
        end = os.path.realpath(os.path.join(folder, member.path)) if member.kind == "link" else top
        if end != top and not end.startswith(top + os.sep):
            what = f"{member.path!r}, a link to {member.target!r},"
            raise rejected(name, f"{what} leaves the code folder")


def _no_space(folder: str, name: str, short: str) -> SourceError:
    return SourceError(
        f"no space left unpacking code archive {name} ({short or 'the disk is full'})",
        f"give the disk of {os.path.dirname(folder)} more room, or send less with the code",
    )
