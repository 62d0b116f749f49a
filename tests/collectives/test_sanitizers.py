"""The core under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer.

A C driver plays ranks as threads of one process over one mapping of the segment, so that the
sanitizer sees every side of each round. What it must find is shown by a core that was broken on
purpose.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.driving import (
    COMPILE_S,
    CORE,
    PLAY_S,
    Build,
    Driver,
    built,
    compiled,
    linked,
    sound,
)

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


THREADS = Build(
    ("-fsanitize=thread",),
    {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66", "COLLECTIVES_ISA": "plain"},
    plain=True,
)
MEMORY = Build(
    ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    {
        "ASAN_OPTIONS": "detect_leaks=0 exitcode=66",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "COLLECTIVES_ISA": "plain",
    },
    plain=True,
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


@pytest.mark.timeout(COMPILE_S)
def test_a_flag_read_without_its_order_is_found(threads: Driver, tmp_path: Path) -> None:
    objects = [path for path in threads.path.parent.glob("*.o") if path.name != "wait.o"]
    source, broken = tmp_path / BROKEN_FILE, tmp_path / "wait.o"
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
