"""A downloaded output.tar.gz: what belongs to a record is written out, and nothing else of it.

The archive is a stranger's: no link, no path that leads out, bounded numbers and bytes; it is read
once, as a stream, so that a bomb costs no more than the limits say.
"""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import zlib
from collections import deque
from io import BufferedReader
from typing import IO

from muster.types.values import NamedTuple

MOST_READ_BYTES = 32 << 30  # once unpacked, of the whole archive
MOST_WRITTEN_BYTES = 2 << 30
MOST_FILES = 20_000
LOG_BYTES = 64 << 10  # of a log its end
PROFILES = (".pt.trace.json", ".pt.trace.json.gz")  # of torch.profiler
_PART = r"[^/\0]{1,200}"
_PROFILE = re.compile(rf"(?:{_PART}/){{0,12}}{_PART}\.pt\.trace\.json(?:\.gz)?")
_WANTED = re.compile(
    rf"(?:{_PART}/){{0,6}}(?:(?:summary|command)\.json"
    rf"|{_PART}/(?:events\.jsonl|(?:metrics|stacks|collectives)/{_PART}|logs/rank-\d+\.(?:out|err)))"
)
_PIECE = 1 << 20


class UnpackLimits(NamedTuple):
    read_bytes: int = MOST_READ_BYTES
    written_bytes: int = MOST_WRITTEN_BYTES
    files: int = MOST_FILES


def unpack(
    path: str, target: str, limits: UnpackLimits | None = None, traces: bool = False
) -> list[str]:
    """Writes the record's files of the archive below `target`; `traces`: those of profilers, too.
    What could not be read, in sentences. Raises OSError where the file cannot be opened or the
    target cannot be written."""
    name = os.path.basename(path)
    try:
        with open(path, "rb") as raw, _opened(raw) as tar:
            return _unpack(tar, target, name, limits or UnpackLimits(), traces)
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        return [f"{name} is damaged ({error}): what came before that place is shown"]
    except OSError as error:
        if error.errno is not None:
            raise
        return [f"{name} is damaged ({error}): what came before that place is shown"]  # gzip, lzma


def _opened(raw: BufferedReader) -> tarfile.TarFile:
    """As a stream. tarfile takes a header that is cut for the end; gzip knows where it is cut."""
    if raw.peek(2).startswith(b"\x1f\x8b"):
        return tarfile.open(fileobj=gzip.GzipFile(fileobj=raw), mode="r|")
    return tarfile.open(fileobj=raw, mode="r|*")


def _unpack(
    tar: tarfile.TarFile, target: str, name: str, limits: UnpackLimits, traces: bool
) -> list[str]:
    read = written = files = 0
    for member in tar:
        read += member.size
        if read > limits.read_bytes or files >= limits.files:
            return [f"{name} is too large: what follows {member.name!r:.80} is not read"]
        vars(tar)["members"] = []  # it keeps every one that it has passed
        inside = os.path.normpath(member.name.lstrip("/"))
        profile = traces and _PROFILE.fullmatch(inside)
        if not member.isreg() or ".." in inside.split("/"):
            continue
        if not profile and not _WANTED.fullmatch(inside):
            continue
        content = tar.extractfile(member)
        if content is None:
            continue
        place = os.path.join(target, inside)
        try:
            os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            continue  # a file has the name of its folder
        most = limits.written_bytes - written
        is_log = not profile and inside.split("/")[-2:-1] == ["logs"]
        written += _copy(content, place, LOG_BYTES if is_log else most, is_log)
        files += 1
        if written >= limits.written_bytes:
            return [f"the record in {name} is too large: the end of it is not read"]
    return []


def _copy(content: IO[bytes], place: str, most: int, the_end: bool) -> int:
    """At most that many bytes, or a piece more: the beginning, or the end. Raises OSError."""
    pieces: deque[bytes] = deque()
    if not the_end:
        pieces.append(b"")
    written = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        file = open(os.open(place, flags, 0o600), "wb")  # noqa: SIM115 - closed below
    except IsADirectoryError:
        return 0
    with file:
        while data := content.read(_PIECE):
            if the_end:
                pieces.append(data)
                while len(pieces) > 2:
                    pieces.popleft()
            elif written < most:
                written += file.write(data)
        if the_end:
            written = file.write(b"".join(pieces)[-most:])
    return written
