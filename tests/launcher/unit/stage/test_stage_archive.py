"""Unpacking archives: what is refused, what arrives, and what a broken one is told."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.stage.code.archive import unpack
from muster.stage.code.filetype import detect
from muster.stage.code.members import ArchiveLimits
from muster.stage.code.source import fetch
from muster.types.errors import SourceError
from tests.launcher.support.archives import (
    FORGED,
    GOOD,
    HOSTILE,
    Entry,
    Form,
    Hostile,
    folder,
    hard,
    link,
    tar_bytes,
    write_archive,
)
from tests.launcher.support.jobs import make_job
from tests.launcher.support.steps import LogLines
from tests.support.effort import chance, effort


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A fresh folder two levels down, so that escapes would be seen beside and above it."""
    path = tmp_path / "a" / "tree"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def outside(tmp_path: Path, target: Path) -> Iterator[None]:
    """What lies around the target, to which nothing may happen; looked at again afterwards."""
    for place in (tmp_path, tmp_path / "a"):
        (place / "x").write_text("sentinel")
        (place / "escaped").write_text("sentinel")
        (place / "link").symlink_to("x")
    (tmp_path / "a" / "y").mkdir(mode=0o700)
    before = state(tmp_path, target)
    yield
    assert {**state(tmp_path, target), **before} == state(tmp_path, target)
    new = state(tmp_path, target).keys() - before.keys()
    assert new <= {str(tmp_path / "x.tar.gz")}


def state(top: Path, without: Path) -> dict[str, object]:
    """All that can be told of every file below `top` but those below `without`."""
    found: dict[str, object] = {}
    for path in top.rglob("*"):
        if without in path.parents or path == without:
            continue
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and path.name != "x.tar.gz" else b""
        times = () if path.name == "x.tar.gz" or path.is_dir() else (about.st_mtime_ns,)
        found[str(path)] = (about.st_mode, about.st_uid, about.st_nlink, content, *times)
    return found


def everything_below(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*")}


def refused(path: Path, target: Path, limits: ArchiveLimits | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        unpack(str(path), "code.tar.gz", str(target), limits or ArchiveLimits())
    assert caught.value.fix
    assert caught.value.exit_code == 101
    return caught.value.message


FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
CASES = [
    pytest.param(case, form, id=f"{name}-{form_name}")
    for name, case in HOSTILE.items()
    for form_name, form in FORMATS.items()
    if form_name == "gnu" or all(entry.size is None for entry in case.entries)
]


@pytest.mark.promise("S07")
@pytest.mark.parametrize(("case", "form"), CASES)
def test_a_hostile_archive_is_refused_and_nothing_leaves_the_folder(
    case: Hostile, form: Form, tmp_path: Path, target: Path, outside: None
) -> None:
    path = write_archive(tmp_path / "x.tar.gz", *case.entries, form=form)
    message = refused(path, target)
    assert case.words in message
    assert "code.tar.gz was rejected" in message


@pytest.mark.promise("S07")
@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE.keys())
def test_after_a_refusal_nothing_is_left_in_the_code_folder_or_beside_it(
    case: Hostile, tmp_path: Path
) -> None:
    base = tmp_path / "opt" / "ml"
    base.mkdir(parents=True)
    archive = write_archive(tmp_path / "x.tar.gz", *case.entries)
    job = make_job(base=str(base))._replace(source=str(archive), program="train.py")
    with pytest.raises(SourceError):
        fetch(job, LogLines())
    assert everything_below(base) == {"code"}


@pytest.mark.promise("S07")
@pytest.mark.parametrize("case", FORGED.values(), ids=FORGED.keys())
def test_a_forged_or_cut_tar_is_refused_before_anything_is_written(
    case: tuple[Callable[[], bytes], str], tmp_path: Path, target: Path, outside: None
) -> None:
    make, words = case
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(make(), mtime=0))
    before = time.process_time()
    message = refused(path, target)
    assert any(word in message for word in words.split("|"))
    assert everything_below(target) == set()
    assert time.process_time() - before < 5


@pytest.mark.promise("S07")
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (ArchiveLimits(members=2), "more than 2 members"),
        (ArchiveLimits(total_bytes=200_000), "unpacks to more than 195 KiB"),
        (ArchiveLimits(ratio=50, ratio_from_bytes=100_000), "more than 50 times as much"),
    ],
    ids=["members", "total", "ratio"],
)
def test_a_bomb_is_refused_by_its_headers(
    limits: ArchiveLimits, words: str, tmp_path: Path, target: Path
) -> None:
    entries = [Entry(f"{number}.py", bytes(100_000)) for number in range(3)]
    path = write_archive(tmp_path / "x.tar.gz", *entries)
    assert words in refused(path, target, limits)
    assert everything_below(target) == set()


