"""The wrapped optimizer of one process: torch's to all others, and the loss scale."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

from muster_modelparallel.errors import NotStartedError, SettingsError, StepError
from muster_modelparallel.run.step import step
from muster_modelparallel.wrap.loss_scale import make_loss_scale
from muster_modelparallel.wrap.model import DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer
from tests.model_parallel.support.alone import alone

pytestmark = pytest.mark.torch


def linear(dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Linear(3, 2).to(dtype)


def sgd(module, **options):
    inner = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    return DistributedOptimizer(inner, **options)


def test_it_is_an_optimizer_of_torch() -> None:
    with alone() as session:
        module = linear()
        optimizer = sgd(module)
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert (session.optimizer is optimizer) is True  # mypy would narrow it
        assert optimizer.param_groups is optimizer.optimizer.param_groups
        assert optimizer.state is optimizer.optimizer.state
        assert optimizer.defaults["momentum"] == 0.9
        assert "SGD" in repr(optimizer)
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        assert len(optimizer.param_groups) == 2
        calls = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        optimizer.step()
        assert calls == [1]


@pytest.mark.parametrize("is_made_before", [False, True])
def test_schedulers_of_torch_drive_it(is_made_before: bool) -> None:
    with alone(), warnings.catch_warnings():
        warnings.simplefilter("error")
        inner = torch.optim.SGD(linear().parameters(), lr=0.5)
        make = torch.optim.lr_scheduler.StepLR
        schedule = make(inner, 1, 0.1) if is_made_before else None
        optimizer = DistributedOptimizer(inner)
        schedule = schedule or make(optimizer, 1, 0.1)
        optimizer.step()
        schedule.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
        torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1, total_steps=3)


def test_both_keys_of_half_precision_are_one() -> None:
    found = []
    for key in ("fp16", "fp16_params"):
        with alone(**{key: True}):
            model = DistributedModel(linear())
            optimizer = sgd(model)
            model.backward(model(torch.ones(1, 3, dtype=torch.float16)).sum())
            optimizer.step()
            masters = optimizer.state_dict()["master_weights"].values()
            assert {one.dtype for one in model.parameters()} == {torch.float16}
            assert {one.dtype for one in masters} == {torch.float32}
            found.append([*model.parameters(), *masters])
    assert len(found[0]) == 4 and all(map(torch.equal, *found))


def test_step_and_zero_grad_are_the_wrapped_ones() -> None:
    with alone():
        module = linear()
        optimizer = sgd(module)
        before = module.bias.detach().clone()

        def closure():
            optimizer.zero_grad()
            loss = module(torch.ones(1, 3)).sum()
            loss.backward()
            return loss

        assert optimizer.step(closure) is not None
        assert torch.equal(module.bias, before - 0.5)
        optimizer.zero_grad(set_to_none=False)
        assert (module.bias.grad == 0).all()
        optimizer.zero_grad()
        assert module.bias.grad is None


def test_state_is_the_wrapped_one_and_the_local_one_is_marked() -> None:
    with alone():
        module = linear()
        optimizer = sgd(module)
        module(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        full, local = optimizer.state_dict(), optimizer.local_state_dict(gather_if_shard=False)
        assert "_smp_is_partial" not in full and local["_smp_is_partial"] is True
        plain = torch.optim.SGD(linear().parameters(), lr=0.1)
        plain.load_state_dict(full)
        assert plain.param_groups[0]["lr"] == 0.5
        for given in (full, local):
            other = sgd(linear())
            other.load_state_dict(given)
            momentum = [each["momentum_buffer"] for each in other.state.values()]
            assert torch.equal(momentum[1], torch.ones(2))
        assert local["_smp_is_partial"] is True, "the caller's is as it was"


def test_gradients_are_clipped_to_a_norm() -> None:
    with alone():
        module = linear()
        optimizer = sgd(module)
        module.weight.grad = torch.full((2, 3), 2.0)
        module.bias.grad = torch.zeros(2)
        norm = optimizer.clip_master_grads(1.0)
        assert norm == pytest.approx(math.sqrt(24))
        assert module.weight.grad.norm().item() == pytest.approx(1.0, abs=1e-5)
        assert optimizer.clip_master_grads(10.0) == pytest.approx(1.0, abs=1e-5)
        assert module.weight.grad.norm().item() == pytest.approx(1.0, abs=1e-5)


def test_step_and_zero_grad_in_a_step_function_are_refused() -> None:
    with alone(microbatches=2):
        optimizer = sgd(linear())
        with pytest.raises(StepError, match="called in a step function"):
            step(lambda x: optimizer.step())(torch.ones(2))
        with pytest.raises(StepError, match="only the last"):
            step(lambda x: optimizer.zero_grad())(torch.ones(2))


def half_training(**options):
    """A model of half precision, the optimizer, and a step function that multiplies its loss."""
    module = linear(torch.float16)
    model = DistributedModel(module)
    optimizer = sgd(module, **options)

    @step(non_split_inputs=["factor"])
    def train(x, factor):
        model.backward((model(x).float() * factor).sum())

    def run(factor, x=1.0):
        optimizer.zero_grad()
        train(torch.full((1, 3), x, dtype=torch.float16), factor)
        optimizer.step()

    return module, optimizer, run


def test_a_static_scale_keeps_small_gradients() -> None:
    for scale, moved in ((1.0, False), (1024.0, True)):
        with alone():
            module, optimizer, run = half_training(static_loss_scale=scale)
            before = module.weight.detach().clone()
            optimizer.param_groups[0]["lr"] = 100.0
            run(1e-8, 1e4)  # the output's gradient is less than float16 has, the weight's is not
            assert torch.equal(module.weight, before) is not moved
            assert not optimizer.overflow


def test_gradients_that_overflow_skip_the_step_and_lower_a_dynamic_scale() -> None:
    with alone():
        module, optimizer, run = half_training(
            static_loss_scale=None,
            dynamic_loss_scale=True,
            dynamic_loss_args={"init_scale": 2.0**17, "scale_window": 2},
        )
        before = module.weight.detach().clone()
        run(1.0)
        assert optimizer.overflow and torch.equal(module.weight, before)
        assert optimizer.loss_scale == 2.0**16 and not optimizer.state
        run(0.25)
        assert not optimizer.overflow
        assert torch.allclose(module.weight, before - 0.125, atol=1e-3), "divided again"
        run(0.25)
        assert optimizer.loss_scale == 2.0**17, "after a window it grows"


def test_a_static_scale_never_moves_but_skips_as_well() -> None:
    with alone():
        module, optimizer, run = half_training(static_loss_scale=2.0**17)
        before = module.weight.detach().clone()
        run(1.0)
        assert optimizer.overflow and torch.equal(module.weight, before)
        assert optimizer.loss_scale == 2.0**17


def test_clipping_knows_the_scale() -> None:
    with alone():
        module, optimizer, _ = half_training(static_loss_scale=1024.0)
        module.weight.grad = torch.full((2, 3), 1024.0, dtype=torch.float16)
        module.bias.grad = torch.zeros(2, dtype=torch.float16)
        assert optimizer.clip_master_grads(100.0) == pytest.approx(math.sqrt(6), rel=1e-2)
        before = module.weight.detach().clone()
        optimizer.step()
        assert torch.allclose(module.weight, before - 0.5, atol=1e-3), "divided once"
        module.weight.grad.fill_(math.nan)
        optimizer.zero_grad(set_to_none=False)
        module.weight.grad.fill_(math.inf)
        assert optimizer.clip_master_grads(1.0) == -1.0 and optimizer.overflow


def test_a_closure_with_a_scale_is_refused() -> None:
    with alone():
        _, optimizer, _ = half_training(static_loss_scale=8.0)
        with pytest.raises(StepError, match="closure"):
            optimizer.step(lambda: None)


def test_a_scale_has_no_effect_in_full_precision() -> None:
    with alone():
        optimizer = sgd(linear(), dynamic_loss_scale=True)
        assert optimizer.loss_scale == 1.0


def test_a_dynamic_scale_is_saved_and_loaded() -> None:
    with alone():
        _, optimizer, run = half_training(dynamic_loss_scale=True)
        run(1.0)
        assert optimizer.loss_scale == 2.0**31
        other = sgd(linear(torch.float16), dynamic_loss_scale=True)
        other.load_state_dict(optimizer.state_dict())
        assert other.loss_scale == 2.0**31


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_grad_scaler_of_torch_works_with_it(is_fused: bool) -> None:
    with alone():
        module = linear()
        inner = torch.optim.SGD(module.parameters(), lr=0.5, fused=is_fused)
        optimizer = DistributedOptimizer(inner)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        before = module.bias.detach().clone()
        scaler.scale(module(torch.ones(1, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.allclose(module.bias, before - 0.5), "divided by the scale"


def test_the_rules_of_a_dynamic_scale() -> None:
    def values(overflows, **arguments):
        scale = make_loss_scale(1.0, True, {"init_scale": 16.0, "scale_window": 2, **arguments})
        found = []
        for each in overflows:
            scale = scale.after(bool(each))
            found.append(scale.value)
        return found

    assert make_loss_scale(1.0, True, {}).value == 2.0**32
    assert values([1, 1, 0, 0, 0, 0]) == [8, 4, 4, 8, 8, 16]
    assert values([0, 1, 0, 0]) == [16, 8, 8, 16], "the window begins again"
    assert values([1, 1], scale_factor=4.0) == [4, 1]
    assert values([1] * 3, min_scale=5.0) == [8, 5, 5]
    assert values([1, 1, 1], delayed_shift=2) == [16, 8, 4]
    assert values([1, 0, 1], delayed_shift=2) == [16, 16, 8]
    assert values([1, 0, 1], delayed_shift=2, consecutive_hysteresis=True) == [16, 16, 16]
    assert values([0] * 999 + [0], scale_window=1000)[-2:] == [16, 32]


def test_arguments_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(NotStartedError):
        sgd(linear())
    with alone():
        with pytest.raises(SettingsError, match="static_loss_scale is 0"):
            sgd(linear(), static_loss_scale=0)
        with pytest.raises(SettingsError, match=r"'scale_windw' is no .* scale_window"):
            sgd(linear(), dynamic_loss_scale=True, scale_windw=3)
        with pytest.raises(SettingsError, match="scale_factor is 1"):
            sgd(linear(), dynamic_loss_scale=True, dynamic_loss_args={"scale_factor": 1})
        with pytest.raises(SettingsError, match="scale_window is 0"):
            sgd(linear(), dynamic_loss_scale=True, scale_window=0)
