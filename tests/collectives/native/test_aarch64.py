"""The core of 64-bit Arm, made by the compiler of releases, plays below an emulator.

Its vector kernels are the ones in use, which the driver demands; each kernel's result is compared
bit for bit with the plain kernels' and with the driver's own reference.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.collectives.native.driving import COMPILE_S, EMULATED_S, Build, Driver, built, sound
from tests.support.effort import chance

CHECKOUT = Path(__file__).resolve().parents[3]
ISA = "neon"
BUILD_S = 900  # the compiler's own library is compiled at first
KERNELS = ("kernels - 3", "types aaa 6", "types ab 2", "types aab 2", "legs-f16 aab 8",
           "legs-bf16 ab 8", "legs-i8 aab 8")  # fmt: skip
PLAYS = (
    "ops aa 20", "ops aaa 20", "ops ab 10", "ops aab 10", "small aaa 100", "small ab 40",
    "direct aaa 5", "messages aa 10", "messages aab 6", "beside aaa 10", "mismatch aaa",
    "leave aab", "wire ab",
)  # fmt: skip
LARGE = ("large aa 3", "large-direct aa 2")
LONG = (
    "kernels - 6", "types aaa 21", "types abab 6", "types aabbc 4", "large aaa 21", "large aab 7",
    "large-direct aaa 6", "ops abab 60", "beside abb 20", "timeout aaa", "timeout aab",
    "mismatch aab", "abort aaa", "abort aab", "leave aaa",
)  # fmt: skip
SEQUENCES = ("mix aaa", "mix aab")

# an emulated processor takes minutes
pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_S + COMPILE_S + EMULATED_S)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Needs nothing of a system. Optimized as a release is, but the compiler may join products and
    sums where the core does not keep it from that: stricter than a release."""
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("no qemu-aarch64: apt-get install qemu-user-static")
    tools = subprocess.run(
        [CHECKOUT / "scripts" / "release-tools"], capture_output=True, text=True, check=False,
        timeout=BUILD_S,
    )  # fmt: skip
    if "could not be installed" in tools.stderr:
        pytest.skip(f"no compiler of releases here: {tools.stderr.strip()[-300:]}")
    assert tools.returncode == 0, tools.stderr[-3000:]
    cache = f"ZIG_GLOBAL_CACHE_DIR={CHECKOUT / '.cache' / 'zig'}"
    compiler = ("env", cache, tools.stdout.strip(), "-m", "ziglang", "cc")
    flags = ("-target", "aarch64-linux-musl", "-static", "-fno-sanitize=all", "-O3", "-g0")
    build = Build(flags, compiler=compiler, runner=(emulator,), at_once=True)
    return built(tmp_path_factory.mktemp("aarch64"), build)


@pytest.mark.parametrize("words", KERNELS)
def test_every_type_and_operation_has_the_plain_kernels_bits_on_aarch64(
    emulated: Driver, words: str
) -> None:
    sound(emulated.play(words, ISA, EMULATED_S))


@pytest.mark.parametrize("words", [*PLAYS, *LARGE])
def test_the_core_plays_on_aarch64(emulated: Driver, words: str) -> None:
    sound(emulated.play(words, ISA, EMULATED_S))


@pytest.mark.parametrize("words", SEQUENCES)
def test_calls_messages_and_registered_memory_in_any_sequence_are_right_on_aarch64(
    emulated: Driver, words: str
) -> None:
    sound(emulated.play(f"{words} 150 {chance().randrange(1, 1 << 30)}", ISA, EMULATED_S))


@pytest.mark.parametrize("words", [*LONG, *(f"{words} 2000" for words in SEQUENCES)])
def test_the_core_plays_at_length_on_aarch64(emulated: Driver, words: str) -> None:
    sound(emulated.play(words, ISA, EMULATED_S))


def test_the_emulated_processor_has_no_other_instruction_set(emulated: Driver) -> None:
    assert emulated.play("kernels - 1", "avx2").returncode == 3
