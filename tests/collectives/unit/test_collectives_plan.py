"""Plans of the collectives from plain values: variables, sizes, nodes, and what is said."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "toolkit" / "parallel" / "src"))

from muster_collectives.bootstrap import node_info as c
from muster_collectives.runtime import environment, machine, variables
from muster_collectives.runtime.errors import CoreError, SettingsError
from muster_collectives.runtime.layout import ShmMethod, numbered
from muster_collectives.runtime.settings import from_variables
from muster_collectives.runtime.tuning import (
    Tuning,
    decode,
    defaults,
    differences,
    encode,
    parse_bytes,
    read_tuning,
)
from muster_collectives.runtime.types import Wire
from muster_collectives.wrappers import program_of

MIB = 1 << 20


def read(**given: str) -> variables.Variables:
    return variables.read({f"COLLECTIVES_{name}": value for name, value in given.items()})


# --- variables and sizes


def test_a_misspelt_variable_is_named_with_the_near_one_and_others_variables_are_not() -> None:
    found = variables.read(
        {"COLLECTIVES_CHUNK_BYTE": "1", "COLLECTIVES_WIRE": " bf16 ", "PATH": "/", "MUSTER_X": "1"}
    )
    [note] = found.notes
    assert "COLLECTIVES_CHUNK_BYTE " in note and "did you mean COLLECTIVES_CHUNK_BYTES?" in note
    assert found.values == {"COLLECTIVES_WIRE": "bf16"}


def test_a_removed_variable_is_answered_with_what_to_use_instead() -> None:
    found = variables.read({"COLLECTIVES_ERROR_FEEDBACK": "1"})
    [note] = found.notes
    assert note.startswith("COLLECTIVES_ERROR_FEEDBACK has no effect any more: ")
    assert "Int8State and int8_hook of muster_collectives.torch.hooks" in note
    assert not found.values


def test_the_vendor_s_name_of_the_wire_is_taken_unless_ours_is_set() -> None:
    assert variables.read({"SMDDP_INTER_DTYPE": "fp16"}).get("WIRE") == "fp16"
    both = variables.read({"SMDDP_INTER_DTYPE": "fp16", "COLLECTIVES_WIRE": "int8"})
    assert both.get("WIRE") == "int8"
    name = "SMDATAPARALLEL_SERVER_PORT"
    assert name in variables.read({name: ""}).notes[0]


def test_every_size_and_switch_can_be_set() -> None:
    tuning = read_tuning(
        read(
            ONE_SHOT_BYTES="64KiB", CHUNK_BYTES="65536", SLOT_BYTES="2M", DIRECT_BYTES="0",
            ADOPT_BYTES="2", LEADER_BYTES="1", SEGMENT_BYTES="1MiB", EAGER_BYTES="9000",
            STREAMS="8", WIRE="int8", CHECKED="yes", SPIN_US="5",
        ),
        Tuning(),
    )  # fmt: skip
    assert tuning == Tuning(2 * MIB, 65536, 65536, 0, 2, 1, MIB, 9000, 8, Wire.I8, True, 5 / 1e6)
    assert read_tuning(read(), Tuning()) == Tuning()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"CHUNK_BYTES": "many"}, "COLLECTIVES_CHUNK_BYTES"),
        ({"CHUNK_BYTES": "-1"}, "COLLECTIVES_CHUNK_BYTES"),
        ({"CHUNK_BYTES": "2MiB"}, "COLLECTIVES_CHUNK_BYTES"),
        ({"CHUNK_BYTES": "64"}, "COLLECTIVES_CHUNK_BYTES"),
        ({"CHUNK_BYTES": "100000"}, "COLLECTIVES_CHUNK_BYTES=100000 is no multiple of 4096"),
        ({"SLOT_BYTES": "4097"}, "COLLECTIVES_SLOT_BYTES"),
        ({"SEGMENT_BYTES": "1"}, "COLLECTIVES_SEGMENT_BYTES"),
        ({"STREAMS": "0"}, "COLLECTIVES_STREAMS"),
        ({"STREAMS": "65"}, "COLLECTIVES_STREAMS"),
        ({"WIRE": "fp8"}, "COLLECTIVES_WIRE"),
        ({"CHECKED": "maybe"}, "COLLECTIVES_CHECKED"),
        ({"GLOO": "maybe"}, "COLLECTIVES_GLOO"),
        ({"ISA": "avx51"}, "COLLECTIVES_ISA"),
        ({"ASYNC": "thread"}, "COLLECTIVES_ASYNC"),
        ({"SPIN_US": "nan"}, "COLLECTIVES_SPIN_US"),
        ({"SPIN_US": "1000000"}, "COLLECTIVES_SPIN_US"),
        ({"SPIN_S": "1"}, "COLLECTIVES_SPIN_S"),
        ({"TIMEOUT_S": "soon"}, "COLLECTIVES_TIMEOUT_S"),
        ({"ADDRESS": "node1"}, "COLLECTIVES_ADDRESS"),
        ({"KEY": "secret"}, "COLLECTIVES_KEY"),
        ({"KEY": "abcd"}, "COLLECTIVES_KEY"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_name(
    given: dict[str, str], name: str
) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        from_variables(read(**given), Tuning())
    assert "Fix: " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_smaller_slot_alone_makes_smaller_chunks() -> None:
    assert read_tuning(read(SLOT_BYTES="65536"), Tuning()).chunk_bytes == 65536


def test_the_chunk_follows_the_cache_and_the_spin_the_processors() -> None:
    assert defaults(32 * MIB, spins=True).chunk_bytes == MIB
    assert defaults(8 * MIB, spins=True).chunk_bytes == MIB // 2
    assert defaults(0, spins=False).spin_s == 0


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64k", 65536), ("1 MiB".replace(" ", ""), MIB), ("2GB", 2 << 30)]
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert parse_bytes(text, "X") == size


def test_tuning_survives_the_store_and_differences_are_named() -> None:
    one = Tuning(wire=Wire.BF16, checked=True)
    assert decode(json.loads(json.dumps(encode(one)))) == one
    said = differences(Tuning(leader_bytes=1), Tuning())
    assert said == "COLLECTIVES_LEADER_BYTES is 262144 and not 1"


def test_a_quota_of_processors_is_read() -> None:
    assert machine.quota_of("150000 100000") == 1.5
    assert machine.quota_of("max 100000") == machine.quota_of("") == 0
    assert 1 <= machine.processors() <= (os.cpu_count() or 1)


# --- who is where


def info(**given: object) -> c.NodeInfo:
    base = c.NodeInfo(
        abi=1, boot="b", pid_namespace="p", net_namespace="n", shm="s", shm_bytes=1 << 34,
        memfd=True, node="", processors=4, hosts=("127.0.0.1", "10.0.0.1"), port=7000, endpoint=3,
        is_spin_given=False, is_slot_given=False, tuning=Tuning(),
    )  # fmt: skip
    return replace(base, **given)  # type: ignore[arg-type]


def members(*infos: c.NodeInfo) -> list[tuple[int, ...]]:
    return [each.members for each in c.plan(infos).probe_groups]


def test_ranks_of_one_machine_are_candidates_whatever_their_order() -> None:
    a, b = info(), info(boot="other")
    assert members(a, b, a, b) == [(0, 2), (1, 3)]
    assert members(info(node="x"), info(node="y"), info(node="x")) == [(0, 2), (1,)]
    assert members(info(boot=""), info(boot="")) == [(0,), (1,)]


def test_one_way_to_share_is_enough_to_be_candidates() -> None:
    # namespaces of their own and /dev/shm in common, or the other way about, or in a chain
    assert members(info(pid_namespace="1"), info(pid_namespace="2")) == [(0, 1)]
    assert members(info(shm="1"), info(shm="2")) == [(0, 1)]
    apart = info(pid_namespace="1", shm="1"), info(pid_namespace="2", shm="2")
    assert members(*apart) == [(0,), (1,)]
    assert members(*apart, info(pid_namespace="1", shm="2")) == [(0, 1, 2)]
    assert members(info(memfd=False, shm=""), info(memfd=False, shm="")) == [(0,), (1,)]


def test_the_means_are_tried_from_memfd_to_a_file() -> None:
    plan = c.plan([info(), info()])
    assert plan.probe_groups[0].shm_method == (ShmMethod.MEMFD, ShmMethod.FILE)
    assert c.plan([info(shm=""), info(shm="")]).probe_groups[0].shm_method == (ShmMethod.MEMFD,)
    assert c.plan([info(memfd=False)] * 2).probe_groups[0].shm_method == (ShmMethod.FILE,)
    assert c.plan([info()]).probe_groups[0].shm_method == ()


def test_more_ranks_than_the_core_takes_are_more_than_one_node() -> None:
    assert [len(each) for each in members(*[info()] * 600)] == [256, 256, 88]


def test_rank_0_s_sizes_count_and_who_shares_processors_does_not_spin() -> None:
    sizes = Tuning(chunk_bytes=65536)
    assert c.plan([info(tuning=sizes), info()]).tuning == sizes
    assert c.plan([info(processors=2)] * 3).tuning.spin_s == 0
    assert c.plan([info(processors=2, is_spin_given=True)] * 3).tuning.spin_s > 0
    least = Tuning(chunk_bytes=4096)
    assert c.plan([info(tuning=least)] * 64).tuning.chunk_bytes == 4096
    with pytest.raises(SettingsError, match=r"COLLECTIVES_CHUNK_BYTES(.|\n)*at least 8192"):
        c.plan([info(tuning=least)] * 65)


def test_ten_groups_have_room_in_dev_shm_where_the_slot_is_not_given() -> None:
    def tuning(**given: object) -> Tuning:
        return c.plan([info(memfd=False, **given)] * 8).tuning

    docker = 64 << 20
    assert (tuning(shm_bytes=docker).slot_bytes, tuning(shm_bytes=docker).chunk_bytes) == (
        128 << 10, 128 << 10,
    )  # fmt: skip
    assert tuning() == tuning(shm_bytes=1 << 30) == replace(Tuning(), spin_s=tuning().spin_s)
    assert tuning(shm_bytes=docker, is_slot_given=True).slot_bytes == Tuning().slot_bytes
    assert tuning(shm_bytes=4096).slot_bytes == 16 << 10
    assert tuning(shm_bytes=0) == tuning(), "a tmpfs without a size says 0"
    # a memfd is used as it is touched, and needs no room there
    assert c.plan([info(shm_bytes=docker)] * 8).tuning.slot_bytes == Tuning().slot_bytes


def test_cores_of_two_interfaces_make_no_group_and_the_ranks_are_named() -> None:
    with pytest.raises(CoreError, match="core of rank 1 has another interface than") as found:
        c.plan([info(abi=1), info(abi=2)])
    assert found.value.ranks == (1,) and "install the same" in found.value.fix


def test_loopback_addresses_are_used_within_one_network_alone() -> None:
    def hosts(*infos: c.NodeInfo) -> list[str]:
        found = c.decode_plan(c.encode_plan(c.plan(infos))).addresses
        return [found[rank].host for rank in range(len(infos))]

    assert hosts(info(), info()) == ["127.0.0.1"] * 2
    assert hosts(info(), info(boot="other")) == ["10.0.0.1"] * 2
    assert hosts(info(), info(net_namespace="other")) == ["10.0.0.1"] * 2


def test_who_does_not_prove_it_is_a_node_of_its_own() -> None:
    probe_groups = (c.ProbeGroup(0, (0, 2, 3), (ShmMethod.MEMFD,)), c.ProbeGroup(1, (1,), ()))

    def nodes(*shared: bool) -> tuple[int, ...]:
        results = [c.ProbeResult(ShmMethod.MEMFD, each, "") for each in shared]
        return numbered(c.nodes_of(probe_groups, results))

    assert nodes(True, False, True, True) == (0, 1, 0, 0)
    assert nodes(True, False, False, True) == (0, 1, 2, 0)
    assert nodes(False, False, True, True) == (0, 1, 2, 3)


def test_the_way_that_brings_more_ranks_together_wins() -> None:
    probe_groups = c.ProbeGroup(0, (0, 1, 2), (ShmMethod.MEMFD, ShmMethod.FILE))

    def results(shm_method: ShmMethod, *shared: bool) -> list[c.ProbeResult]:
        return [c.ProbeResult(shm_method, each, "") for each in shared]

    first = results(ShmMethod.MEMFD, True, True, False)
    for second, wins in (
        (results(ShmMethod.FILE, True, True, True), True),
        (results(ShmMethod.FILE, True, False, True), False),
        (results(ShmMethod.FILE, False, True, True), False),
    ):
        assert (c.better(probe_groups, first, second) is second) == wins


def test_claims_and_plans_survive_the_store() -> None:
    infos = [info(), info(node="x", hosts=("::1",))]
    plan = c.plan(infos)
    assert c.decode_plan(json.loads(json.dumps(c.encode_plan(plan)))) == plan
    for each in infos:
        assert c.decode_node_info(json.loads(json.dumps(c.encode_node_info(each)))) == each


# --- the launcher's variables


def test_torchrun_and_open_mpi_are_read() -> None:
    torchrun = {
        "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29501",
        "TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    assert environment.read(torchrun) == environment.Where(1, 2, "h", 29501, "r", True)
    mpi = {
        "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job@1",
    }  # fmt: skip
    found = environment.read(mpi)
    assert (found.rank, found.size, found.host, found.run) == (0, 2, "127.0.0.1", "job@1")
    assert environment.read(mpi) == found  # the same port on every rank
    assert environment.read({}).size == 1


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"RANK": "0"}, "RANK is set"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "RANK='2'"),
        ({"RANK": "0", "WORLD_SIZE": "x"}, "WORLD_SIZE='x'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "0"}, "MASTER_PORT"),
    ],
)
def test_what_a_launcher_left_out_is_named(given: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        environment.read(given)


def test_the_wrappers_drop_their_own_options_and_nothing_of_the_program() -> None:
    for given, left in (
        (["python", "-i", "x.py"], ["python", "-i", "x.py"]),
        (["-i", "ml.p4d.24xlarge", "--allow-bypass", "python", "t.py", "-i"],
         ["python", "t.py", "-i"]),
        (["--", "-odd"], ["-odd"]),
        (["-i"], []),
    ):  # fmt: skip
        assert program_of(given) == left
