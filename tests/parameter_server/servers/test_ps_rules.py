"""What a script may do with its parameters between steps, and what is refused before any harm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parameter_server.support.servers import Inside, Places, connect, together

pytestmark = pytest.mark.torch


def _optimizer(made: Inside, params: Any, rank: int = 0, **more: Any) -> Any:
    from muster_parameter_server import ServerOptimizer, sgd

    given = {"environ": made.environ(rank), "timeout_s": 20, **more}
    return ServerOptimizer(params, given.pop("optimizer", sgd(0.5)), **given)


def test_memory_beside_a_parameter_that_shrank_is_not_touched() -> None:
    import torch

    from muster_parameter_server import SettingsError

    made, beside = Inside(1, workers=1), torch.zeros(2000)
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = _optimizer(made, [weight])
    kept = weight.data
    weight.data = beside[:10]
    weight.grad = torch.ones(10)
    for act in (optimizer.step, optimizer.server.pull, optimizer.server.load):
        with pytest.raises(SettingsError, match=r"0 is .*\(10,\) now, but connected as .*1000"):
            act()
    assert not beside.any()
    weight.grad = None
    weight.data = kept.clone()  # other memory of the same shape is fine
    weight.grad = torch.ones(1000)
    optimizer.step()
    assert torch.equal(weight, torch.full((1000,), 0.5))
    optimizer.close()
    assert made.codes() == [0]


@pytest.mark.parametrize("kind", ["float64", "bfloat16"])
def test_a_model_that_changed_its_dtype_is_refused(kind: str) -> None:
    import torch

    from muster_parameter_server import SettingsError

    made, model = Inside(1, workers=1), torch.nn.Linear(64, 64)
    optimizer = _optimizer(made, model.named_parameters())
    model.to(getattr(torch, kind))
    model(torch.ones(2, 64, dtype=model.weight.dtype)).sum().backward()
    with pytest.raises(SettingsError, match=rf"0 \(weight\) is .*{kind} .* as float32"):
        optimizer.step()
    optimizer.close()
    assert made.codes() == [0]


def test_autograd_sees_that_a_step_has_written_the_parameters() -> None:
    """As with torch.optim: a graph that saved older values refuses to go backward."""
    import torch

    made, weight = Inside(1, workers=1), torch.nn.Parameter(torch.ones(3))
    optimizer = _optimizer(made, [weight])
    loss = (weight * weight).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    optimizer.close()
    assert made.codes() == [0]


def test_a_parameter_that_the_script_wrote_is_not_pushed_over() -> None:
    import torch

    from muster_parameter_server import SettingsError

    made, weight = Inside(1, workers=1), torch.nn.Parameter(torch.ones(3))
    optimizer = _optimizer(made, [("head.weight", weight)])
    weight.grad = torch.ones(3)
    optimizer.step()
    with torch.no_grad():
        weight.fill_(7.0)
    with pytest.raises(SettingsError, match=r"0 \(head.weight\) was written .*\n.*server.load\(\)"):
        optimizer.step()
    optimizer.server.load()
    optimizer.step()
    assert torch.equal(weight, torch.full((3,), 6.5))
    with torch.no_grad():
        weight.fill_(7.0)
    optimizer.server.pull()
    assert torch.equal(weight, torch.full((3,), 6.5))
    optimizer.step()
    optimizer.close()
    assert made.codes() == [0]


def _shared_memory(torch: Any) -> dict[str, tuple[list[Any], str]]:
    row, one = torch.zeros(10), torch.nn.Parameter(torch.ones(4))
    return {
        "alias": ([one, torch.nn.Parameter(one.data)], "parameters 0 and 1 share"),
        "named": ([("a", torch.ones(1)), ("b", row), ("c", row[9:])], r"1 \(b\) and 2 \(c\)"),
        "overlap": ([row[5:], torch.ones(2), row[:6]], "parameters 0 and 2 share"),
        "twice": ([one, one], "parameters 0 and 1 share"),
    }


@pytest.mark.parametrize("name", ["alias", "named", "overlap", "twice"])
def test_two_parameters_in_the_same_memory_are_refused(name: str) -> None:
    import torch

    from muster_parameter_server import SettingsError
    from muster_parameter_server.client.buffers import as_tensors

    tensors, words = _shared_memory(torch)[name]
    with pytest.raises(SettingsError, match=words):
        as_tensors(tensors)
    halves = torch.zeros(10)
    as_tensors([halves[5:], halves[:5], torch.zeros(0), torch.zeros(0)])  # side by side is fine


def test_tensors_in_another_order_are_noticed_by_their_names() -> None:
    import torch

    from muster_parameter_server import AgreementError

    made = Inside(1, workers=2)

    def work(rank: int) -> None:
        named = [("first", torch.zeros(5)), ("second", torch.zeros(5))]
        connect(made, rank, tensors=named[:: -1 if rank else 1])

    for result in together(lambda: work(0), lambda: work(1)):
        assert isinstance(result, AgreementError), result
        assert "tensor 0" in str(result) and "'first'" in str(result) and "'second'" in str(result)
    assert made.codes() == [1]


def test_a_parameter_that_was_frozen_and_has_a_gradient_is_refused() -> None:
    import torch

    from muster_parameter_server import SettingsError

    made = Inside(1, workers=1)
    shared = torch.nn.Parameter(torch.ones(2))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = _optimizer(made, [shared, frozen])
    shared.grad = torch.ones(2)
    optimizer.step()
    frozen.requires_grad_()
    (shared + frozen).sum().backward()
    with pytest.raises(SettingsError, match="parameter 1 has a gradient"):
        optimizer.step()
    assert torch.equal(frozen, torch.ones(2)) and torch.equal(shared, torch.full((2,), 0.5))
    optimizer.close()
    assert made.codes() == [0]


def test_groups_are_fixed_once_connected() -> None:
    import torch

    from muster_parameter_server import SettingsError

    made = Inside(1, workers=1)
    optimizer = _optimizer(made, [torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(SettingsError, match="groups cannot be added"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    optimizer.close()
    assert made.codes() == [0]


def test_momentum_that_a_group_gets_late_begins_as_in_torch() -> None:
    """The first step with momentum knows no dampening, whatever other groups did before."""
    import torch

    from muster_parameter_server import sgd

    def groups() -> list[dict[str, Any]]:
        late, early = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        return [{"params": [late], "momentum": 0.0, "dampening": 0.5},
                {"params": [early], "momentum": 0.9, "dampening": 0.5}]  # fmt: skip

    made = Inside(1, workers=1)
    ours, theirs = groups(), groups()
    optimizer = _optimizer(made, ours, optimizer=sgd(1.0))
    for one, given in ((optimizer, ours), (torch.optim.SGD(theirs, lr=1.0), theirs)):
        for step in range(4):
            one.param_groups[0]["momentum"] = 0.9 if step else 0.0
            for group in given:
                group["params"][0].grad = torch.ones(1)
            one.step()
    for mine, known in zip(ours, theirs, strict=True):
        assert torch.allclose(mine["params"][0], known["params"][0], atol=1e-6)
    optimizer.close()
    assert made.codes() == [0]


def test_half_types_take_the_mean_of_their_workers() -> None:
    import torch

    made = Inside(2, workers=2)

    def work(rank: int) -> list[torch.Tensor]:
        halves = [torch.ones(101, dtype=kind) for kind in (torch.bfloat16, torch.float16)]
        with connect(made, rank, tensors=halves) as server:
            for _ in range(8):
                server.push_pull([torch.full_like(one, 1.0 + 2 * rank) for one in halves])
        return halves

    for result in together(lambda: work(0), lambda: work(1)):
        assert isinstance(result, list), result
        for half in result:  # eight steps of -0.1 times the mean, 2, in float32
            assert torch.equal(half, torch.full((101,), 1 - 8 * 0.2).to(half.dtype))
    assert made.codes() == [0, 0]


@pytest.mark.parametrize(
    "given",
    [{"staleness": 1}, {"mode": "async", "staleness": -1}, {"mode": "async", "staleness": 1.5},
     {"mode": "async", "staleness": True}, {"mode": "chaos"}, {"timeout_s": 0}, {"groups": [1]},
     {"groups": [0, 0]}],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused_before_anything_is_sent(
    given: dict[str, Any],
) -> None:
    from muster_parameter_server import SettingsError

    with pytest.raises(SettingsError):
        connect(Places(1, workers=1), 0, **given)
