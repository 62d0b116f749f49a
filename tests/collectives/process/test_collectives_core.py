"""Collectives without torch: `muster_collectives.core` needs the standard library and no more."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.collectives.support import ranks
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "toolkit" / "parallel" / "src"
WORKER = ROOT / "tests" / "collectives" / "support" / "core_rank.py"
sys.path.insert(0, str(SOURCES))

from muster_collectives.binding import abi, library  # noqa: E402
from muster_collectives.binding.library import raw_tuning  # noqa: E402
from muster_collectives.bootstrap.channel import PROTOCOL  # noqa: E402
from muster_collectives.bootstrap.rendezvous import Rendezvous, join, secret_of  # noqa: E402
from muster_collectives.core import CollectiveError, CoreError, RendezvousError, SettingsError  # noqa: E402
from muster_collectives.runtime.tuning import Tuning  # noqa: E402
from muster_collectives.runtime.types import Code  # noqa: E402

# of what all verbs make of all types, as a second implementation in Python's own numbers gave it
DIGEST = "9fd76ccd53663b372f1b2250b142d187b633e072a03d95d3e54cb396aed508c0"
FIX = "  Fix: install muster-parallel from its wheel, or where there is a C compiler"


@pytest.fixture(scope="module")
def core() -> ctypes.CDLL:
    try:
        return library.load(os.environ.get("COLLECTIVES_CORE", ""))
    except CoreError as error:
        assert "has interface" not in error.message, error.message  # not compiled since a change
        pytest.skip(f"no compiled core: {error.message}")


def _said(ended: list[ranks.Ended]) -> list[list[dict[str, Any]]]:
    """What each rank said, where all ended well."""
    assert [each.code for each in ended] == [0] * len(ended), ranks.shown(ended)
    return [
        [json.loads(line) for line in each.output.splitlines() if line.startswith("{")]
        for each in ended
    ]


def _run(
    scenario: str, size: int, env: Mapping[str, str] | None = None
) -> list[list[dict[str, Any]]]:
    """`-I -S`: without the site's packages, so that nothing but the standard library is there."""
    argv = ["-I", "-S", str(WORKER), str(SOURCES), scenario]
    return _said(ranks.run(size, argv, env=env, timeout_s=90))


def test_the_core_takes_the_sizes_that_settings_take_and_no_others(core: ctypes.CDLL) -> None:
    """The core refuses without a name, so what a person may set is refused before."""
    for slot, chunk, spin_s in itertools.product(
        (4096, 8192, 10_000, 1 << 20), (64, 4096, 4097, 8192, 100_000, 102_400),
        (-0.1, 0.0, 20e-6, math.nextafter(1, 0), 1.0, math.nan),
    ):  # fmt: skip
        try:
            Tuning(slot_bytes=slot, chunk_bytes=chunk, spin_s=spin_s)
            takes = True
        except SettingsError:
            takes = False
        assert _is_taken(core, slot, chunk, spin_s) == takes, (slot, chunk, spin_s)


def _is_taken(core: ctypes.CDLL, slot: int, chunk: int, spin_s: float) -> bool:
    """By the core, of a group of one rank."""
    tuning = raw_tuning(Tuning())
    tuning.slot_bytes, tuning.chunk_bytes, tuning.spin_s = slot, chunk, spin_s
    nodes, handle = ctypes.c_uint32(0), ctypes.c_void_p()
    layout = abi.McLayout(
        abi=abi.ABI, rank=0, size=1, node_of=ctypes.addressof(nodes), segment_fd=-1,
        tuning=tuning,
    )  # fmt: skip
    code = core.mc_create(abi.at(layout), 1.0, ctypes.byref(handle), None)
    if code:
        assert Code(code) is Code.EINVAL
        return False
    core.mc_close(handle)
    return True


@pytest.mark.usefixtures("core")
def test_ranks_without_torch_or_numpy_agree_on_the_bits_of_every_verb_type_and_operation() -> None:
    lasts = [words[-1] for words in _run("agree", 3)]
    assert all(words["modules"] == [] and words["checks"] > 200 for words in lasts)
    assert {words["digest"] for words in lasts} == {DIGEST}


