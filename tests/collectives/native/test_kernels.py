"""The kernels of the collective core: right to the bit, and the same on every instruction set."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import random
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.collectives.support.kernels import (
    BYTES,
    DEFINED,
    DTYPES,
    OPS,
    Memory,
    assert_same,
    border_pairs,
    decode,
    encode,
    expected,
    f32,
    interesting,
    reduce,
    to_bf16,
    to_f16,
)

SOURCES = Path(__file__).parents[3] / "toolkit" / "parallel" / "csrc"
ISAS = ("plain", "avx2", "avx512", "neon")
WIRES = ("same", "f16", "bf16", "i8")
BLOCK = 256
WIRE_FORM = 9048631643224032840  # the checksum of bytes 0 to 99 from seed 1: never changes


# --- the library, once for each instruction set


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler here")
    library = tmp_path_factory.mktemp("kernels") / "libkernels.so"
    files = sorted(str(path) for path in (SOURCES / "kernels").glob("*.c"))
    # no setting of contraction, no -march: the files themselves must see to the bits
    options = [
        f"-I{SOURCES}",
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
    ]
    subprocess.run(
        [compiler, *options, "-o", str(library), *files],
        check=True,
        timeout=110,
    )
    return library


def load(library: Path, folder: Path, wish: str | None) -> ctypes.CDLL:
    """A copy of the library that has not chosen yet: each chooses once, at its first use."""
    own = folder / f"lib-{wish}-{len(list(folder.iterdir()))}.so"
    shutil.copy(library, own)
    core = ctypes.CDLL(str(own))
    core.mc_isa.restype = ctypes.c_char_p
    core.mc_packed_bytes.restype = core.mc_checksum.restype = ctypes.c_uint64
    core.mc_reducer.restype = ctypes.c_void_p
    return core


def chosen(core: ctypes.CDLL) -> str:
    return bytes(core.mc_isa()).decode()


@pytest.fixture(scope="module")
def cores(built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """What this machine has, plain first."""
    found: dict[str, ctypes.CDLL] = {}
    with pytest.MonkeyPatch.context() as patch:
        for isa in ISAS:
            patch.setenv("COLLECTIVES_ISA", isa)
            core = load(built, tmp_path_factory.mktemp("copies"), isa)
            found.setdefault(chosen(core), core)
    return found


# --- reductions


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_reduction_gives_the_bits_of_the_standard_library(
    cores: dict[str, ctypes.CDLL], dtype: str
) -> None:
    for op, n in itertools.product([op for kind, op in DEFINED if kind == dtype], (1, 2, 3, 8)):
        sources = [interesting(dtype, seed) for seed in range(n)]
        if n == 2:
            sources = list(map(bytes.__add__, sources, border_pairs(dtype)))
        want = expected(dtype, op, [decode(dtype, source) for source in sources], float(n))
        for isa, core in cores.items():
            got = reduce(core, dtype, op, sources, divisor=float(n))
            assert_same(dtype, got, want, (isa, op, n))


def test_instruction_sets_agree_on_any_bits(cores: dict[str, ctypes.CDLL]) -> None:
    rng = random.Random(7)
    sources = [rng.randbytes(8 * 701) for _ in range(9)]
    for (dtype, op), n in itertools.product(DEFINED, (1, 2, 3, 4, 5, 9)):
        plain = reduce(cores["plain"], dtype, op, sources[:n], divisor=3.0)
        for isa, core in cores.items():
            got = reduce(core, dtype, op, sources[:n], divisor=3.0, twice=True)
            assert_same(dtype, got, plain, (isa, dtype, op, n))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_length_at_any_address_and_nothing_beside_it(
    cores: dict[str, ctypes.CDLL], dtype: str
) -> None:
    rng = random.Random(3)
    lengths = [*range(36), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1025]
    for count, shift in itertools.product(lengths, (0, 1, 13)):
        sources = [rng.randbytes(count * BYTES[dtype]) for _ in range(3)]
        n = 2 + count % 2
        plain = reduce(cores["plain"], dtype, "sum", sources[:n])
        for isa, core in cores.items():
            got = reduce(core, dtype, "sum", sources[:n], shift=shift, twice=count % 3 == 0)
            assert_same(dtype, got, plain, (isa, count, shift))


def test_the_target_may_be_any_of_the_sources(cores: dict[str, ctypes.CDLL]) -> None:
    for (isa, core), dtype, n in itertools.product(cores.items(), DTYPES, (1, 2, 3, 8)):
        sources = [interesting(dtype, seed) * 9 for seed in range(n)]
        apart = reduce(core, dtype, "max", sources)
        for into in range(n):
            got = reduce(core, dtype, "max", sources, into=into, twice=into == 0)
            assert_same(dtype, got, apart, (isa, dtype, n, into))


def test_what_is_not_defined_has_no_kernel(cores: dict[str, ctypes.CDLL]) -> None:
    core = cores["plain"]
    for dtype, op in itertools.product(range(9), range(9)):
        known = dtype < 8 and op < 8 and (DTYPES[dtype], OPS[op]) in DEFINED
        assert bool(core.mc_reducer(dtype, op)) == known


# --- the wire's forms


def pack(
    core: ctypes.CDLL, wire: str, source: bytes, error: bytes | None = None
) -> tuple[bytes, bytes]:
    """`error`: of i8 alone."""
    number, count = WIRES.index(wire), ctypes.c_uint64(len(source) // 4)
    target = Memory(bytes(core.mc_packed_bytes(number, count)), 1)
    values, lost = Memory(source, 4), Memory(error or b"", 8)
    arguments = (ctypes.c_void_p(target.at), ctypes.c_void_p(values.at), count)
    if error is None:
        core.mc_pack(number, *arguments)
    else:
        core.mc_kernel_pack_i8(*arguments, ctypes.c_void_p(lost.at))
    assert values.read() == source
    return target.read(), lost.read()


def unpack(
    core: ctypes.CDLL, wire: str, packed: bytes, count: int, onto: bytes | None = None
) -> bytes:
    target, source = Memory(onto or bytes(4 * count), 4), Memory(packed, 3)
    places = (ctypes.c_void_p(target.at), ctypes.c_void_p(source.at), ctypes.c_uint64(count))
    if onto is None:
        core.mc_unpack(WIRES.index(wire), *places)
    else:
        core.mc_kernel_unpack_add_i8(*places)
    return target.read()


@pytest.mark.parametrize(("wire", "form"), [("f16", to_f16), ("bf16", to_bf16)])
def test_16_bits_are_rounded_to_nearest_even_everywhere(
    cores: dict[str, ctypes.CDLL], wire: str, form: Callable[[float], bytes]
) -> None:
    every = decode(wire, b"".join(struct.pack("<H", bits) for bits in range(1 << 16)))
    finite = sorted({value for value in every if math.isfinite(value)})
    middles = [f32((a + b) / 2) for a, b in itertools.pairwise(finite)]
    bits = struct.pack(f"<{len(middles)}f", *middles)
    below, above = (
        struct.pack(
            f"<{len(middles)}I", *((x + d) % 2**32 for (x,) in struct.iter_unpack("<I", bits))
        )
        for d in (-1, 1)
    )
    source = struct.pack(f"<{len(every)}f", *every) + bits + below + above
    values = decode("f32", source)
    want = b"".join(map(form, values))
    for isa, core in cores.items():
        packed, _ = pack(core, wire, source)
        assert_same(wire, packed, want, isa)
        back = unpack(core, wire, packed, len(values))
        assert_same("f32", back, encode("f32", decode(wire, want)), isa)


def test_int8_blocks_are_the_same_everywhere_and_lose_half_a_step_at_most(
    cores: dict[str, ctypes.CDLL],
) -> None:
    rng = random.Random(11)
    for count in (1, 5, 255, 256, 257, 700):
        values = [f32(rng.gauss(0, 1) * 10.0 ** rng.randrange(-3, 4)) for _ in range(count)]
        source, ones = encode("f32", values), encode("f32", [1.0] * count)
        packed, _ = pack(cores["plain"], "i8", source)
        assert len(packed) == count + 4 * -(-count // BLOCK)
        plain = unpack(cores["plain"], "i8", packed, count)
        added = encode("f32", [f32(1.0 + value) for value in decode("f32", plain)])
        for isa, core in cores.items():
            assert pack(core, "i8", source)[0] == packed, (isa, count)
            assert unpack(core, "i8", packed, count) == plain, (isa, count)
            assert unpack(core, "i8", packed, count, ones) == added, (isa, count)
        for start in range(0, count, BLOCK):
            block = values[start : start + BLOCK]
            step = max(map(abs, block)) / 127
            for sent, got in zip(block, decode("f32", plain)[start:], strict=False):
                assert abs(sent - got) <= step * 0.5001


def test_what_rounding_loses_is_sent_the_next_time(cores: dict[str, ctypes.CDLL]) -> None:
    rng = random.Random(5)
    count, rounds = 600, 20
    values = [f32(rng.gauss(0, 1)) for _ in range(count)]
    source = encode("f32", values)
    last: dict[str, tuple[bytes, bytes]] = {}
    for isa, core in cores.items():
        error, sums = encode("f32", [0.0] * count), bytes(4 * count)
        for _ in range(rounds):
            packed, error = pack(core, "i8", source, error)
            sums = unpack(core, "i8", packed, count, sums)
        last[isa] = (sums, error)
        assert last[isa] == last["plain"], isa
    arrived, kept = (decode("f32", part) for part in last["plain"])
    for value, total, rest in zip(values, arrived, kept, strict=True):
        assert total + rest == pytest.approx(rounds * value, abs=1e-4)


def test_infinities_reach_the_other_side_and_do_not_stay_in_the_error(
    cores: dict[str, ctypes.CDLL],
) -> None:
    for bad, (isa, core) in itertools.product((math.inf, -math.inf, math.nan), cores.items()):
        values = [1.0] * 600
        values[300] = bad
        source, zeros = encode("f32", values), bytes(2400)
        for wire in ("f16", "bf16", "i8"):
            packed, error = pack(core, wire, source, zeros if wire == "i8" else None)
            got = decode("f32", unpack(core, wire, packed, 600))
            assert not math.isfinite(got[300]), (isa, wire)
            assert got[:256] == pytest.approx([1.0] * 256), (isa, wire)
            assert all(map(math.isfinite, decode("f32", error))), (isa, wire)
    tiny = encode("f32", [2.0**-149, -(2.0**-130)] * 128)
    for core in cores.values():
        packed, error = pack(core, "i8", tiny, bytes(len(tiny)))
        assert (packed, error) == (bytes(260), tiny)  # too small to send: kept


# --- copies, checksums, the choice


def test_copies_are_whole_at_any_length_and_address(cores: dict[str, ctypes.CDLL]) -> None:
    content = random.Random(2).randbytes((5 << 20) + 77)
    lengths = [
        0,
        1,
        63,
        1023,
        1024,
        8191,
        8192,
        8193,
        16383,
        16385,
        70001,
        (1 << 20) + 13,
        len(content),
    ]
    for (isa, core), size, shift in itertools.product(cores.items(), lengths, (0, 1, 33)):
        source, target = Memory(content[:size], shift), Memory(bytes(size), 2 * shift % 64)
        places = (ctypes.c_void_p(target.at), ctypes.c_void_p(source.at))
        for run in (core.mc_copy, core.mc_copy_out):
            ctypes.memset(target.at, 0, size)
            run(*places, ctypes.c_uint64(size))
            assert target.read() == content[:size], (isa, size, shift)


def test_a_checksum_tells_every_flipped_bit_and_may_be_fed_in_pieces(
    cores: dict[str, ctypes.CDLL],
) -> None:
    def checksum(data: bytes, seed: int = 0, isa: str = "plain") -> int:
        memory = Memory(data, len(data) % 7)
        arguments = (ctypes.c_uint64(seed), ctypes.c_void_p(memory.at), ctypes.c_uint64(len(data)))
        return int(cores[isa].mc_checksum(*arguments))

    data = random.Random(4).randbytes(64 * 3 + 21)
    whole = checksum(data)
    seen = {whole}
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        seen.add(checksum(bytes(flipped)))
    assert len(seen) == 8 * len(data) + 1
    signs = [
        bytes(data[i] ^ (0x80 if i in pair else 0) for i in range(64))
        for pair in itertools.combinations(range(3, 64, 4), 2)
    ]
    assert len({checksum(each) for each in signs}) == len(signs)
    for cut in (64, 128, 192):
        assert checksum(data[cut:], checksum(data[:cut])) == whole
    assert len({checksum(bytes(size)) for size in range(200)}) == 200
    assert all(checksum(data, isa=isa) == whole for isa in cores)
    assert checksum(bytes(range(100)), 1) == WIRE_FORM


def test_the_environment_lowers_the_instruction_set_and_cannot_raise_it(
    built: Path, cores: dict[str, ctypes.CDLL], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLLECTIVES_ISA", raising=False)
    best = chosen(load(built, tmp_path, None))
    assert best == [isa for isa in ISAS if isa in cores][-1]
    for wish in ("", "quantum", "neon" if best != "neon" else "avx512"):
        monkeypatch.setenv("COLLECTIVES_ISA", wish)
        assert chosen(load(built, tmp_path, wish)) == best
    monkeypatch.setenv("COLLECTIVES_ISA", "plain")
    core = load(built, tmp_path, "plain")
    assert chosen(core) == "plain"
    monkeypatch.delenv("COLLECTIVES_ISA")
    assert chosen(core) == "plain", "chosen once, for the life of the process"


def test_threads_that_come_first_together_choose_the_same(built: Path, tmp_path: Path) -> None:
    core = load(built, tmp_path, "threads")
    together, names = threading.Barrier(8), []

    def ask() -> None:
        together.wait(30)
        names.append(chosen(core))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(names) == 8
    assert len(set(names)) == 1