def test_twins_and_odd_names_arrive_as_they_are(
    tmp_path: Path, target: Path, outside: None
) -> None:
    """Letters that only their case or their composition tells apart, and characters that shells
    and logs stumble over: a Linux disk holds them all."""
    odd = ["A.py", "a.py", "é", "e\u0301", "new\nline", "back\\slash", "-rf", "$(id)", "*", " ",
           "\x1b[31m", "\u202etxt.py", "con", "a:b", "~", "a" * 255]  # fmt: skip
    entries = [Entry(name, name.encode()) for name in odd]
    path = write_archive(tmp_path / "x.tar.gz", *entries, form=tarfile.PAX_FORMAT)
    assert unpack(str(path), "x", str(target)) == len(odd)
    assert everything_below(target) == set(odd)
    assert all((target / name).read_bytes() == name.encode() for name in odd)


def test_an_archive_of_several_gzip_members_arrives_whole(tmp_path: Path, target: Path) -> None:
    """As pigz and bgzip write them, and as they come out of `cat`."""
    data = tar_bytes([Entry("a.py", os.urandom(3000)), GOOD])
    pieces = [data[start : start + 700] for start in range(0, len(data), 700)]
    path = tmp_path / "x.tar.gz"
    path.write_bytes(b"".join(gzip.compress(piece, mtime=0) for piece in [*pieces, b""]))
    assert unpack(str(path), "x", str(target)) == 2


@pytest.mark.promise("S07")
@pytest.mark.parametrize("garbage", [b"x", b"\x1f\x8b", b"\x1f\x8b\x08" + bytes(9), b"PK" * 999])
def test_garbage_behind_the_archive_is_damage(garbage: bytes, tmp_path: Path, target: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes([GOOD]), mtime=0) + garbage)
    assert "damaged near byte" in refused(path, target)
    assert everything_below(target) == set()


