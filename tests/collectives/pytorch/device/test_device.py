"""The path of CUDA tensors: plans, and compositions over gloo groups. On a GPU: collectives/gpu."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.collectives.support.torch_ranks import TEST_S, Job, names_of, run_checks

if TYPE_CHECKING:
    from muster_collectives.torch.compress.exchange import BlockWire

pytestmark = [pytest.mark.torch, pytest.mark.timeout(TEST_S)]
SCRIPT = Path(__file__).with_name("ranks_device_numbers.py")
CHECKOUT = Path(__file__).resolve().parents[4]
NAMES = [*names_of(SCRIPT.with_name("ranks_device.py")), *names_of(SCRIPT)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_checks(SCRIPT, 4, tmp_path_factory.mktemp("device"))


@pytest.mark.parametrize("name", ["start", *NAMES, "stop"])
def test_compositions(job: Job, name: str) -> None:
    job.require(name)


def test_layouts_are_planned_from_nodes_and_never_from_rank_order() -> None:
    from muster_collectives.torch.cuda.groups import plan_layout

    turns = plan_layout(3, [7, 4, 7, 4])
    assert turns.members == ((0, 2), (1, 3)) and (turns.node, turns.local) == (1, 1)
    assert turns.two_level and not turns.node_major
    assert turns.by_node == (0, 2, 1, 3)
    assert plan_layout(0, [0, 0, 1, 1]).node_major
    for flat in ([0, 0, 0], [0, 1, 2], [0, 0, 1]):  # one node, one rank each, uneven
        assert not plan_layout(0, flat).two_level
    with pytest.raises(ValueError, match="rank 4"):
        plan_layout(4, [0, 0])


def test_settings_come_from_the_environment_and_name_the_variable() -> None:
    from muster_collectives.runtime.errors import SettingsError
    from muster_collectives.torch.cuda.settings import DeviceSettings, read_settings

    assert read_settings({}) == DeviceSettings()
    read = read_settings(
        {
            "COLLECTIVES_DEVICE_ALL_REDUCE": "hierarchical",
            "COLLECTIVES_DEVICE_LEAST_BYTES": "64K",
            "SMDDP_INTER_DTYPE": "BF16",
        },
        60.0,
    )
    assert (read.all_reduce, read.least_bytes, read.wire) == ("hierarchical", 65536, "bf16")
    assert read.timeout_s == 60.0
    assert read_settings({"COLLECTIVES_WIRE": "bfloat16"}).wire == "bf16"  # as the core reads it
    for name, value in (
        ("COLLECTIVES_DEVICE_SEGMENT_BYTES", "many"),
        ("COLLECTIVES_DEVICE_SEGMENT_BYTES", "4095"),
        ("COLLECTIVES_DEVICE_ALL_GATHER", "host"),
        ("COLLECTIVES_DEVICE_ALL_REDUCE", "hierarchic"),
        ("COLLECTIVES_WIRE", "fp8"),
    ):
        with pytest.raises(SettingsError, match=f"^{name}='{value}'") as caught:
            read_settings({name: value})
        assert "Fix: " in str(caught.value)
    with pytest.raises(ValueError, match="all_gather is 'host'"):
        DeviceSettings(all_gather="host")


def test_defaults_are_those_that_are_documented_and_those_of_the_core() -> None:
    from muster_collectives.runtime.tuning import parse_bytes
    from muster_collectives.torch.cuda.settings import DeviceSettings

    rows: dict[str, str] = {}
    manual = (CHECKOUT / "docs" / "reference" / "collectives.md").read_text()
    table = manual.partition("| Variable | Default | Meaning |\n| --- | --- | --- |\n")[2]
    for line in table.partition("\n\n")[0].splitlines():
        names, default, _ = [cell.strip() for cell in line.strip("|").split("|")]
        for name in names.split(", "):
            rows[name.strip("`").removeprefix("COLLECTIVES_")] = default
    defaults = DeviceSettings()
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        assert rows[f"DEVICE_{name.upper()}"] == getattr(defaults, name)
    for name in ("least_bytes", "segment_bytes"):
        said = parse_bytes(rows[f"DEVICE_{name.upper()}"].replace(" ", ""), name)
        assert said == getattr(defaults, name)
    assert rows["WIRE"] == defaults.wire


def test_only_what_may_be_reduced_level_by_level_is() -> None:
    import torch
    import torch.distributed as dist

    from muster_collectives.torch.cuda.hierarchy import is_of_levels

    ops = dist.ReduceOp
    floats, whole = torch.ones(3), torch.ones(3, dtype=torch.int32)
    for op in (ops.SUM, ops.MIN, ops.MAX, ops.PRODUCT):
        assert is_of_levels(floats, op) and is_of_levels(whole, op)
        assert is_of_levels(floats, ops(op))  # as it comes out of an options object
    assert is_of_levels(floats, ops.AVG) and is_of_levels(floats.to(torch.complex64), ops.AVG)
    assert not is_of_levels(whole, ops.AVG)  # torch does not divide it; NCCL does
    for factor in (0.5, 1.0):
        assert not is_of_levels(floats, dist._make_nccl_premul_sum(factor))


def test_what_an_average_sums_is_never_larger_than_its_largest_value() -> None:
    import math

    import torch

    from muster_collectives.torch.cuda.groups import factors_of, plan_layout

    half, single = torch.float16, torch.float32
    for locals_ in range(2, 10):
        for nodes in range(2, 10):
            layout = plan_layout(0, [node for node in range(nodes) for _ in range(locals_)])
            assert factors_of(layout, half, False, False) == (1, 1, 1)
            assert factors_of(layout, single, True, False) == (1, 1, layout.size)
            node, rail, divisor = factors_of(layout, half, True, False)
            assert node * locals_ <= 1 and rail * nodes <= 1
            assert node * rail / divisor == 1 / layout.size  # so it is the average
            wire = factors_of(layout, single, True, True)
            assert wire.node == 1 and wire.rail * locals_ <= 1
            for factor in (node, rail, wire.rail):
                assert math.frexp(factor)[0] == 0.5  # no digit of a value changes
            largest = torch.full((locals_, nodes), 65504.0, dtype=half)
            sums = (largest * node).float().sum(0).half()
            mean = ((sums * rail).float().sum().half() / divisor).item()
            assert 65504 * (1 - 3 * 2**-11) <= mean <= 65504  # rounded three times


def test_two_levels_are_chosen_from_where_they_gain() -> None:
    from muster_collectives.torch.cuda.settings import decided

    sizes = (1, 8, 64)
    gains = {"all_reduce": [False, True, True], "all_gather": [True, True, True]}
    ways = {"all_reduce": "hierarchical", "all_gather": "hierarchical"}
    assert decided(gains, sizes) == (ways, 8)
    assert decided({"all_reduce": [True, True, False]}, sizes) == ({"all_reduce": "world"}, 0)


def test_variables_of_the_device_path_are_known_to_the_core() -> None:
    from dataclasses import fields

    from muster_collectives.runtime.variables import KNOWN
    from muster_collectives.torch.cuda.settings import DeviceSettings

    names = {field.name for field in fields(DeviceSettings)} - {"wire", "timeout_s"}
    assert {f"COLLECTIVES_DEVICE_{name.upper()}" for name in names} <= set(KNOWN)


@pytest.mark.parametrize("kernels", [False, True])
def test_int8_blocks_are_off_by_half_a_step_and_show_what_is_not_finite(kernels: bool) -> None:
    import torch

    wire = block_wire(kernels)
    rows = torch.randn(3, 1024, generator=torch.Generator().manual_seed(1))
    rows[0, :256] = 0
    packed = wire.pack(rows)
    assert packed.shape == (3, 4 * 260) and packed.dtype == torch.uint8
    back = wire.unpack(packed, 1024)
    steps = rows.view(3, 4, 256).abs().amax(dim=2) / 127
    assert bool(((back - rows).view(3, 4, 256).abs().amax(dim=2) <= steps / 2 + 1e-7).all())
    assert bool((back[0, :256] == 0).all())
    for bad in (float("inf"), float("nan")):
        rows[1, 300] = bad
        error = torch.zeros_like(rows)
        back = wire.unpack(wire.pack(rows, error), 1024)
        assert bool(back[1, 256:512].isnan().all()) and bool(back[0].isfinite().all())
        assert bool((error[1, 256:512] == 0).all()) and bool(error.isfinite().all())
    with pytest.raises(ValueError, match="pad them"):
        wire.pack(torch.zeros(1, 100))


def test_int8_blocks_of_the_core_and_of_torch_are_the_same_form() -> None:
    """A rank without a core may share a group with ranks that have one."""
    import torch

    ours, plain = block_wire(True), block_wire(False)
    rows = torch.randn(5, 2048, generator=torch.Generator().manual_seed(2)) * 3
    errors = [torch.randn(5, 2048, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    before = errors[0].clone()
    packed = [wire.pack(rows, error) for wire, error in zip((ours, plain), errors, strict=True)]
    steps = (rows + before).view(5, 8, 256).abs().amax(dim=2, keepdim=True) / 127
    for each, error in zip(packed, errors, strict=True):
        assert torch.equal(ours.unpack(each, 2048), plain.unpack(each, 2048))
        back = ours.unpack(each, 2048)
        torch.testing.assert_close(back + error, rows + before)
        assert bool((error.view(5, 8, 256).abs() <= steps / 2 + 1e-6).all())
        torch.testing.assert_close(ours.sum(each, 2048), back.sum(dim=0))
        torch.testing.assert_close(plain.sum(each, 2048), back.sum(dim=0))
    differing = (packed[0] != packed[1]).float().mean()
    assert float(differing) < 0.01  # a value half-way between two steps may go either way
    # what the kernels cannot read goes through torch
    turned = rows.t().contiguous().t()
    assert torch.equal(ours.pack(turned), plain.pack(turned))


def block_wire(kernels: bool) -> BlockWire:
    from muster_collectives.torch.compress import blocks
    from muster_collectives.torch.compress.exchange import BlockWire

    if not kernels:
        return BlockWire(kernels=None)
    found = blocks.of_this_process()
    assert found is not None, "these tests need the compiled core"
    return BlockWire(kernels=found)


@pytest.mark.parametrize("parts", [(0, 512), (512, 512), (512, 100)])
@pytest.mark.parametrize("kernels", [False, True])
def test_a_sum_in_int8_keeps_what_both_roundings_lost(
    kernels: bool, parts: tuple[int, int]
) -> None:
    """Of one rank, so that the sum is the vector: what came out and what is kept make it whole."""
    import torch
    import torch.distributed as dist

    from muster_collectives.torch.compress import exchange

    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=60))
    vector = torch.randn(sum(parts), generator=torch.Generator().manual_seed(4))
    error = torch.full_like(vector, 0.01)
    values = vector.clone()
    exchange.sum_over(alone, 0, 1, values, block_wire(kernels), error, scale=0.5)
    torch.testing.assert_close(values * 2 + error, vector + 0.01)
    assert 0 < float(error.abs().max()) < 0.05


def test_warm_up_and_selection_are_the_same_everywhere() -> None:
    import torch

    from muster_collectives.torch.hooks.topk import WarmUp, largest

    assert [WarmUp(3, (0.5, 0.7, 0.9)).sparsity(step, 0.8) for step in range(4)] == [
        0.5, 0.7, 0.8, 0.8,
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"sparsity 1 "):
        WarmUp(2, (1.0,))
    values = torch.randn(300_000, generator=torch.Generator().manual_seed(3))
    for count in (1, 300, 30_000):
        chosen = largest(values, count)
        assert torch.equal(chosen, largest(values.clone(), count))
        assert 0.7 * count <= len(chosen) <= count and len(set(chosen.tolist())) == len(chosen)
        exact = set(torch.topk(values.abs(), count).indices.tolist())
        assert len(exact & set(chosen.tolist())) >= 0.7 * count
    flat = torch.ones(300_000)  # all the same: no sample can tell them apart
    assert len(largest(flat, 300)) == 300


def test_an_abort_reaches_the_group_that_sums_in_host_memory() -> None:
    from muster_collectives.torch.cuda.groups import InnerGroups, plan_layout
    from muster_collectives.torch.cuda.streams import GroupSum
    from muster_collectives.torch.group_state import Device

    class Inner:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    class Path:
        groups = InnerGroups(plan_layout(0, [0]), Inner())  # type: ignore[arg-type]

    device = Device(None, 0, [0], 1.0, Inner)
    device._path, device._host = Path(), GroupSum(Inner)
    device.abort()  # before the first sum
    device._host.group = host = Inner()
    device.abort()
    assert host.aborted and device._path.groups.world.aborted


class _Together:
    """Stands for NCCL's group: what it was asked, in order."""

    supports_coalescing = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _start_coalescing(self) -> None:
        self.asked.append("start")

    def send(self, tensors: list[object], peer: int, tag: int) -> None:
        self.asked.append("send")

    def recv(self, tensors: list[object], peer: int, tag: int) -> None:
        if peer < 0:
            raise ValueError("no such rank")
        self.asked.append("recv")

    def _end_coalescing(self) -> object:
        from muster_collectives.torch.works.work import CompletedWork

        self.asked.append("end")
        return CompletedWork()


