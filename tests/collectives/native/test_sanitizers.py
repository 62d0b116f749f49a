"""The core under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer.

A C driver plays ranks as threads of one process over one mapping of the segment, so that the
sanitizer sees every side of each round. What it must find is shown by a core that was broken on
purpose.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.collectives.native.driving import (
    COMPILE_S,
    CORE,
    PLAY_S,
    Build,
    Driver,
    built,
    compiled,
    demand_isa,
    linked,
    sound,
)
from tests.support.effort import chance, effort

BROKEN_FILE = "group/epoch.c"
BROKEN = "memory_order_acquire", "memory_order_relaxed"  # readers need not see what was written

GOOD = (
    "ops aa 200", "ops aaa 200", "ops aaaaa 60", "small aa 2000", "small aaa 1000",
    "patient aa 20", "direct aaa 40", "adopts aa 6", "adopts aaa 6", "messages aa 60",
    "messages aaa 40", "beside aaa 60",
    "offers aa 20", "offers aaa 12", "unreadable aa 12", "withdraw aa 60", "withdraw aaa 30",
    "now aa 2000", "now aaa 500",
)  # fmt: skip
FAULTS = ("timeout aaa", "mismatch aa", "mismatch aaa", "abort aaa", "abort_idle aaa", "leave aaa")
NODES = (
    "ops ab 100", "ops aab 100", "ops abab 60", "small ab 200", "messages aab 40", "beside abb 40",
    "offers aab 10", "now aab 100",
    "timeout aab", "mismatch aab", "abort aab", "abort_idle aab", "abort_idle abc", "leave aab",
)  # fmt: skip
ISAS = ("plain", "avx2", "avx512")
# every type and operation, at every edge of the registers, at odd addresses
KERNELS = ("kernels - 4", "types aaa 6", "types aab 2", "legs-f16 aab 20", "legs-bf16 ab 20",
           "legs-i8 aab 20")  # fmt: skip
LARGE = ("large aa 7", "large-direct aaa 2")  # results past the cache
LARGE_ALL = ("large aaa 21", "large aab 7", "large-direct aaa 8")  # each verb at each border
SEQUENCES = ("mix aaa", "mix aab", "mix abab")
LARGEST_S = 4 * PLAY_S

IDLE = "-DMC_IDLE_NS=50000u"  # threads end between two calls, and are started again
THREADS = Build(("-fsanitize=thread", IDLE), {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"})
MEMORY = Build(
    (
        "-fsanitize=address,undefined,float-cast-overflow",
        IDLE,
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ),
    {"ASAN_OPTIONS": "detect_leaks=0 exitcode=66", "UBSAN_OPTIONS": "print_stacktrace=1"},
)


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return built(tmp_path_factory.mktemp("thread"), THREADS)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return built(tmp_path_factory.mktemp("memory"), MEMORY)


@pytest.mark.timeout(COMPILE_S + PLAY_S)
@pytest.mark.parametrize("words", [*GOOD, *FAULTS, *NODES])
def test_no_play_has_a_data_race(threads: Driver, words: str) -> None:
    sound(threads.play(words))


@pytest.mark.timeout(COMPILE_S + PLAY_S)
@pytest.mark.parametrize("words", [*GOOD, *FAULTS, *NODES])
def test_no_play_has_a_bad_access_or_undefined_behaviour(memory: Driver, words: str) -> None:
    sound(memory.play(words))


@pytest.mark.timeout(COMPILE_S + PLAY_S)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("words", KERNELS)
def test_no_instruction_set_has_a_bad_access_or_a_wrong_value(
    memory: Driver, words: str, isa: str
) -> None:
    demand_isa(isa)
    sound(memory.play(words, isa))


@pytest.mark.timeout(COMPILE_S + PLAY_S)
@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("words", KERNELS[1:3])
def test_no_instruction_set_has_a_data_race(threads: Driver, words: str, isa: str) -> None:
    demand_isa(isa)
    sound(threads.play(words, isa))


@pytest.mark.timeout(COMPILE_S + LARGEST_S)
@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize(
    "words", [*LARGE, *(pytest.param(words, marks=pytest.mark.long) for words in LARGE_ALL)]
)
def test_results_past_the_cache_are_right_to_the_border(
    memory: Driver, words: str, isa: str
) -> None:
    demand_isa(isa)
    sound(memory.play(words, isa, LARGEST_S))


@pytest.mark.long
@pytest.mark.timeout(COMPILE_S + LARGEST_S)
@pytest.mark.parametrize("words", [*LARGE, *LARGE_ALL])
def test_results_past_the_cache_have_no_data_race(threads: Driver, words: str) -> None:
    sound(threads.play(words, limit_s=LARGEST_S))


@pytest.mark.effort
@pytest.mark.timeout(COMPILE_S + LARGEST_S)
@pytest.mark.parametrize("words", SEQUENCES)
@pytest.mark.parametrize("sanitizer", ["threads", "memory"])
def test_calls_messages_and_registered_memory_in_any_sequence_are_right(
    sanitizer: str, words: str, request: pytest.FixtureRequest
) -> None:
    driver: Driver = request.getfixturevalue(sanitizer)
    steps, seed = 300 * effort(), chance().randrange(1, 1 << 30)
    sound(driver.play(f"{words} {steps} {seed}", limit_s=LARGEST_S))


@pytest.mark.timeout(COMPILE_S + PLAY_S)
def test_no_part_of_a_piece_is_longer_than_its_room(memory: Driver) -> None:
    sound(memory.play("parts - 200"))


@pytest.mark.timeout(COMPILE_S + PLAY_S)
@pytest.mark.parametrize("ranks", [2, 5, 16, pytest.param(64, marks=pytest.mark.long)])
def test_no_round_of_any_verb_touches_more_slots_than_a_cache_holds(
    memory: Driver, ranks: int
) -> None:
    sound(memory.play(f"footprint {'a' * ranks}"))


def test_a_play_with_kernels_that_were_not_meant_is_refused(memory: Driver) -> None:
    assert memory.play("kernels - 1", "quantum").returncode == 3


@pytest.mark.long
@pytest.mark.timeout(COMPILE_S)
def test_a_kernel_that_reads_beyond_its_end_is_found(memory: Driver, tmp_path: Path) -> None:
    demand_isa("avx2")
    shutil.copytree(CORE, tmp_path / "csrc")
    loop = tmp_path / "csrc" / "kernels" / "isa_loop.h"
    good, bad = "full = bytes - bytes % (4 * STEP)", "full = (bytes + 1) / (4 * STEP) * (4 * STEP)"
    assert good in loop.read_text()
    loop.write_text(loop.read_text().replace(good, bad))
    name = "kernels-avx2.o"
    changed = MEMORY._replace(flags=(f"-iquote{tmp_path / 'csrc'}", *MEMORY.flags))
    compiled(changed, tmp_path / "csrc" / "kernels" / "avx2.c", tmp_path / name)
    others = [path for path in memory.path.parent.glob("*.o") if path.name != name]
    driver = linked(MEMORY, [*others, tmp_path / name], tmp_path / "driver")
    done = Driver(driver, MEMORY).play("kernels - 1", "avx2")
    assert done.returncode == 66, done.stderr
    # "unknown-crash" is what it calls a read that begins before the end of the block
    assert "ERROR: AddressSanitizer" in done.stderr and "isa_loop.h" in done.stderr


@pytest.mark.timeout(COMPILE_S)
def test_a_flag_read_without_its_order_is_found(threads: Driver, tmp_path: Path) -> None:
    objects = [path for path in threads.path.parent.glob("*.o") if path.name != "group-epoch.o"]
    source, broken = tmp_path / "epoch.c", tmp_path / "group-epoch.o"
    source.write_text((CORE / BROKEN_FILE).read_text().replace(*BROKEN))
    compiled(THREADS, source, broken)
    driver = Driver(linked(THREADS, [*objects, broken], tmp_path / "driver"), THREADS)
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
    sound(memory.play("wire-messages ab"))


@pytest.mark.timeout(COMPILE_S)
def test_a_frame_that_is_garbled_repeated_moved_or_cut_off_is_refused_and_its_sender_named(
    memory: Driver,
) -> None:
    sound(memory.play("wire-harmed ab"))