@pytest.mark.promise("S07")
def test_what_follows_the_end_of_a_tar_is_never_unpacked(tmp_path: Path, target: Path) -> None:
    """A second archive behind the first one, which other programs might take for a part of it."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes([GOOD]) + tar_bytes([Entry("../x", b"x")]), mtime=0))
    assert unpack(str(path), "x", str(target)) == 1
    assert everything_below(target) == {"train.py"}


@pytest.mark.promise("S07")
def test_padding_without_end_is_refused(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes([GOOD]) + bytes(50_000_000), mtime=0))
    assert "no end" in refused(path, target, ArchiveLimits(members=1000))


def test_files_folders_links_and_modes_arrive(tmp_path: Path, target: Path) -> None:
    entries = [
        folder("./"),
        Entry("./train.py", b"print(1)\n"),
        Entry("pkg/run.sh", b"#!/bin/sh\n", mode=0o755),
        Entry("deep/er/empty.txt", b""),
        folder("void"),
        link("pkg/train.py", "../train.py"),
        link("here", "pkg"),
        link("dangling", "not/there"),
        hard("twin.py", "./train.py"),
        Entry("ünïcode ☃.txt", b"x"),
    ]
    path = write_archive(tmp_path / "x.tar.gz", *entries, form=tarfile.PAX_FORMAT)
    assert unpack(str(path), "x", str(target)) == 4
    assert (target / "pkg/train.py").read_text() == "print(1)\n"
    assert os.readlink(target / "here") == "pkg"
    assert os.readlink(target / "dangling") == "not/there"
    assert (target / "twin.py").samefile(target / "train.py")
    assert (target / "void").is_dir()
    assert (target / "ünïcode ☃.txt").read_bytes() == b"x"
    assert stat.S_IMODE((target / "pkg/run.sh").stat().st_mode) == 0o755


@pytest.mark.promise("S07")
@pytest.mark.parametrize(
    ("mode", "expected"), [(0o6755, 0o755), (0o4700, 0o700), (0o7777, 0o755), (0, 0o600)]
)
def test_set_id_bits_and_write_for_all_are_stripped(
    mode: int, expected: int, tmp_path: Path, target: Path
) -> None:
    path = write_archive(tmp_path / "x.tar.gz", Entry("x", b"x", mode=mode))
    unpack(str(path), "x", str(target))
    assert stat.S_IMODE((target / "x").stat().st_mode) == expected


def test_a_later_member_replaces_an_earlier_one_and_not_its_hard_link(
    tmp_path: Path, target: Path
) -> None:
    entries = [Entry("x", b"old"), hard("kept", "x"), Entry("x", b"new")]
    unpack(str(write_archive(tmp_path / "x.tar.gz", *entries)), "x", str(target))
    assert (target / "x").read_bytes() == b"new"
    assert (target / "kept").read_bytes() == b"old"


def test_a_file_where_a_folder_is_says_which(tmp_path: Path, target: Path) -> None:
    path = write_archive(tmp_path / "x.tar.gz", Entry("void/x", b"x"), Entry("void", b"x"))
    assert "'void" in refused(path, target)


@pytest.mark.promise("F55")
def test_every_truncation_names_file_size_and_position(tmp_path: Path, target: Path) -> None:
    whole = gzip.compress(tar_bytes([Entry("a.py", os.urandom(3000)), GOOD]), mtime=0)
    path = tmp_path / "x.tar.gz"
    for size in [*range(2, len(whole) - 1, 97), len(whole) - 1, len(whole) - 7]:
        path.write_bytes(whole[:size])
        message = refused(path, target)
        assert f"code.tar.gz is cut off or damaged near byte {size} of {size}" in message
        assert everything_below(target) == set()


@pytest.mark.promise("F55")
def test_a_flipped_bit_is_found_by_the_checksum(tmp_path: Path, target: Path) -> None:
    data = bytearray(gzip.compress(tar_bytes([Entry("a.py", os.urandom(3000))]), 0, mtime=0))
    data[1000] ^= 1  # stored, not packed: only the checksum can tell
    path = tmp_path / "x.tar.gz"
    path.write_bytes(bytes(data))
    assert "damaged near byte" in refused(path, target)
    assert everything_below(target) == set()


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("train.py", "print(1)")
    return buffer.getvalue()


@pytest.mark.promise("B43")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is an empty file (0 bytes)"),
        (_zip(), "is zip"),
        (bz2.compress(b"x"), "is bzip2"),
        (lzma.compress(b"x"), "is xz"),
        (b"\x28\xb5\x2f\xfd123", "is zstd"),
        (tar_bytes([GOOD]), "is a tar without gzip (10 KiB)"),
        (b"<?xml version='1.0'?><Error/>", "is XML or HTML"),
        (b"print('hello world')\n", "is text"),
        (b"\x93\x00\x01\xff\xfe", "is unknown data"),
        (gzip.compress(b"print(1)", mtime=0), "is gzip of text, not of a tar"),
        (gzip.compress(b"", mtime=0), "is gzip of an empty file, not of a tar"),
        (gzip.compress(bytes(10240), mtime=0), "holds nothing"),
        (gzip.compress(tar_bytes([folder("a"), folder("a/b")]), mtime=0), "holds only folders"),
    ],
    # not by their bytes: archives of another second would be other tests
    ids=lambda given: given if isinstance(given, str) else "data",
)
def test_what_is_no_code_archive_is_told_what_it_is(
    data: bytes, words: str, tmp_path: Path, target: Path
) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(data)
    assert f"the code archive code.tar.gz {words}" in refused(path, target)


@pytest.mark.promise("S07")
def test_the_filters_of_tarfile_are_not_needed(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.delattr(tarfile.TarFile, "extraction_filter", raising=False)
    monkeypatch.delattr(tarfile.TarFile, "extractall")
    unpack(str(write_archive(tmp_path / "x.tar.gz", GOOD)), "x", str(target))
    assert (target / "train.py").is_file()


def test_loading_the_module_loads_no_archive_module() -> None:
    code = "import sys, muster.stage.code.archive"
    code += "; print(sorted({'tarfile', 'gzip'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_detect_reads_no_more_than_it_is_given() -> None:
    assert detect("größe = 1\n".encode() * 60) == "text"
    assert detect(b"\0" * 512) == "unknown data"


@pytest.mark.effort
@pytest.mark.promise("S07")
def test_mutated_archives_end_in_a_refusal_or_inside_the_folder(tmp_path: Path) -> None:
    """Archives of the corpus with random bytes in their headers, checksums made right."""
    source = chance()
    originals = [tar_bytes(case.entries) for case in HOSTILE.values()]
    originals += [make() for make, _ in FORGED.values()]
    for _ in range(400 * effort()):
        data = bytearray(source.choice(originals)[:20_480])
        for _ in range(source.randint(1, 5)):
            data[source.randrange(min(len(data), 4096))] = source.randrange(256)
        for start in range(0, len(data), 512):
            block = data[start : start + 512]
            total = sum(block[:148]) + 8 * 32 + sum(block[156:])
            if any(block):
                data[start + 148 : start + 156] = b"%06o\0 " % total
        (tmp_path / "x.tar.gz").write_bytes(gzip.compress(data, 1))
        inside = tmp_path / "a" / "tree"
        inside.mkdir(parents=True)
        try:
            unpack(str(tmp_path / "x.tar.gz"), "x", str(inside))
        except SourceError:
            pass
        assert os.listdir(tmp_path / "a") == ["tree"]
        shutil.rmtree(tmp_path / "a")
        assert os.listdir(tmp_path) == ["x.tar.gz"]
