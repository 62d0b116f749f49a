"""Tar archives made by code, good ones and the corpus of hostile ones (promise S07)."""

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
    "endless depth": Hostile(
        (GOOD, Entry("a/" * 500 + "x", b"x")), "not a path that a disk can hold"
    ),
    "endless name": Hostile((GOOD, Entry("a" * 5000, b"x")), "not a path that a disk can hold"),
    "negative size": Hostile((GOOD, Entry("x", size=-512)), "a device, a pipe"),
    "size of a year": Hostile((GOOD, Entry("x", b"x", size=1 << 60)), "unpacks to more than"),
    "name of 4,200 bytes": Hostile(
        (GOOD, Entry("é/" * 1400, b"x")), "not a path that a disk can hold"
    ),
    "name of 300 bytes": Hostile((GOOD, Entry("é" * 150, b"x")), "not a path that a disk can hold"),
    "link to 5,000 bytes": Hostile(
        (GOOD, link("x", "a" * 5000)), "not a path that a disk can hold"
    ),
    "link, then a file in its place": Hostile(
        (GOOD, link("a", "."), folder("b"), Entry("a/x", b"x")), "'a/x' lies below 'a'"
    ),
    "folder, a file in it, then a link in its place": Hostile(
        (GOOD, folder("a"), Entry("a/x", b"x"), link("a", "b")), "'a/x' lies below 'a'"
    ),
    "hard link to itself": Hostile((GOOD, hard("x", "x")), "names no file before it"),
    "hard link to a folder": Hostile((GOOD, folder("d"), hard("x", "d")), "names no file before"),
    "links in a ring": Hostile(
        (GOOD, link("a", "b/.."), link("b", "../a")), "leaves the code folder"
    ),
    "twins of which one is a link": Hostile(
        (GOOD, Entry("a/x", b"1"), link("a", "."), Entry("A/x", b"2")), "'a/x' lies below 'a'"
    ),
    "file below a file": Hostile((GOOD, Entry("train.py/x", b"x")), "'train.py/x' lies below"),
}


def extended(kind: bytes, body: bytes, size: int | None = None) -> bytes:
    """A header of that kind and what it is about, padded; `size` as it claims."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, len(body) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % 512)


def record(key: str, value: str) -> bytes:
    """One line of an extended header; its length counts itself."""
    line = f" {key}={value}\n".encode()
    size = len(line) + 1
    while size != len(str(size)) + len(line):
        size = len(str(size)) + len(line)
    return str(size).encode() + line


def _plain(name: str = "x", size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def _begin() -> bytes:
    return tar_bytes([GOOD])[:1024]


def _million_digits() -> bytes:
    """For which some releases of tarfile need the square of the time."""
    return _begin() + extended(tarfile.XHDTYPE, b"1" * 250_000) + _plain() + bytes(1024)


def _many_small_headers() -> bytes:
    """Of one member: each of them harmless."""
    one = extended(tarfile.XGLTYPE, record("comment", "x" * 100_000))
    return _begin() + one * 20 + _plain() + bytes(1024)


def _nested_long_names() -> bytes:
    return _begin() + extended(tarfile.GNUTYPE_LONGNAME, b"y" * 600) * 5000 + _plain()


def _sparse_map_without_end() -> bytes:
    names = {"major": "1", "minor": "0", "realsize": "10", "name": "big"}
    about = b"".join(record(f"GNU.sparse.{key}", value) for key, value in names.items())
    numbers = b"999999999999\n" + b"1\n" * (8 << 20)
    return _begin() + extended(tarfile.XHDTYPE, about) + _plain(size=1 << 30) + numbers


def _sparse_giant() -> bytes:
    """A terabyte of holes."""
    names = {"major": "0", "minor": "1", "map": "0,0", "size": str(1 << 40), "name": "big"}
    about = b"".join(record(f"GNU.sparse.{key}", value) for key, value in names.items())
    return _begin() + extended(tarfile.XHDTYPE, about) + _plain() + bytes(1024)


def _extended(**fields: str) -> Callable[[], bytes]:
    """A member whose extended header says this of it."""
    about = b"".join(record(key, value) for key, value in fields.items())
    return lambda: _begin() + extended(tarfile.XHDTYPE, about) + _plain() + bytes(1024)


def _link_in_an_extended_header() -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.linkname = tarfile.SYMTYPE, "train.py"
    about = record("linkpath", "/etc/passwd")
    plain = info.tobuf(tarfile.USTAR_FORMAT)
    return _begin() + extended(tarfile.XHDTYPE, about) + plain + bytes(1024)


def _negative_size_in_base_256() -> bytes:
    data = bytearray(_plain())
    data[124:136] = b"\xff" * 12
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 8 * 32 + sum(data[156:]))
    return _begin() + bytes(data) + bytes(1024)


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
    "header of a million digits": (_million_digits, "a number of a thousand digits"),
    "header with a huge value": (_extended(comment="x" * (2 << 20)), "its headers have no end"),
    "many headers of one member": (_many_small_headers, "its headers have no end"),
    "nested long names": (_nested_long_names, "headers have no end|damaged near byte"),
    "sparse map without end": (_sparse_map_without_end, "its headers have no end"),
    "terabyte of holes": (_sparse_giant, "unpacks to more than"),
    "size in an extended header": (_extended(size=str(1 << 60)), "unpacks to more than"),
    "path in an extended header": (_extended(path="../../escaped"), "holds '..'"),
    "link in an extended header": (_link_in_an_extended_header, "leaves the code folder"),
    "zero byte in a name": (_extended(path="a\0b"), "not a path that a disk can hold"),
    "negative size in base 256": (_negative_size_in_base_256, "a device, a pipe|damaged"),
}