def test_the_transfers_of_one_batch_are_begun_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own batch_isend_irecv calls them one by one; on a GPU see gpu/ranks_alone.py."""
    import torch
    import torch.distributed as dist

    from muster_collectives.torch.cuda import path as paths
    from muster_collectives.torch.cuda.groups import InnerGroups, plan_layout
    from muster_collectives.torch.cuda.path import DevicePath
    from muster_collectives.torch.cuda.settings import DeviceSettings
    from muster_collectives.torch.ops.verbs import VERBS, Arguments

    world = _Together()
    path = DevicePath(InnerGroups(plan_layout(0, [0]), world), DeviceSettings())  # type: ignore[arg-type]
    ops = [SimpleNamespace(tensor=SimpleNamespace(is_cuda=True)) for _ in range(3)]

    def of_torch(p2p_op_list: list[SimpleNamespace], verbs: list[tuple[str, int]]) -> list[Any]:
        return [path.transfer(verb, torch.ones(1), peer, 0) for verb, peer in verbs]

    monkeypatch.setattr(paths, "_TORCH", of_torch.__code__)
    works = of_torch(ops, [("send", 1), ("recv", 1), ("send", 2)])
    assert world.asked == ["start", "send", "recv", "send", "end"]
    assert len(works) == 3 and all(work.wait() for work in works)
    assert len(world.asked) == 5, "one batch was begun twice"

    world.asked.clear()
    with pytest.raises(ValueError, match="no such rank"):
        of_torch(ops, [("send", 1), ("recv", -1)])
    assert world.asked == ["start", "send", "end"], "a refused batch leaves NCCL's open"
    path.transfer("send", torch.ones(1), 1, 0)
    assert world.asked[3:] == ["send"], "a transfer outside of a batch was coalesced"

    world.asked.clear()
    of_torch(ops, [("send", 1)])  # two transfers never came: something else was raised between them
    with pytest.raises(AttributeError, match="allreduce"):  # of the stand-in
        path.call(VERBS["allreduce"], Arguments(([torch.ones(1)],), dist.AllreduceOptions()))
    assert world.asked == ["start", "send", "end"], "the next collective fell into an open batch"
