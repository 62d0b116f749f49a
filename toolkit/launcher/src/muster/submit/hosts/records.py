"""What a host packed, into the run folder: a stream of a stranger, judged file by file."""

from __future__ import annotations

import os
import queue
import re
import shutil
import tarfile
import threading
from contextlib import suppress
from typing import IO, cast

from muster.local.paths import shown
from muster.local.record.runfolder import in_words
from muster.types.run_files import SUMMARY

MOST_BYTES = 16 << 30  # of a host
MOST_FILES = 200_000
PIECE = 1 << 18
WAITING = 16  # pieces
CLOSE_S = 60.0
_PART = r"(?!\.{1,2}(?:/|$))[^/\0]{1,255}"
_PATH = re.compile(rf"{_PART}(?:/{_PART}){{0,40}}")


class Unpacker:
    """Unpacks in a thread of its own what `take` is given, so that a slow disk keeps nobody from
    hearing the host. `trouble`: why not all is there, "" once it is. Files that came before the
    trouble stay: the record comes first."""

    def __init__(self, run: str, host: str, leads: bool) -> None:
        self._run = run
        self.shown = shown(run)
        self._host = host
        self._leads = leads
        self._pieces: queue.Queue[bytes] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self.trouble = "nothing came"

    def take(self, data: bytes) -> None:
        """Waits where the disk is slower than the connection."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._unpack, daemon=True)
            self._thread.start()
        while not self._done.is_set():
            with suppress(queue.Full):
                self._pieces.put(data, timeout=1.0)
                return

    def close(self) -> None:
        """Nothing more comes."""
        self.take(b"")
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _unpack(self) -> None:
        """The thread. What comes after its end is dropped."""
        try:
            stream = cast("IO[bytes]", _Pieces(self._pieces))
            with tarfile.open(fileobj=stream, mode="r|", bufsize=PIECE) as tar:
                self.trouble = self._write(tar)
        except (tarfile.TarError, EOFError, ValueError) as error:
            self.trouble = f"what came is damaged ({error})"
        except OSError as error:
            self.trouble = in_words(error)
        finally:
            self._done.set()

    def _write(self, tar: tarfile.TarFile) -> str:
        """The first thing that is wrong, "" for nothing. Raises OSError and tarfile's errors."""
        total = 0
        for number, member in enumerate(tar):
            vars(tar)["members"] = []  # it keeps every one that it has passed
            total += member.size
            if total > MOST_BYTES or number >= MOST_FILES:
                return "it is larger than was asked for"
            if not (member.isreg() and self._expected(member.name)):
                return f"{member.name!r:.80} does not belong into a record"
            if (content := tar.extractfile(member)) is not None:
                _put(content, os.path.join(self._run, member.name), member)
        return ""

    def _expected(self, name: str) -> bool:
        """The host's own folder, and of the leader's the job's summary. No member is a link, so no
        path can lead elsewhere."""
        if name == SUMMARY:
            return self._leads
        return name.startswith(f"{self._host}/") and bool(_PATH.fullmatch(name))


def _put(content: IO[bytes], path: str, member: tarfile.TarInfo) -> None:
    """The whole file, or none. Raises OSError."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    fd = os.open(path, flags, member.mode & 0o700 | 0o600)
    try:
        with open(fd, "wb") as file:
            shutil.copyfileobj(content, file, PIECE)
        os.utime(path, (member.mtime, member.mtime))
    except BaseException:
        os.unlink(path)
        raise


class _Pieces:
    """A file for tarfile, which only reads, and forwards."""

    def __init__(self, pieces: queue.Queue[bytes]) -> None:
        self._pieces = pieces
        self._data = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        found = [self._data[:size]]
        missing = size - len(found[0])
        self._data = self._data[size:]
        while missing > 0 and not self._ended:
            piece = self._pieces.get()
            self._ended = not piece
            found.append(piece[:missing])
            self._data = piece[missing:]
            missing -= len(found[-1])
        return b"".join(found)
