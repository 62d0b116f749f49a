"""Which server owns what, who waits for whom, and the variables (pure parts)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_parameter_server import adam, adamw, sgd
from muster_parameter_server.clocks import Clocks, Rounds
from muster_parameter_server.errors import AgreementError, SettingsError
from muster_parameter_server.layout import TensorSpec, segments
from muster_parameter_server.settings import Address, parse_addresses, read_server, read_worker
from muster_parameter_server.wire.frames import DTYPES

SPECS = st.builds(
    TensorSpec,
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 60), max_size=3).map(tuple),
    st.integers(0, 2),
)


@given(st.lists(SPECS, max_size=12), st.integers(1, 7))
def test_every_element_has_one_server_and_bytes_are_balanced(
    specs: list[TensorSpec], servers: int
) -> None:
    plan = segments(specs, servers)
    assert len(plan) == servers
    owned: dict[int, list[tuple[int, int]]] = {}
    for server in plan:
        for segment in server:
            for piece in segment.pieces:
                spec = specs[piece.tensor]
                assert (spec.dtype, spec.group) == (segment.dtype.name, segment.group)
                owned.setdefault(piece.tensor, []).append((piece.start, piece.stop))
    for number, spec in enumerate(specs):
        spans = sorted(owned.get(number, []))
        ends = [0, *(stop for _, stop in spans)]
        assert [start for start, _ in spans] == ends[:-1] and ends[-1] == spec.elements
        assert all(start < stop for start, stop in spans)
    sizes = [sum(one.elements * one.dtype.item_bytes for one in server) for server in plan]
    assert max(sizes) - min(sizes) <= 2 * 8


def test_one_huge_tensor_is_shared_by_all_servers() -> None:
    plan = segments([TensorSpec("float32", (1 << 24,))], 2)
    assert [server[0].elements for server in plan] == [1 << 23, 1 << 23]


def _spread(clocks: Clocks) -> int:
    return max(clocks.of) - min(clocks.of)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_staleness_is_never_exceeded_and_nobody_waits_forever(staleness: int) -> None:
    source = random.Random(staleness)
    clocks = Clocks(4, staleness)
    for _ in range(3000):
        able = [rank for rank in range(4) if not clocks.behind(rank)]
        assert able  # the slowest may always go on
        clocks.of[source.choice(able)] += 1
        assert _spread(clocks) <= staleness + 1  # a push was applied; its worker now waits


def test_those_who_are_waited_for_are_named() -> None:
    clocks = Clocks(3, 1)
    clocks.of = [2, 1, 0]
    assert clocks.behind(0) == [2] and not clocks.behind(1) and not clocks.behind(2)
    clocks.gone.add(2)
    assert not clocks.behind(0)


def test_without_a_bound_everybody_goes() -> None:
    clocks = Clocks(2, None)
    clocks.of[0] += 1000
    assert not clocks.behind(0) and _spread(clocks) == 1000


def test_a_step_is_complete_when_all_have_come() -> None:
    rounds = Rounds(3)
    assert not rounds.bring(2, "push of step 0", (0.1,))
    assert not rounds.bring(0, "push of step 0", (0.1,))
    assert rounds.missing() == [1]
    assert rounds.bring(1, "push of step 0", (0.1,))
    rounds.clear()
    assert rounds.missing() == [0, 1, 2]


@pytest.mark.parametrize(("what", "part"), [("push of step 1", 0.1), ("push of step 0", 0.2)])
def test_who_brings_something_else_is_named_with_the_other(what: str, part: float) -> None:
    rounds = Rounds(3)
    rounds.bring(2, "push of step 0", 0.1)
    with pytest.raises(AgreementError, match=r"rank 0 .* but rank 2"):
        rounds.bring(0, what, part)


GOOD = {
    "PARAMETER_SERVER_ADDRESSES": "10.0.0.1:8001,[fe80::1]:8002,algo-1:80",
    "PARAMETER_SERVER_KEY": "ab" * 16,
    "PARAMETER_SERVER_INDEX": "1",
    "PARAMETER_SERVER_WORKERS": "3",
    "RANK": "2",
    "WORLD_SIZE": "3",
}


def test_the_variables_are_read() -> None:
    addresses = (Address("10.0.0.1", 8001), Address("fe80::1", 8002), Address("algo-1", 80))
    assert read_server(GOOD) == (addresses, b"\xab" * 16, 1, 3)
    assert read_server(GOOD).address == addresses[1]
    assert read_worker(GOOD) == (addresses, b"\xab" * 16, 2, 3)
    assert ",".join(map(str, addresses)) == GOOD["PARAMETER_SERVER_ADDRESSES"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PARAMETER_SERVER_ADDRESSES", ""), ("PARAMETER_SERVER_ADDRESSES", "10.0.0.1"),
        ("PARAMETER_SERVER_ADDRESSES", "a:1,a:1"), ("PARAMETER_SERVER_ADDRESSES", "a:65536"),
        ("PARAMETER_SERVER_ADDRESSES", ":80"), ("PARAMETER_SERVER_ADDRESSES", "a:1,"),
        ("PARAMETER_SERVER_KEY", "secret"), ("PARAMETER_SERVER_KEY", "abcd"),
        ("PARAMETER_SERVER_INDEX", "3"), ("PARAMETER_SERVER_INDEX", "-1"),
        ("PARAMETER_SERVER_WORKERS", "0"), ("PARAMETER_SERVER_WORKERS", "²"),
    ],
)  # fmt: skip
def test_a_bad_variable_is_named_without_the_key(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name) as told:
        read_server({**GOOD, name: value})
    assert name != "PARAMETER_SERVER_KEY" or not value or value not in str(told.value)


@pytest.mark.promise("S10")
def test_a_server_without_key_listens_on_loopback_alone() -> None:
    bare = {name: value for name, value in GOOD.items() if name != "PARAMETER_SERVER_KEY"}
    with pytest.raises(SettingsError, match="PARAMETER_SERVER_KEY is not set"):
        read_server(bare)
    for host in ("127.0.0.1", "127.8.8.8", "[::1]", "localhost"):
        mine = {"PARAMETER_SERVER_ADDRESSES": f"{host}:1", "PARAMETER_SERVER_INDEX": "0"}
        assert read_server({**bare, **mine}).key == b""


@pytest.mark.promise("S10")
def test_a_worker_without_key_trusts_servers_on_loopback_alone() -> None:
    bare = {name: value for name, value in GOOD.items() if name != "PARAMETER_SERVER_KEY"}
    with pytest.raises(SettingsError, match="KEY is not set, and rank 2 would trust server 0"):
        read_worker(bare)
    near = {"PARAMETER_SERVER_ADDRESSES": "127.0.0.1:1,[::1]:2"}
    assert read_worker({**bare, **near}).key == b""
    far = {"PARAMETER_SERVER_ADDRESSES": "127.0.0.1:1,10.0.0.1:2"}
    with pytest.raises(SettingsError, match=r"server 1 at 10.0.0.1:2"):
        read_worker({**bare, **far})


@pytest.mark.parametrize(("name", "value"), [("RANK", "3"), ("RANK", ""), ("WORLD_SIZE", "0")])
def test_a_worker_needs_its_rank(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_worker({**GOOD, name: value})


def test_ipv6_is_written_as_it_is_read() -> None:
    assert str(parse_addresses("[::1]:5", "X")[0]) == "[::1]:5"


@pytest.mark.parametrize(
    "make",
    [
        lambda: sgd(-1), lambda: sgd(float("nan")), lambda: sgd(0.1, nesterov=True),
        lambda: sgd(0.1, 0.9, 0.1, nesterov=True), lambda: adam(betas=(1.0, 0.9)),
        lambda: adamw(eps=-1), lambda: sgd("fast"),
    ],
)  # fmt: skip
def test_an_optimizer_that_makes_no_sense_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(SettingsError):
        make()
