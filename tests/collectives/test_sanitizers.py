"""The core under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer.

A C driver plays ranks as threads of one process over one mapping of the segment, so that the
sanitizer sees every side of each round. What it must find is shown by a core that was broken on
purpose.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "toolkit" / "parallel" / "csrc"
DRIVER = ("driver.c", "driver_ops.c", "driver_faults.c", "driver_wire.c")
ONE_MAPPING = ("-Dmmap=driver_mmap", "-Dmunmap=driver_munmap")
OTHER_KERNELS = ("kernels_avx2", "kernels_avx512", "kernels_neon")  # they do not run: it saves time
COMPILE_S, PLAY_S = 300, 100
BROKEN_FILE = "wait.c"
BROKEN = "memory_order_acquire", "memory_order_relaxed"  # readers need not see what was written

GOOD = (
    "ops aa 200", "ops aaa 200", "ops aaaaa 60", "small aa 2000", "small aaa 1000",
    "direct aaa 40", "messages aa 60", "messages aaa 40", "beside aaa 60",
)  # fmt: skip
FAULTS = ("timeout aaa", "mismatch aa", "mismatch aaa", "abort aaa", "leave aaa")
NODES = (
    "ops ab 100", "ops aab 100", "ops abab 60", "small ab 200", "messages aab 40", "beside abb 40",
    "timeout aab", "mismatch aab", "abort aab", "leave aab",
)  # fmt: skip


class Sanitizer(NamedTuple):
    """`flags` make it; `options` are what its run-time is told."""

    flags: tuple[str, ...]
    options: dict[str, str]


THREADS = Sanitizer(("-fsanitize=thread",), {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"})
MEMORY = Sanitizer(
    ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    {"ASAN_OPTIONS": "detect_leaks=0 exitcode=66", "UBSAN_OPTIONS": "print_stacktrace=1"},
)


class Driver(NamedTuple):
    """A built driver and how it is run."""

    path: Path
    sanitizer: Sanitizer

    def play(self, words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **self.sanitizer.options, "COLLECTIVES_ISA": "plain"}
        return subprocess.run(
            [str(self.path), *words.split()], env=environ, capture_output=True, text=True,
            timeout=PLAY_S, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return build(tmp_path_factory.mktemp("thread"), THREADS)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return build(tmp_path_factory.mktemp("memory"), MEMORY)


@pytest.mark.timeout(COMPILE_S + PLAY_S)
@pytest.mark.parametrize("words", [*GOOD, *FAULTS, *NODES])
def test_no_play_has_a_data_race(threads: Driver, words: str) -> None:
    sound(threads.play(words))


@pytest.mark.timeout(COMPILE_S + PLAY_S)
@pytest.mark.parametrize("words", [*GOOD, *FAULTS, *NODES])
def test_no_play_has_a_bad_access_or_undefined_behaviour(memory: Driver, words: str) -> None:
    sound(memory.play(words))


@pytest.mark.timeout(COMPILE_S)
def test_a_flag_read_without_its_order_is_found(threads: Driver, tmp_path: Path) -> None:
    objects = [path for path in threads.path.parent.glob("*.o") if path.name != "wait.o"]
    source, broken = tmp_path / BROKEN_FILE, tmp_path / "wait.o"
    source.write_text((CORE / BROKEN_FILE).read_text().replace(*BROKEN))
    compiled(source, broken, ("-O1", *THREADS.flags, *ONE_MAPPING))
    driver = Driver(linked([*objects, broken], tmp_path / "driver", THREADS), THREADS)
    done = driver.play("ops aa 200")
    assert done.returncode == 66, done.stderr
    assert "ThreadSanitizer: data race" in done.stderr


@pytest.mark.promise("F43")
@pytest.mark.timeout(COMPILE_S)
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_byte_flipped_on_the_wire_is_noticed_in_checked_mode(
    memory: Driver, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F43. The proxy stands before one rank; where that one connects to others, nothing passes."""
    if which == "last":
        monkeypatch.setenv("DRIVER_BEHIND_LAST", "1")
    done = memory.play("wire ab")
    if "nothing went through the proxy" in done.stderr:
        pytest.skip(f"the {which} rank is the one that connects")
    sound(done)


def sound(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}\n{done.stderr[-6000:]}"


def build(folder: Path, sanitizer: Sanitizer) -> Driver:
    """The driver and the core below one sanitizer; skips where the compiler has none."""
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if shutil.which(compiler()) is None:
        pytest.skip(f"no C compiler ({compiler()})")
    tried = subprocess.run(
        [compiler(), *sanitizer.flags, str(probe), "-o", str(folder / "probe")],
        capture_output=True, text=True, check=False, timeout=COMPILE_S,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"{compiler()} lacks {sanitizer.flags[0]}: {tried.stderr.strip()[-200:]}")
    sources = [*sorted(CORE.glob("*.c")), *(HERE / name for name in DRIVER)]
    objects = [folder / f"{path.stem}.o" for path in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: compiled(*pair, _flags(pair[0], sanitizer)),
                      zip(sources, objects, strict=True)))  # fmt: skip
    return Driver(linked(objects, folder / "driver", sanitizer), sanitizer)


def compiler() -> str:
    return os.environ.get("CC", "gcc")


def compiled(source: Path, target: Path, flags: Sequence[str]) -> None:
    _run([compiler(), "-std=c11", "-g", f"-I{CORE}", *flags, "-c", str(source), "-o", str(target)])


def linked(objects: Sequence[Path], target: Path, sanitizer: Sanitizer) -> Path:
    _run([compiler(), *sanitizer.flags, *map(str, objects), "-o", str(target), "-lm", "-pthread"])
    return target


def _flags(source: Path, sanitizer: Sanitizer) -> tuple[str, ...]:
    if source.parent == HERE:
        return ("-O1", *sanitizer.flags)
    if source.stem in OTHER_KERNELS:
        return ("-O0", *ONE_MAPPING)
    return ("-O1", *sanitizer.flags, *ONE_MAPPING)


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=COMPILE_S)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stderr[-3000:]}"