def test_a_rank_without_a_core_ends_every_rank_and_says_why_and_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "core.so"
    path.write_text("text")
    ended = ranks.run(
        2, ["-I", "-S", str(WORKER), str(SOURCES), "forked"], timeout_s=60,
        each_env=[{}, {"COLLECTIVES_CORE": str(path)}],
    )  # fmt: skip
    for each in ended:
        *_, error, fix = each.output.splitlines()
        assert each.code == 1 and fix == FIX, each
        assert "CoreError: group 'world': rank 1 cannot take part: the compiled core " in error
        assert f"{path} cannot be loaded: " in error


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_core_of_another_interface_is_refused_and_both_are_named(tmp_path: Path) -> None:
    path = tmp_path / "core.so"
    (tmp_path / "core.c").write_text("unsigned mc_abi(void) { return 7; }")
    compiling = ["cc", "-shared", "-fPIC", "-o", path, tmp_path / "core.c"]
    subprocess.run(compiling, check=True, timeout=60)
    with pytest.raises(CoreError, match=f"{path} has interface 7, and {abi.ABI} is due"):
        library.load(str(path))


@pytest.mark.usefixtures("core")
def test_sub_groups_registered_memory_and_messages_work_without_torch() -> None:
    for words in _run("groups", 3):
        assert words[-1] == {"rank": words[-1]["rank"], "done": True}
        assert any("refused" in each for each in words) and not any("error" in e for e in words)


@pytest.mark.usefixtures("core")
@pytest.mark.promise("F40", "F42")
def test_each_fault_is_told_on_all_ranks_with_the_rank_that_caused_it(
    tmp_path: Path,
) -> None:
    env = {"MARK": str(tmp_path / "mark"), "COLLECTIVES_FLIGHT_DIR": str(tmp_path / "flight")}
    said = _run("faults", 3, env)
    for rank, words in enumerate(said):
        errors = [(each["error"], each["ranks"]) for each in words if "error" in each]
        assert errors[:2] == [("UsageError", []), ("UsageError", [])]
        assert errors[2][0] == errors[3][0] == "MismatchError" and errors[2] == errors[3]
        assert ("CollectiveTimeout", [2]) in errors
        assert "AbortedError" in [kind for kind, _ in errors]
        assert (("PeerError", [0]) in errors) == (rank > 0)
        assert max(each.get("took_s", 0) for each in words) < 20
    logs = sorted(os.listdir(tmp_path / "flight"))
    assert logs == [f"flight-world-rank{rank}.json" for rank in range(3)]
    log = json.loads((tmp_path / "flight" / logs[0]).read_text())
    assert log["schema"] == 1 and log["operations"] and log["error"]["kind"]


@pytest.mark.usefixtures("core")
def test_groups_without_a_failure_leave_as_many_records_as_are_asked_for(tmp_path: Path) -> None:
    env = {"COLLECTIVES_RECORDS": "200", "COLLECTIVES_FLIGHT_DIR": str(tmp_path)}
    _run("agree", 2, env)
    logs = sorted(tmp_path.iterdir())
    assert [log.name for log in logs] == [f"flight-world-rank{rank}.json" for rank in range(2)]
    log = json.loads(logs[0].read_text())
    numbers = [one["seq"] for one in log["operations"]]
    assert log["error"] is None
    assert numbers == list(range(numbers[-1] - 199, numbers[-1] + 1))
    assert numbers[0] > 1  # the oldest are gone


@pytest.mark.usefixtures("core")
@pytest.mark.promise("F41")
def test_a_killed_rank_is_named_by_the_survivors() -> None:
    argv = ["-I", "-S", str(WORKER), str(SOURCES), "dies"]
    with ranks.started(3, argv) as job:
        job.wait_for("ready", timeout_s=60)
        job.kill(1)
        ended = job.wait(60)
    assert ended[1].code == -9
    for words in _said([ended[0], ended[2]]):
        assert (words[-1]["error"], words[-1]["ranks"]) == ("PeerError", [1])


@pytest.mark.usefixtures("core")
def test_a_forked_child_is_told_and_does_no_harm() -> None:
    assert [words[-1]["child"] for words in _run("forked", 2)] == [7, 7]


@pytest.mark.usefixtures("core")
def test_an_argument_that_is_no_number_is_refused_and_the_group_goes_on() -> None:
    told = ["TypeError"] * 3 + ["OverflowError"] * 2 + ["UsageError"] * 3
    assert [words[-1]["told"] for words in _run("odd", 2)] == [told, told]


