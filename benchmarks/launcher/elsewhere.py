"""Jobs of a real Slurm of two nodes, beside Slurm's own commands and torchx: until the script's
first line, and from a rank's failure to the end of the job; what `--dry-run` costs; and many hosts
without names, beside hosts with them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

from benchmarks.launcher import load
from benchmarks.launcher.software import TORCHX
from benchmarks.table import Bound, Row
from benchmarks.timing import Times, interleaved
from tests.launcher.support.slurm import Slurm, cluster, why_not_here
from tests.support.waiting import wait_until

LIMIT_S = 120.0
SLURM = "sbatch and srun"
# every rank says when it began; the last one fails a second later, so that all run by then
_SCRIPT = """\
import os, sys, time
rank = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
print(f"began {time.time():.6f};", flush=True)
if "fail" in sys.argv:
    time.sleep(1.0 if rank else 60.0)
    if rank:
        print(f"failed {time.time():.6f};", flush=True)
        raise SystemExit(42)
"""


def rows(folder: Path, rounds: int, muster: Path, torchx: Path) -> Iterator[Row]:
    """`muster`, `torchx`: the folders of their executables."""
    folder.mkdir(exist_ok=True)
    yield from load.nameless_rows(rounds)
    if why := why_not_here():
        yield Row("submit to the script's first line, 2 nodes", "s", None, {}, (), why)
        return
    (folder / "script.py").write_text(_SCRIPT)
    with cluster(folder) as slurm:
        desk = _Desk(slurm, folder, muster, torchx)
        began = interleaved(
            {"muster": desk.muster(""), SLURM: desk.sbatch(), TORCHX: desk.torchx("")}, rounds
        )
        yield _first_line(began)
        failed = interleaved({"muster": desk.muster("fail"), TORCHX: desk.torchx("fail")}, rounds)
        yield _failure(failed)
    dry = interleaved({"muster": desk.dry_run("muster"), TORCHX: desk.dry_run(TORCHX)}, rounds)
    yield _dry_run(dry)


class _Desk:
    """Submits jobs from the first node, each in a folder of its own, and measures them."""

    def __init__(self, slurm: Slurm, folder: Path, muster: Path, torchx: Path) -> None:
        self._slurm, self._folder = slurm, folder
        self._muster, self._torchx = muster, torchx
        self._numbers = count()

    def muster(self, argument: str) -> Callable[[], float]:
        option = ["--distribution", "torch_distributed", "--processes-per-host", "1"]
        words = [str(self._muster / "muster"), "submit", "script.py", "--on", "slurm"]
        words += ["--hosts", "2", "--retries", "0", "--output", "run", "--python"]
        words += [sys.executable, *(option if argument else []), "--", argument]
        return lambda: self._measured(words, argument)

    def sbatch(self) -> Callable[[], float]:
        wrap = f"srun --ntasks=2 {sys.executable} script.py"
        words = ["sbatch", "--nodes=2", "--ntasks-per-node=1", "--output=out.log", f"--wrap={wrap}"]
        return lambda: self._measured(words, "")

    def torchx(self, argument: str) -> Callable[[], float]:
        words = self._of_torchx(argument)
        return lambda: self._measured(words, argument)

    def dry_run(self, whose: str) -> Callable[[], float]:
        words = self._of_torchx("")
        words.insert(2, "--dryrun")
        if whose == "muster":
            words = [str(self._muster / "muster"), "submit", "script.py", "--on", "slurm"]
            words += ["--hosts", "2", "--dry-run"]
        return lambda: self._run(words, self._fresh(), {})

    def _of_torchx(self, argument: str) -> list[str]:
        job = ["dist.ddp", "-j", "2x1", "--script", "script.py", "--max_retries", "0"]
        return [str(self._torchx / "torchx"), "run", "-s", "slurm", *job, "--", argument]

    def _fresh(self) -> Path:
        folder = self._folder / f"job-{next(self._numbers)}"
        folder.mkdir()
        (folder / "script.py").write_text(_SCRIPT)
        return folder

    def _run(self, words: list[str], folder: Path, environ: Mapping[str, str]) -> float:
        began = time.monotonic()
        done = subprocess.run(
            words, cwd=folder, env={**self._slurm.environ, **environ}, timeout=LIMIT_S,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        # torchx asks for accounting once it has submitted, and fails where there is none
        if done.returncode and "slurm://" not in done.stdout:
            raise RuntimeError(f"{shlex.join(words)}: {done.stdout[-600:]}{done.stderr[-600:]}")
        return time.monotonic() - began

    def _measured(self, words: list[str], argument: str) -> float:
        """Until the first rank began, or from the failure until the job has left the queue."""
        folder = self._fresh()
        asked = time.time()
        typed = f"cd {shlex.quote(str(folder))} && exec {shlex.join(words)}"
        self._run([*self._slurm.on_first(), "sh", "-c", typed], folder, {})

        def said(word: str) -> list[float]:
            texts = (
                path.read_text(errors="replace")
                for pattern in ("*.log", "*.out", "*.err", "run/engine.log", "**/slurm-*.out")
                for path in folder.glob(pattern)
            )
            return [float(one) for text in texts for one in re.findall(rf"{word} ([\d.]+);", text)]

        wait_until(lambda: not self._slurm.client("squeue", "--noheader"), LIMIT_S)
        word = "failed" if argument else "began"
        times = said(word)
        if not times:
            raise RuntimeError(f"nothing {word} in {folder}: {self._slurm.story()}")
        if argument:
            return time.time() - max(times)
        return min(times) - asked


def _first_line(found: Mapping[str, Times]) -> Row:
    ours, bare = found["muster"].median, found[SLURM].median
    must = Bound(f"+ 0.6 s over {SLURM}", ours <= bare + 0.6)
    peers = {name: times.median for name, times in found.items() if name != "muster"}
    what = "submit to the script's first line, 2 nodes"
    return Row(what, "s", ours, peers, (must,), f"{ours - bare:+.2f} s over {SLURM}")


def _failure(found: Mapping[str, Times]) -> Row:
    ours = found["muster"].median
    must = Bound("3 s", ours <= 3.0)
    what = "rank on node 2 fails until the job has left the queue"
    return Row(what, "s", ours, {TORCHX: found[TORCHX].median}, (must,), "torchrun on both")


def _dry_run(found: Mapping[str, Times]) -> Row:
    ours = found["muster"].median
    return Row("submit --dry-run", "s", ours, {TORCHX: found[TORCHX].median},
               (Bound("0.25 s", ours <= 0.25),))  # fmt: skip
