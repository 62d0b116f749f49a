"""The server's optimizers against torch.optim, tensors as bytes, and what the source may hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster_parameter_server
from tests.launcher.unit.commands.test_security_gates import offences

SOURCE = Path(muster_parameter_server.__file__).parent
CASES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.1, "weight_decay": 0.1}),
    ("sgd", {"lr": 0.1, "momentum": 0.9}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("adam", {}),
    ("adam", {"lr": 0.1, "betas": (0.5, 0.99), "eps": 1e-3, "weight_decay": 0.1}),
    ("adamw", {"lr": 0.01}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.5}),
]


@pytest.mark.promise("S10")
def test_no_source_of_the_parameter_server_runs_or_loads_what_is_not_ours() -> None:
    trees = [(path.name, ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")]
    assert len(trees) > 15
    assert [(name, what) for name, tree in trees for what in offences(tree)] == []


@pytest.fixture(name="one_thread")
def one_thread_fixture() -> Iterator[None]:
    """As in a server; more threads than the machine can give make such small sums slow."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.torch
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_updates_equal_torch(name: str, options: dict[str, Any], dtype: str) -> None:
    import torch

    from muster_parameter_server import options as known
    from muster_parameter_server.layout import TensorSpec, segments
    from muster_parameter_server.options import Registration, slots_of
    from muster_parameter_server.shard import BLOCK, Kept, Shard

    made = getattr(known, name)(**options)
    count, kind = BLOCK + 777, getattr(torch, dtype)  # more than one block
    specs = (TensorSpec(dtype, (count,)),)
    slots = slots_of(name, [made.hyper])
    registration = Registration("sync", 0, 1.0, name, slots, 3, ("a:1",), specs)
    shard = Shard(segments(specs, 1)[0], registration)
    chance = torch.Generator().manual_seed(1)
    start = torch.randn(count, generator=chance, dtype=kind)
    shard.wires()[0].copy_(start)
    shard.load(Kept(0, slots=False, master=False))

    theirs = start.clone().requires_grad_()
    peer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    optimizer = peer([theirs], **options)
    for _ in range(8):
        gradients = [torch.randn(count, generator=chance, dtype=kind) for _ in range(3)]
        for rank, gradient in enumerate(gradients):
            shard.inbox(rank)[0].copy_(gradient)
        shard.update(range(3), [made.hyper])
        theirs.grad = sum(gradients[1:], gradients[0]) / 3
        optimizer.step()
    assert (shard.wires()[0] - theirs).abs().max() < 1e-6
    for slot, value in zip(shard.slots, shard.state(), strict=True):
        assert (value - optimizer.state[theirs][slot]).abs().max() < 1e-6


@pytest.mark.torch
def test_bytes_of_a_tensor_are_its_memory() -> None:
    import torch

    from muster_parameter_server.memory import is_plain, view

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        tensor = torch.arange(12, dtype=dtype).reshape(3, 4)
        data = view(tensor, 2, 5)
        assert len(data) == 3 * tensor.element_size()
        data[:] = bytes(len(data))
        assert tensor.flatten().tolist() == [0, 1, 0, 0, 0, 5, 6, 7, 8, 9, 10, 11]
        assert is_plain(tensor) and not is_plain(tensor.t())
    assert len(view(torch.zeros(0))) == 0


@pytest.mark.torch
def test_no_view_reaches_beyond_its_tensor() -> None:
    import torch

    from muster_parameter_server.memory import view

    row = torch.zeros(10)[:4]  # the memory goes on behind it
    empty = torch.zeros(4)
    empty.untyped_storage().resize_(0)
    for tensor, start, stop in (
        (row, 0, 5), (row, -1, 2), (row, 3, 2), (empty, 0, 4), (torch.zeros(2, 2).t(), 0, 4),
    ):  # fmt: skip
        with pytest.raises(IndexError):
            view(tensor, start, stop)


@pytest.mark.torch
@pytest.mark.parametrize(
    "gradients",
    [lambda t: [], lambda t: [t.ones(3)], lambda t: [t.ones(2, dtype=t.float64)],
     lambda t: [t.ones(2).to_sparse()]],
)  # fmt: skip
def test_a_gradient_that_does_not_fit_is_refused(gradients: Any) -> None:
    import torch

    from muster_parameter_server.client.buffers import Buffers
    from muster_parameter_server.errors import SettingsError
    from muster_parameter_server.layout import TensorSpec

    buffers = Buffers([torch.ones(2)], [TensorSpec("float32", (2,))], [()])
    with pytest.raises(SettingsError):
        buffers.gradients(gradients(torch))


@pytest.mark.torch
def test_parameters_that_cannot_travel_are_refused() -> None:
    import torch

    from muster_parameter_server.client.buffers import as_tensors
    from muster_parameter_server.errors import SettingsError
    from muster_parameter_server.memory import spec_of

    one = torch.ones(2)
    tensors, names = as_tensors([("weight", one)])
    assert tensors[0] is one and names == ["weight"]
    for bad in ([], [one, one], [3.5]):
        with pytest.raises(SettingsError):
            as_tensors(bad)
    for tensor in (torch.ones(2, dtype=torch.int64), torch.ones(2).to_sparse()):
        with pytest.raises(SettingsError):
            spec_of(tensor, 0, 0)
