"""What a job made: where it lies in the run folder, and the models of all hosts in one place.

SageMaker packs what every host left in its model folder into one model.tar.gz; `gather` does so
for `model/` of the run folder. What the hosts made stays where it is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from muster.local.record.layout import FRESH_MODEL, MARK, MODEL, OF_A_RUN, SOURCE
from muster.types.run_files import OF_A_HOST, RECORD, SUMMARY
from muster.types.values import NamedTuple

# what muster itself leaves: at the top of the run folder, in a host's, in its opt/ml, in its output
_OWN_TOP = (SUMMARY, f"{SUMMARY}.new", f"{SUMMARY}.part", os.path.dirname(SOURCE), *OF_A_RUN)
_OWN_HOST = (*OF_A_HOST, "opt", "site", MARK, os.path.dirname(SOURCE))
_OWN_BASE = ("input", "code", "model", "checkpoints", "output")
_OWN_OUTPUT = ("data", "failure", "failure.earlier", "success", ".muster-reserve")
_OWN_PREFIX = ".muster-"  # of what `train` unpacks and installs in opt/ml
_HOST = re.compile(r"algo-\d+")
_CHUNK = 1 << 20


class Made(NamedTuple):
    """One kind of result that a job left.

    `files`: how many there are in `folder`. `kind`: model, checkpoints, output, code or other.
    """

    kind: str
    folder: str
    files: int


class Clash(NamedTuple):
    """A file that several hosts have: that of `taken` is in the model, those of `left` are not."""

    path: str
    taken: str
    left: tuple[str, ...]


def made(run: str, checkpoint: str | None = None) -> list[Made]:
    """Everything that the script of a run left there, host by host; a model that was gathered is
    counted once. `checkpoint`: where checkpoints of all hosts lie, if not with the hosts.

    Raises OSError where a folder cannot be read: it may hold anything."""
    found = [Made("model", os.path.join(run, MODEL), _count(os.path.join(run, MODEL)))]
    gathered = found[0].files > 0
    if checkpoint is not None:
        found.append(Made("checkpoints", checkpoint, _count(checkpoint)))
    packed = _packed(os.path.join(run, SOURCE))
    hosts = [entry.name for entry in _entries(run) if _is_host(entry)]
    alone = os.path.isdir(os.path.join(run, "opt", "ml"))  # of `muster run`: a host's own folder
    for host in [""] if alone else hosts:
        found += _made_by_host(os.path.join(run, host), packed, gathered)
    if not alone:
        found.append(Made("other", run, _count_foreign(run, (*_OWN_TOP, *hosts))))
    return [one for one in found if one.files]


def _is_host(entry: os.DirEntry[str]) -> bool:
    """Of `muster local`, or of another engine, where `muster run` has marked it."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    return bool(_HOST.fullmatch(entry.name)) or os.path.isfile(os.path.join(entry.path, MARK))


def _made_by_host(host: str, packed: Mapping[str, tuple[int, int]], gathered: bool) -> list[Made]:
    opt = os.path.join(host, "opt")
    base = os.path.join(opt, "ml")
    data = os.path.join(base, "input", "data")  # links to channels, or the places of their mounts
    places = {name: os.path.join(base, name) for name in (*_OWN_BASE, "output/data")}
    code = places["code"]
    written = sum(
        packed.get(path) != _size_and_crc(entry.path, packed.get(path))
        for path, entry in files_in(code, ("__pycache__",))
    )
    return [
        Made("model", places["model"], 0 if gathered else _count(places["model"])),
        Made("checkpoints", places["checkpoints"], _count(places["checkpoints"])),
        Made("output", places["output/data"], _count(places["output/data"], (RECORD,))),
        Made("output", places["output"], _count_foreign(places["output"], _OWN_OUTPUT)),
        Made("code", code, written),
        Made("other", base, _count_foreign(base, _OWN_BASE)),
        Made("other", data, sum(not entry.is_symlink() for _, entry in files_in(data))),
        # a path relative to the code leads there where hosts are plain processes
        Made("other", host, _count_foreign(host, _OWN_HOST) + _count_foreign(opt, ("ml",))),
    ]


def _count_foreign(folder: str, own: Sequence[str]) -> int:
    """Files in the folder that do not lie in what muster itself leaves there."""
    if os.path.islink(folder):
        return 0
    there = _entries(folder)
    foreign = [e for e in there if e.name not in own and not e.name.startswith(_OWN_PREFIX)]
    return sum(
        _count(entry.path) if entry.is_dir(follow_symlinks=False) else 1 for entry in foreign
    )


def gather(run: str, hosts: Sequence[str]) -> list[Clash]:
    """Puts the models of all hosts into `model/`; of files of one name the first host's.

    They are the same files under a second name where the file system can do that, so that it needs
    no room and nothing is lost when there is none; else copies. `model/` is there whole or not at
    all. Raises OSError, and then it is not.
    """
    target = os.path.join(run, FRESH_MODEL)
    owners: dict[str, str] = {}
    left: dict[tuple[str, str], list[str]] = {}
    try:
        for host in hosts:
            for path, entry in files_in(os.path.join(run, host, "opt", "ml", "model")):
                taken = _taken(target, path)
                if taken:
                    left.setdefault((path, owners.get(taken, hosts[0])), []).append(host)
                else:
                    owners[path] = host
                    _put(entry.path, os.path.join(target, path))
        if owners:
            os.rename(target, os.path.join(run, MODEL))
    except OSError:
        import shutil

        shutil.rmtree(target, ignore_errors=True)
        raise
    return [Clash(path, owner, tuple(names)) for (path, owner), names in sorted(left.items())]


def files_in(folder: str, left_out: Sequence[str] = ()) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Files and links below the folder, by their path in it; no link is followed, also not one that
    stands in the place of the folder. `left_out`: names of folders."""
    stack = [] if os.path.islink(folder) else [folder]
    while stack:
        for entry in _entries(stack.pop()):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in left_out:
                    stack.append(entry.path)
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                yield os.path.relpath(entry.path, folder), entry


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _count(folder: str, left_out: Sequence[str] = ()) -> int:
    return sum(1 for _ in files_in(folder, left_out))


def _packed(archive: str) -> dict[str, tuple[int, int]]:
    """The files that came with the code: size and checksum, by name; none where the archive cannot
    be read."""
    import tarfile
    import zlib

    found = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if content := tar.extractfile(member):
                    found[os.path.normpath(member.name)] = (member.size, _crc(content))
    except (OSError, tarfile.TarError, EOFError, zlib.error):
        return {}
    return found


def _size_and_crc(path: str, expected: tuple[int, int] | None) -> tuple[int, int]:
    """Of the file itself; it is read only where its size is as expected."""
    about = os.lstat(path)
    if expected is None or not stat.S_ISREG(about.st_mode) or about.st_size != expected[0]:
        return -1, 0
    with open(path, "rb") as file:
        return about.st_size, _crc(file)


def _crc(file: IO[bytes]) -> int:
    import zlib

    crc = 0
    while data := file.read(_CHUNK):
        crc = zlib.crc32(data, crc)
    return crc


def _taken(target: str, path: str) -> str:
    """What an earlier host has of that name, or in the place of a folder above it; "" for none."""
    parts = path.split(os.sep)
    for count in range(1, len(parts)):
        above = os.path.join(*parts[:count])
        whole = os.path.join(target, above)
        if os.path.lexists(whole) and (os.path.islink(whole) or not os.path.isdir(whole)):
            return above
    return path if os.path.lexists(os.path.join(target, path)) else ""


def _put(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        import shutil

        shutil.copy2(source, target, follow_symlinks=False)
