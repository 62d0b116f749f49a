"""Tar archives made by code, good ones and the corpus of hostile ones (reliability.md S07)."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

Form = Literal[0, 1, 2]  # a format of tarfile


class Entry(NamedTuple):
    """One member; `kind` is a type of tarfile."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""
    mode: int = 0o644
    size: int | None = None  # as the header claims


def tar_bytes(entries: Iterable[Entry], form: Form = tarfile.GNU_FORMAT) -> bytes:
    """The archive before compression."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.linkname, info.mode = entry.kind, entry.target, entry.mode
            info.size = len(entry.content)
            if entry.size is not None:  # a lie needs its header written by hand
                info.size = entry.size
                buffer.write(info.tobuf(form))
                buffer.write(entry.content)
                tar.offset = buffer.tell()
                continue
            tar.addfile(info, io.BytesIO(entry.content))
    return buffer.getvalue()


def write_archive(path: Path, *entries: Entry, form: Form = tarfile.GNU_FORMAT) -> Path:
    path.write_bytes(gzip.compress(tar_bytes(entries, form), mtime=0))
    return path


def code_archive(path: Path, **files: str) -> Path:
    """A plain archive of text files; `train_py="..."` is the file `train.py`."""
    named = [Entry(name.replace("_", "."), text.encode()) for name, text in files.items()]
    return write_archive(path, *named)


GOOD = Entry("train.py", b"print(1)\n")


def link(name: str, target: str) -> Entry:
    return Entry(name, kind=tarfile.SYMTYPE, target=target)


def hard(name: str, target: str) -> Entry:
    return Entry(name, kind=tarfile.LNKTYPE, target=target)


def folder(name: str) -> Entry:
    return Entry(name, kind=tarfile.DIRTYPE, mode=0o755)


class Hostile(NamedTuple):
    """An archive to refuse, and words of the refusal."""

    entries: tuple[Entry, ...]
    words: str


HOSTILE: dict[str, Hostile] = {
    "absolute name": Hostile((GOOD, Entry("/tmp/x", b"x")), "'/tmp/x' is absolute"),
    "doubled slash": Hostile((GOOD, Entry("//etc/x", b"x")), "is absolute"),
    "dot-dot": Hostile((GOOD, Entry("../x", b"x")), "'../x' holds '..'"),
    "dot-dot inside": Hostile((GOOD, Entry("a/../../x", b"x")), "holds '..'"),
    "harmless dot-dot": Hostile((GOOD, Entry("a/../x", b"x")), "holds '..'"),
    "dot-dot folder": Hostile((GOOD, folder("..")), "holds '..'"),
    "link out": Hostile((GOOD, link("x", "../../etc")), "leaves the code folder"),
    "link to the parent": Hostile((GOOD, link("x", "..")), "leaves the code folder"),
    "absolute link": Hostile((GOOD, link("x", "/etc/passwd")), "leaves the code folder"),
    "deep link out": Hostile((GOOD, link("a/b/x", "../../../y")), "leaves the code folder"),
    "empty link": Hostile((GOOD, link("x", "")), "leaves the code folder"),
    "link through a link": Hostile(
        (GOOD, folder("a/b"), link("a/b/up", "../.."), link("out", "a/b/up/..")),
        "'out', a link to 'a/b/up/..', leaves the code folder",
    ),
    "file through a link": Hostile(
        (GOOD, folder("a"), link("b", "a"), Entry("b/x", b"x")), "'b/x' lies below 'b'"
    ),
    "folder through a link": Hostile(
        (GOOD, link("b", "."), folder("b/c/d")), "'b/c/d' lies below 'b'"
    ),
    "hard link out": Hostile((GOOD, hard("x", "/etc/passwd")), "is absolute"),
    "hard link up": Hostile((GOOD, hard("x", "../x")), "holds '..'"),
    "hard link to nothing": Hostile((GOOD, hard("x", "gone")), "names no file before it"),
    "hard link to a link": Hostile(
        (GOOD, link("l", "train.py"), hard("x", "l")), "names no file before it"
    ),
    "character device": Hostile((GOOD, Entry("null", kind=tarfile.CHRTYPE)), "a device, a pipe"),
    "block device": Hostile((GOOD, Entry("sda", kind=tarfile.BLKTYPE)), "a device, a pipe"),
    "pipe": Hostile((GOOD, Entry("pipe", kind=tarfile.FIFOTYPE)), "a device, a pipe"),
    "unknown type": Hostile((GOOD, Entry("odd", kind=b"Z")), "a device, a pipe"),
    "file named like the folder": Hostile((GOOD, Entry("./", b"")), "a device, a pipe"),
    "endless depth": Hostile((GOOD, Entry("a/" * 500 + "x", b"x")), "no path that a disk can hold"),
    "endless name": Hostile((GOOD, Entry("a" * 5000, b"x")), "no path that a disk can hold"),
    "negative size": Hostile((GOOD, Entry("x", size=-512)), "a device, a pipe"),
    "size of a year": Hostile((GOOD, Entry("x", b"x", size=1 << 60)), "unpacks to more than"),
    "file below a file": Hostile((GOOD, Entry("train.py/x", b"x")), "'train.py/x' lies below"),
}


def _endless_header() -> bytes:
    """A GNU long name of 1 GiB."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    return tar_bytes([GOOD])[:1024] + info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 16)


def _header_chain() -> bytes:
    """Extended headers that follow one another without end."""
    record = b"11 path=ab\n".ljust(512, b"\0")
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 11
    return (info.tobuf(tarfile.USTAR_FORMAT) + record) * 20_000


def _negative_extended_size() -> bytes:
    record = b"14 size=-1024\n".ljust(512, b"\0")
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 14
    plain = tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT)
    return tar_bytes([GOOD])[:1024] + info.tobuf(tarfile.USTAR_FORMAT) + record + plain


def _broken_second_header() -> bytes:
    data = bytearray(tar_bytes([GOOD, Entry("b.py", b"b")]))
    data[1024 + 150] ^= 0xFF  # its checksum
    return bytes(data)


def _cut_second_header() -> bytes:
    return tar_bytes([GOOD, Entry("b.py", b"b")])[: 1024 + 300]


def _cut_content() -> bytes:
    return tar_bytes([GOOD, Entry("b.py", b"b" * 4000)])[: 1024 + 512 + 700]


FORGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "endless header": (_endless_header, "its headers have no end"),
    "chain of headers": (_header_chain, "damaged near byte|headers have no end"),
    "negative size in an extended header": (_negative_extended_size, "a device, a pipe|damaged"),
    "broken header in the middle": (_broken_second_header, "damaged near byte"),
    "tar cut in a header": (_cut_second_header, "damaged near byte"),
    "tar cut in a file": (_cut_content, "damaged near byte"),
}
