"""Which members of a tar archive are acceptable (S07).

The whole archive is judged from its headers, before anything is written. What is hostile is
rejected and never rewritten into something harmless. Nothing here touches the file system.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Protocol

from muster.types.errors import SourceError
from muster.types.plain import size_text
from muster.types.values import NamedTuple

if TYPE_CHECKING:
    import tarfile

PACK = "pack the code folder alone, with: tar -czf sourcedir.tar.gz -C CODE_FOLDER ."
BLOCK = 512
_READ_LIMIT = 256 << 10  # the longest extended header; real ones are a few kB
_MEMBER_LIMIT = 1 << 20  # all extended headers of one member
_DIGITS = rb"[0-9]{1000}"  # for which tarfile's expressions take the square of the time
_PATH_LIMIT = 4000  # bytes; the kernel takes 4,095, the folder's own path included
_NAME_LIMIT = 255


class ArchiveLimits(NamedTuple):
    """What an archive may hold. `ratio` applies once it unpacks to `ratio_from_bytes`."""

    members: int = 100_000
    total_bytes: int = 32 << 30
    ratio: int = 200
    ratio_from_bytes: int = 256 << 20
    depth: int = 100


class Member(NamedTuple):
    """One accepted entry. `kind`: file, folder, link (symbolic) or same (a hard link)."""

    kind: str
    path: str
    target: str
    info: tarfile.TarInfo


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...
    def seek(self, offset: int, whence: int = ..., /) -> int: ...
    def tell(self) -> int: ...


class ArchiveStream:
    """The unpacked bytes, read in small pieces and only up to a budget.

    A header may claim any length and be followed by any number of others; the budgets, of the
    archive and of one member, keep both from filling the memory or running for hours. `last` is
    what was read last: where `tarfile` stops, the block that it took for the end.
    """

    def __init__(self, stream: Readable, name: str, budget: int) -> None:
        self._stream = stream
        self._name = name
        self.budget = budget
        self._member_budget = _MEMBER_LIMIT
        self._in_headers = True
        self.last = b""

    def begin_member(self) -> None:
        """The next header is that of another member."""
        self._member_budget = _MEMBER_LIMIT

    def begin_content(self, budget: int) -> None:
        """The headers are all read; so many bytes may still follow."""
        self._in_headers = False
        self.budget = self._member_budget = budget

    def read(self, size: int = -1) -> bytes:
        self.budget -= size
        self._member_budget -= size
        if not 0 <= size <= _READ_LIMIT or min(self.budget, self._member_budget) < 0:
            raise rejected(self._name, "its headers have no end")
        self.last = self._stream.read(size)
        if self._in_headers and len(self.last) > BLOCK and re.search(_DIGITS, self.last):
            raise rejected(self._name, "a header of it holds a number of a thousand digits")
        return self.last

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def rejected(name: str, reason: str) -> SourceError:
    return SourceError(f"the code archive {name} was rejected: {reason}", PACK)


def accepted(
    tar: tarfile.TarFile, stream: ArchiveStream, name: str, size: int, limits: ArchiveLimits
) -> list[Member]:
    """All members in order, each of them and all together acceptable.

    `name` and `size` are the archive's own. Raises SourceError, and tarfile.ReadError for a
    header that is broken.
    """
    members: list[Member] = []
    kinds: dict[str, str] = {}
    total = 0
    while (info := _next(tar, stream)) is not None:
        member = _accept(info, kinds, name, limits)
        total += info.size if member.kind == "file" else 0
        _check_total(total, size, name, limits)
        if len(members) >= limits.members:
            raise rejected(name, f"it has more than {limits.members} members")
        if member.path:
            members.append(member)
            kinds[member.path] = member.kind
    if len(stream.last) % BLOCK or any(stream.last):
        import tarfile  # which takes any broken header but the first one for the end

        raise tarfile.ReadError("a header is broken")
    if "file" not in kinds.values():
        what = "only folders" if kinds else "nothing"
        raise SourceError(f"the code archive {name} holds {what}", PACK)
    _check_parents(kinds, name)
    return members


def _next(tar: tarfile.TarFile, stream: ArchiveStream) -> tarfile.TarInfo | None:
    stream.begin_member()
    return tar.next()


def _accept(
    info: tarfile.TarInfo, kinds: dict[str, str], name: str, limits: ArchiveLimits
) -> Member:
    """The member of one header; its path is "" for the top folder itself."""
    path = _path(info.name, repr(info.name), name, limits)
    if info.isreg() and info.size >= 0 and path:
        return Member("file", path, "", info)
    if info.isdir():
        return Member("folder", path, "", info)
    what = f"{path!r}, a link to {info.linkname!r},"
    if info.issym() and path:
        _check_target(os.path.dirname(path), info.linkname, what, name, limits)
        return Member("link", path, info.linkname, info)
    if info.islnk() and path:
        target = _path(info.linkname, what, name, limits)
        if kinds.get(target) not in ("file", "same"):
            raise rejected(name, f"{what} names no file before it")
        return Member("same", path, target, info)
    raise rejected(name, f"{info.name!r} is a device, a pipe, or of a type that code has not")


def _path(text: str, what: str, name: str, limits: ArchiveLimits) -> str:
    """`text` without `.` and doubled slashes. Raises SourceError when it may lead elsewhere."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/"):
        raise rejected(name, f"{what} is absolute")
    if ".." in parts:
        raise rejected(name, f"{what} holds '..'")
    _check_length(text, parts, what, name, limits)
    return "/".join(parts)


def _check_target(folder: str, target: str, what: str, name: str, limits: ArchiveLimits) -> None:
    """A symbolic link may go up, as long as it stays inside by its text.

    Where it ends through other links is checked on the disk, before anybody may follow it.
    """
    _check_length(target, target.split("/"), what, name, limits)
    end = os.path.normpath(os.path.join(folder, target))
    if not target or target.startswith("/") or end == ".." or end.startswith("../"):
        raise rejected(name, f"{what} leaves the code folder")


def _check_length(text: str, parts: list[str], what: str, name: str, limits: ArchiveLimits) -> None:
    sizes = [len(os.fsencode(part)) for part in parts]
    too_long = sum(sizes) + len(sizes) > _PATH_LIMIT or max(sizes, default=0) > _NAME_LIMIT
    if "\0" in text or too_long or len(parts) > limits.depth:
        raise rejected(name, f"{what[:80]}... is not a path that a disk can hold")


def _check_parents(kinds: dict[str, str], name: str) -> None:
    """Nothing may lie below a link or a file: that is how an archive writes through links."""
    good: set[str] = {""}
    for path in kinds:
        parent = os.path.dirname(path)
        while parent not in good:
            if kinds.get(parent, "folder") != "folder":
                raise rejected(name, f"{path!r} lies below {parent!r}, which is not a folder")
            good.add(parent)
            parent = os.path.dirname(parent)


def _check_total(total: int, size: int, name: str, limits: ArchiveLimits) -> None:
    if total > limits.total_bytes:
        raise rejected(name, f"it unpacks to more than {size_text(limits.total_bytes)}")
    if total > limits.ratio_from_bytes and total > limits.ratio * size:
        raise rejected(
            name, f"its {size_text(size)} unpack to more than {limits.ratio} times as much"
        )