@pytest.mark.usefixtures("core")
def test_one_rank_alone_is_refused_what_does_not_fit_and_its_bytes_are_counted() -> None:
    (((said,)),) = _run("alone", 1)
    assert (said["out"], said["bytes"]) == ("1234", 4)


@pytest.mark.usefixtures("core")
def test_blocks_that_cannot_be_are_refused_and_the_group_goes_on() -> None:
    told = ["not a row's verb", "not the root", "none for a rank", "too few"]
    for words in _run("blocks", 2):
        assert (words[-1]["told"], words[-1]["row"]) == (told, [0, 1])


@pytest.mark.usefixtures("core")
def test_nothing_is_left_after_many_worlds() -> None:
    files = set(os.listdir("/dev/shm"))
    for words in _run("again", 2):
        assert words[-1]["after"] == words[-1]["before"]
    # a file of another program that lives for a moment is no leftover of these ranks
    left = set(os.listdir("/dev/shm")) - files
    end = time.monotonic() + 20
    while any(name.startswith("muster") for name in left) and time.monotonic() < end:
        time.sleep(0.05)
        left &= set(os.listdir("/dev/shm"))
    assert not [name for name in left if name.startswith("muster")]


@pytest.mark.usefixtures("core")
def test_a_variable_without_effect_is_named_once_with_the_near_one_or_its_successor() -> None:
    ended = ranks.run(
        2, ["-I", "-S", str(WORKER), str(SOURCES), "forked"],
        env={"COLLECTIVES_CHUNK_BYTE": "4096", "SMDATAPARALLEL_USE_SINGLENODE": "1",
             "COLLECTIVES_PURE": "1"},
        each_env=[{}, {"COLLECTIVES_LEADER_BYTES": "4096"}], timeout_s=60,
    )  # fmt: skip
    _said(ended)
    both = "".join(each.output for each in ended)
    assert both.count("COLLECTIVES_CHUNK_BYTE is no variable") == 1
    assert both.count("did you mean COLLECTIVES_CHUNK_BYTES?") == 1
    assert both.count("SMDATAPARALLEL_USE_SINGLENODE: accepted") == 1
    assert both.count("COLLECTIVES_PURE has no effect any more: ") == 1
    # rank 0's sizes count, and who had others says so once
    assert both.count("rank 1 had other sizes than rank 0") == 1
    assert "COLLECTIVES_LEADER_BYTES is 262144 and not 4096" in ended[1].output


