"""The log pump: how fast one core of `train` passes on what a rank writes, whether every byte
arrives as it was, and what memory that takes.

The rank that writes, `train` and the reader have one core between them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.launcher.flood import BEGIN, END, ERR, MIXED, NOTHING, ONE_LINE, OUT, flood
from benchmarks.launcher.jobs import environ
from benchmarks.launcher.processes import cpu_s, memory_kib
from benchmarks.launcher.software import INCUMBENT, Software
from benchmarks.table import Bound, Row, at_least, under
from tests.support.mltree import write_tree

LEAST_MB_S = 100.0
GROWTH_MB = 5.0
MB = 1_000_000
LARGE_BYTES = 1000 * MB
SMALL_BYTES = 4 * MB  # what the peer manages: its time grows with the square of the lines
FIRST_BYTES = MB
ROUNDS = 3
_LIMIT_S = 300.0
_READ_BYTES = 1 << 18
_SCRIPT = Path(__file__).parent / "flood.py"
# how images start the peer: only so it reads what ranks write, and shows it when it is there
_PEERS_IMAGE = {
    "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
    "PYTHONUNBUFFERED": "TRUE",
}


class Passed(NamedTuple):
    """One flood. `cpu_mb_s`: by the processor time of `train`; `grown_kib`: its largest memory
    over that after the first MB. Both 0 where the job was not held for a look at it."""

    mb_s: float
    cpu_mb_s: float
    grown_kib: int
    identical: bool


class Passage(threading.Thread):
    """Reads one stream of `train`; hashes what lies between the marks, or up to the last of
    `ends` marks. `ended_s`: when that mark came, or else the last byte."""

    def __init__(self, fd: int, ends: int = 1) -> None:
        super().__init__(daemon=True)
        self.passed_bytes = 0
        self.ended_s = 0.0
        self.ended = threading.Event()
        self._fd = fd
        self._ends = ends
        self._hash = hashlib.sha256()
        self._begun = False
        self._held = b""

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def run(self) -> None:
        while data := os.read(self._fd, _READ_BYTES):
            if self._ends:
                self.ended_s = time.monotonic()
                self.take(data)
        os.close(self._fd)
        self.ended.set()

    def take(self, data: bytes) -> None:
        """The next bytes of the stream, however they are cut."""
        data = self._held + data
        if not self._begun:
            before, mark, data = data.partition(BEGIN)
            self._begun = bool(mark)
            if not mark:
                self._held = before[-len(BEGIN) + 1 :]
                return
        while self._ends:
            body, mark, rest = data.partition(END)
            if not mark:
                body, rest = data[: -len(END) + 1], data[-len(END) + 1 :]
            self._hash.update(body)
            self.passed_bytes += len(body)
            self._held = data = rest
            if not mark:
                return
            self._ends -= 1
        self.ended.set()


class FloodJob:
    """A job of one host and one rank, which floods. `merges`: this `train` puts what the rank
    writes on either stream to its stdout."""

    def __init__(
        self, folder: Path, train: Path, more: Mapping[str, str], merges: bool = False
    ) -> None:
        self._folder = folder
        self._train = train
        self._merges = merges
        self._environ = environ(train.parent, SM_STUDIO_LOCAL_MODE="true", **more)

    def run(self, kind: str, size: int, hold: bool) -> Passed:
        """One flood. `hold`: it stops behind the first MB and at its end, to look at memory."""
        shutil.rmtree(self._folder, ignore_errors=True)
        base = self._folder / "opt" / "ml"
        self._request(base, kind, size, hold)
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})  # inherited by all that starts here
        try:
            child, passages = self._start(base)
            for passage in passages.values():
                passage.start()
            try:
                return self._watch(child, passages, kind, size, hold)
            finally:
                child.kill()
                child.wait()
        finally:
            os.sched_setaffinity(0, cores)

    def _request(self, base: Path, kind: str, size: int, hold: bool) -> None:
        given: dict[str, object] = {
            "sagemaker_program": "train.py", "kind": kind, "size": str(size),
            "first": str(FIRST_BYTES if hold else 0), "began": str(self._folder / "began"),
            "go": str(self._folder / "go") if hold else NOTHING,
            "done": str(self._folder / "done") if hold else NOTHING,
        }  # fmt: skip
        hosts = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
        write_tree(base, given, hosts)
        for name in ("code", "model", "output/data"):
            (base / name).mkdir(parents=True)
        shutil.copy(_SCRIPT, base / "code" / "train.py")

    def _start(self, base: Path) -> tuple[subprocess.Popen[bytes], dict[int, Passage]]:
        pipes = {stream: os.pipe() for stream in (OUT, ERR)}
        child = subprocess.Popen(
            [str(self._train)], env={**self._environ, "SAGEMAKER_BASE_DIR": str(base)},
            cwd=self._folder, stdin=subprocess.DEVNULL, stdout=pipes[OUT][1],
            stderr=pipes[ERR][1], start_new_session=True,
        )  # fmt: skip
        for _, writing in pipes.values():
            os.close(writing)
        ends = {OUT: 2, ERR: 0} if self._merges else {OUT: 1, ERR: 1}
        return child, {s: Passage(reading, ends[s]) for s, (reading, _) in pipes.items()}

    def _watch(
        self,
        child: subprocess.Popen[bytes],
        passages: Mapping[int, Passage],
        kind: str,
        size: int,
        hold: bool,
    ) -> Passed:
        grown_kib, spent_s = 0, 0.0
        if hold:
            self._until_first(child, passages)
            grown_kib, spent_s = -memory_kib(child.pid, "VmHWM"), -cpu_s(child.pid)
            (self._folder / "go").touch()
        for passage in passages.values():
            if not passage.ended.wait(_LIMIT_S):
                raise RuntimeError(f"a flood of {size} bytes did not come to its end: {kind}")
        if hold:
            grown_kib += memory_kib(child.pid, "VmHWM")
            spent_s += cpu_s(child.pid)
            (self._folder / "done").touch()
        if child.wait(_LIMIT_S) != 0:
            raise RuntimeError(f"{self._train} ended with {child.returncode}")
        began_s = float((self._folder / "began").read_text())
        amount = (size - FIRST_BYTES if hold else size) / MB
        return Passed(
            amount / (max(p.ended_s for p in passages.values()) - began_s),
            amount / spent_s if spent_s else 0.0,
            grown_kib,
            {s: p.digest for s, p in passages.items()} == expected(kind, size),
        )

    def _until_first(self, child: subprocess.Popen[bytes], passages: Mapping[int, Passage]) -> None:
        """Until the first bytes have arrived, but for what the last incomplete lines hold."""
        end = time.monotonic() + _LIMIT_S
        while sum(p.passed_bytes for p in passages.values()) < FIRST_BYTES * 3 // 4:
            if child.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self._train}: the first bytes did not arrive")
            time.sleep(0.01)


def expected(kind: str, size: int) -> dict[int, str]:
    """The digest of each stream of a flood."""
    hashes = {stream: hashlib.sha256() for stream in (OUT, ERR)}
    for stream, piece in flood(kind, size):
        hashes[stream].update(piece)
    return {stream: found.hexdigest() for stream, found in hashes.items()}


def rows(folder: Path, measured: Software) -> Iterator[Row]:
    ours = FloodJob(folder / "pump", measured.muster / "train", {})
    peer = FloodJob(folder / "pump-peer", measured.incumbent / "train", _PEERS_IMAGE, merges=True)
    large = {}
    for kind in (MIXED, ONE_LINE):
        large[kind] = [ours.run(kind, LARGE_BYTES, hold=True) for _ in range(ROUNDS)]
        yield _large_row(kind, large[kind])
    yield _memory_row(large)
    for kind in (MIXED, ONE_LINE):
        yield _small_row(kind, ours, peer)


def _large_row(kind: str, found: list[Passed]) -> Row:
    rate = statistics.median(passed.mb_s for passed in found)
    per_core = statistics.median(passed.cpu_mb_s for passed in found)
    where = "in turns on stdout and stderr" if kind == MIXED else "on stderr, searched for errors"
    return Row(
        f"log pump on one core, {kind}, 1 GB",
        "MB/s",
        rate,
        {INCUMBENT: "see 4 MB"},
        (at_least(rate, LEAST_MB_S, "MB/s"), _identical(found)),
        f"{where}; median of {len(found)}, best {max(p.mb_s for p in found):.0f} MB/s; "
        f"{per_core:.0f} MB per second of the processor time of `train`",
        more_is_better=True,
    )


def _memory_row(large: Mapping[str, list[Passed]]) -> Row:
    grown = {kind: max(p.grown_kib for p in found) * 1024 / MB for kind, found in large.items()}
    told = ", ".join(f"{kind} {mb:.2f} MB" for kind, mb in grown.items())
    worst = max(grown.values())
    limit = under(worst, GROWTH_MB, "MB")
    detail = f"largest resident memory at the end over that after the first MB, worst run: {told}"
    return Row(
        "memory that `train` takes more for 1 GB of output", "MB", worst, {}, (limit,), detail
    )


def _small_row(kind: str, ours: FloodJob, peer: FloodJob) -> Row:
    found: dict[str, list[Passed]] = {"ours": [], "peer": []}
    for _ in range(ROUNDS):
        found["ours"].append(ours.run(kind, SMALL_BYTES, hold=False))
        found["peer"].append(peer.run(kind, SMALL_BYTES, hold=False))
    rates = {name: statistics.median(p.mb_s for p in all_of) for name, all_of in found.items()}
    return Row(
        f"log pump on one core, {kind}, {SMALL_BYTES // MB} MB",
        "MB/s",
        rates["ours"],
        {INCUMBENT: rates["peer"]},
        (_identical(found["ours"]),),
        f"medians of {ROUNDS}; the peer as images start it, with the PyTorch toolkit: it reads "
        "both streams and puts them on one, decoded, stripped and cut",
        more_is_better=True,
    )


def _identical(found: list[Passed]) -> Bound:
    return Bound("byte-identical", all(passed.identical for passed in found))