def test_missing_ranks_are_named_before_there_is_a_group() -> None:
    """Ranks 1 and 3 never start."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from muster_collectives.core import init\n"
        "init(timeout_s=1.5)"
    )
    argv = ["-I", "-S", "-c", code, str(SOURCES)]
    each = [{"RANK": "0"}, {"RANK": "2"}]
    ended = ranks.run(2, argv, env={"WORLD_SIZE": "4"}, each_env=each, timeout_s=60)
    for one in ended:
        assert one.code == 1
        assert "CollectiveTimeout: group 'world', rank" in one.output
        assert "ranks 1 and 3 have not come" in one.output, one.output


# --- the store


@pytest.fixture
def store() -> Iterator[tuple[Rendezvous, int, bytes]]:
    port = free_port()
    secret = secret_of(port, 4, "run", b"")
    before = threading.active_count()
    found = join("127.0.0.1", port, 0, 4, secret=secret, timeout_s=20)
    yield found, port, secret
    found.close()
    found.close()
    assert threading.active_count() == before


def _port_of(store: Rendezvous, port: int) -> int:
    """The one it took: another program may have been faster."""
    for number in range(port, port + 8):
        with socket.socket() as sock:
            sock.settimeout(5)
            if sock.connect_ex(("127.0.0.1", number)) == 0 and sock.recv(4) == PROTOCOL.magic:
                return number
    raise AssertionError("it listens nowhere")


def test_the_store_survives_garbage_half_frames_and_strangers(
    store: tuple[Rendezvous, int, bytes],
) -> None:
    own, port, secret = store
    at = _port_of(own, port)
    attacks = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 4096,
        PROTOCOL.answer(b"another key", b"s" * 32, b"c" * 32, 1, 0),
        PROTOCOL.answer(secret, b"another nonce".ljust(32), b"c" * 32, 1, 0),
        PROTOCOL.answer(secret, b"s" * 32, b"c" * 32, 1, 0)[:-1],  # never whole
        PROTOCOL.header(1, 99, 1 << 40, 900),
        b"",
    ]
    for attack in attacks:
        with socket.create_connection(("127.0.0.1", at), 5) as sock:
            sock.sendall(attack)
    half = socket.create_connection(("127.0.0.1", at), 5)
    half.sendall(PROTOCOL.magic)
    own.set("key", b"value")
    other = join("127.0.0.1", port, 1, 4, secret=secret, timeout_s=20)
    assert other.get("key", 5.0) == b"value"
    half.close()
    # a rank may be there once, and a wrong secret never
    for rank, wrong in ((1, secret), (2, b"other" * 8)):
        with pytest.raises(RendezvousError, match="does not find rank 0's store"):
            join("127.0.0.1", port, rank, 4, secret=wrong, timeout_s=0.5)
    other.close()
    assert own.get("key", 1.0) == b"value"


def test_a_key_is_waited_for_until_it_is_there_or_the_deadline(
    store: tuple[Rendezvous, int, bytes],
) -> None:
    own, port, secret = store
    other = join("127.0.0.1", port, 3, 4, secret=secret, timeout_s=20)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(other.get("later", 30.0)))
    thread.start()
    own.set("later", b"1")
    thread.join(30)
    assert found == [b"1"]
    with pytest.raises(TimeoutError, match="never is not there"):
        other.get("never", 0.1)
    with pytest.raises(ValueError, match="too long"):
        other.set("big", b"x" * (2 << 20))
    assert other.get("later", 0.0) == b"1"  # the connection is as good as before
    own.close()
    with pytest.raises(CollectiveError, match="store cannot be reached"):
        other.get("later", 5.0)
    other.close()


def test_closing_the_store_never_raises_whatever_is_broken() -> None:
    port = free_port()
    found = join("127.0.0.1", port, 0, 2, secret=b"s", timeout_s=20)
    service = found._service
    assert service is not None
    service._wake_read.close()  # so that waking it is a broken pipe
    found.close()
    found.close()


def test_the_wrappers_run_their_arguments_in_their_place() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from muster_collectives.wrappers import smddprun, smddpmprun\n"
        "name = sys.argv.pop(1)\n"
        "sys.exit({'smddprun': smddprun, 'smddpmprun': smddpmprun}[name]())"
    )
    for name, options, program, expected in (
        ("smddprun", [], ["sh", "-c", "echo run; exit 5"], 5),
        ("smddpmprun", ["-i", "ml.p4d.24xlarge", "--allow-bypass"], ["sh", "-c", "exit 6"], 6),
        ("smddprun", [], [], 2),
        ("smddprun", [], ["there-is-no-such-program"], 127),
    ):
        argv = ["-I", "-S", "-c", code, str(SOURCES), name, *options, *program]
        [ended] = ranks.run(1, argv, timeout_s=30)
        assert ended.code == expected, ended


@pytest.mark.usefixtures("core")
def test_a_group_finds_shared_memory_in_dev_shm_where_proc_does_not_help() -> None:
    """The second rung: no memfd (as where /proc/PID/fd cannot be opened)."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from array import array\n"
        "from muster_collectives.binding import shared_memory\n"
        "from muster_collectives.core import init\n"
        "accept = shared_memory.accept\n"
        "def refuse(means, words):\n"
        "    if means.value == 'memfd': raise PermissionError(13, 'Permission denied')\n"
        "    return accept(means, words)\n"
        "shared_memory.accept = refuse\n"
        "with init(timeout_s=30) as world:\n"
        "    data = array('f', [1.0] * 9)\n"
        "    world.all_reduce(data)\n"
        "    region = world.allocate(4096)\n"
        "    region.release()\n"
        "    print(data[8], len(set(world.nodes)), world.why[1 - world.rank])\n"
    )
    ended = ranks.run(2, ["-I", "-S", "-c", code, str(SOURCES)], timeout_s=60)
    for each in ended:
        assert each.code == 0 and each.output.startswith("2.0 1 shared memory (file"), ended


def test_scratch_folder_of_the_job_is_gone_afterwards() -> None:
    before = set(os.listdir(tempfile.gettempdir()))
    ranks.run(1, ["-c", "pass"], timeout_s=30)
    left = set(os.listdir(tempfile.gettempdir())) - before
    assert not [name for name in left if name.startswith("ranks-")]
