"""What is said of modules while they are made, activation checkpointing, LAMB and NovoGrad."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch
from torch import nn

import muster_modelparallel as smp
from muster_modelparallel.wrap import activations
from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint
from tests.model_parallel.support.alone import alone

pytestmark = pytest.mark.torch


@pytest.fixture
def session():
    with alone() as found:
        yield found


def _with_stages(session, pipeline: int = 1, tensor: int = 1) -> None:
    """As a later phase will have it: only the contexts are asked here."""
    session.config = dataclasses.replace(
        session.config, pipeline_parallel_degree=pipeline, tensor_parallel_degree=tensor
    )


class Child(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with smp.partition(1):
            self.first = Child()
            with smp.partition(2):
                self.second = Child()
            self.third = Child()
        self.fourth = Child()


def test_the_innermost_context_counts(session):
    _with_stages(session, pipeline=3)
    before = nn.Module.__init__
    parent = Parent()
    stages = [parent.first, parent.second, parent.third, parent.fourth, parent]
    assert [smp.get_partition(each) for each in stages] == [1, 2, 1, None, None]
    assert smp.get_partition(parent.second.inner) == 2
    assert smp.get_partition(copy.deepcopy(parent).second) == 2
    assert nn.Module.__init__ is before
    assert "first.inner.weight" in parent.state_dict()


def test_a_context_that_raises_leaves_nothing_behind(session):
    before = nn.Module.__init__
    with pytest.raises(KeyError), smp.partition(0):
        raise KeyError
    assert nn.Module.__init__ is before


def test_set_partition_takes_the_module_with_all_in_it(session):
    _with_stages(session, pipeline=3)
    parent = Parent()
    smp.set_partition(parent.second, 0)
    assert smp.get_partition(parent.second.inner) == smp.get_partition(parent.second) == 0


@pytest.mark.parametrize("index", [1, -1, "0", True, None])
def test_a_stage_that_is_not_there_is_refused(session, index):
    with pytest.raises(smp.SettingsError, match="the job has 1 partition, counted from 0"):
        smp.set_partition(nn.Linear(1, 1), index)
    with pytest.raises(smp.SettingsError), smp.partition(index):
        pass


def test_tensor_parallelism_has_nothing_to_do_on_one_rank_and_says_so_on_more(session):
    module = nn.Linear(2, 2)
    with smp.tensor_parallelism(True, fused_softmax=False), smp.delay_param_initialization():
        smp.set_tensor_parallelism(module, True)
    _with_stages(session, tensor=2)
    with smp.tensor_parallelism(False):
        smp.set_tensor_parallelism(module, False)
    for use in (
        lambda: smp.set_tensor_parallelism(module),
        lambda: smp.tensor_parallelism().__enter__(),
        lambda: smp.model_creation(tensor_parallelism=True).__enter__(),
    ):
        with pytest.raises(smp.NotBuiltError, match="cut over 2 ranks"):
            use()


def test_a_model_is_created_with_the_dtype_that_was_asked(session):
    with smp.model_creation(tensor_parallelism=False, dtype=torch.float64, zero_init=True):
        assert nn.Linear(1, 1).weight.dtype == torch.float64
    with smp.model_creation():
        assert nn.Linear(1, 1).weight.dtype == torch.float32
    with (
        pytest.raises(smp.SettingsError, match=r"torch\.int8"),
        smp.model_creation(dtype=torch.int8),
    ):
        pass
    assert torch.get_default_dtype() == torch.float32


class Counted(nn.Linear):
    """Counts its computations, and draws a random number in each."""

    calls = 0

    def forward(self, value):
        type(self).calls += 1
        return nn.functional.dropout(super().forward(value), 0.5)


def _sequence(length: int = 5):
    torch.manual_seed(0)
    Counted.calls = 0
    return nn.Sequential(*(Counted(4, 4) for _ in range(length)))


def _grads(model, call):
    torch.manual_seed(1)
    value = torch.ones(3, 4, requires_grad=True)
    call(value).sum().backward()
    return [each.grad.clone() for each in model.parameters()], value.grad


def _saved(call) -> int:
    """How many tensors the graph of a call keeps that no checkpoint makes anew."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        call(torch.ones(3, 4, requires_grad=True))
    return len(kept)


STRATEGIES = [("each", 5), ("contiguous", 1), ("group_2", 3), ("group_9", 1)]


@pytest.mark.parametrize(("strategy", "pieces"), STRATEGIES)
def test_a_checkpointed_sequence_gives_the_same_gradients(strategy, pieces, monkeypatch):
    plain = _sequence()
    expected = _grads(plain, plain)
    assert Counted.calls == 5
    groups = []
    recompute = activations._recompute
    monkeypatch.setattr(
        activations, "_recompute", lambda *args: groups.append(args) or recompute(*args)
    )
    model = _sequence()
    smp.set_activation_checkpointing(model, pack_args_as_tuple=True, strategy=strategy)
    smp.set_activation_checkpointing(model, strategy=strategy)  # the second takes its place
    found = _grads(model, model)
    assert Counted.calls == 10
    assert len(groups) == pieces
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    model = _sequence()
    call = lambda value: smp.checkpoint_sequential(model, value, strategy)  # noqa: E731
    torch.testing.assert_close(_grads(model, call), expected, rtol=0, atol=0)
    assert Counted.calls == 10


def test_a_checkpointed_module_keeps_its_names_and_copies_run_their_own_parameters():
    model = Counted(4, 4)
    names = list(model.state_dict())
    plain = _saved(model)
    smp.set_activation_checkpointing(model)
    assert list(model.state_dict()) == names
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.weight.zero_()
            other.bias.zero_()
            assert other(torch.ones(1, 4)).abs().sum() == 0
            other.bias.fill_(1)
            assert model.weight.abs().sum() > 0
    assert _saved(model) < plain
    Counted.calls = 0
    with torch.no_grad():
        model(torch.ones(1, 4))
    assert Counted.calls == 1


def test_hooks_keywords_and_lists_work_under_checkpointing():
    class Scaled(nn.Module):
        def forward(self, pair, *, by=1.0):
            return (pair[0] * by).exp(), pair[1]

    module, seen = Scaled(), []
    module.register_forward_hook(lambda *_: seen.append(1))
    layers = nn.ModuleList([module])
    smp.set_activation_checkpointing(layers)
    value = torch.ones(2, requires_grad=True)
    first, second = layers[0]((value, "text"), by=2.0)
    first.sum().backward()
    assert second == "text" and seen == [1]
    torch.testing.assert_close(value.grad, 2 * (2 * value.detach()).exp())
    value.grad = None
    checkpoint(module, (value, 1), by=3.0)[0].sum().backward()
    torch.testing.assert_close(value.grad, 3 * (3 * value.detach()).exp())


def test_one_call_of_a_module_is_checkpointed():
    model = _sequence(1)[0]
    expected = _grads(model, model)
    model.zero_grad()
    Counted.calls = 0
    found = _grads(model, lambda value: checkpoint(model, value, preserve_rng_state=True))
    assert Counted.calls == 2
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("is_kept", [True, False])
def test_dropout_drops_the_same_again_where_the_random_state_is_kept(is_kept):
    model = _sequence(1)
    expected = _grads(model, model)
    model.zero_grad()
    smp.set_activation_checkpointing(model, preserve_rng_state=is_kept)
    found = _grads(model, model)
    assert torch.equal(found[1], expected[1]) is is_kept


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: smp.set_activation_checkpointing(nn.Linear(1, 1), strategy="group_2"),
            "nn.Sequential",
        ),
        (lambda: smp.set_activation_checkpointing(nn.Sequential(), strategy="group_0"), "group_N"),
        (lambda: smp.set_activation_checkpointing(len), "takes an nn.Module"),
        (lambda: smp.checkpoint_sequential(nn.Linear(1, 1), 1), "takes an nn.Sequential"),
        (lambda: activations.checkpoint(len, 1), "takes an nn.Module"),
    ],
)
def test_what_cannot_be_checkpointed_is_refused(call, words):
    with pytest.raises(smp.SettingsError, match=words):
        call()


def _train(optimizer_of, steps=300):
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
    model = nn.Linear(4, 1)
    optimizer = optimizer_of(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda params: smp.FusedLAMB(params, lr=0.05),
        lambda params: smp.FusedLAMB(params, lr=0.05, adam_w_mode=False, use_nvlamb=True,
                                     weight_decay=0.0, max_grad_norm=None),
        lambda params: smp.FusedNovoGrad(params, lr=0.05, weight_decay=1e-4),
        lambda params: smp.FusedNovoGrad(params, lr=0.05, init_zero=True, norm_type=0,
                                         reg_inside_moment=True),
    ],
)  # fmt: skip
def test_the_layerwise_optimizers_learn(optimizer_of):
    losses, optimizer = _train(optimizer_of)
    assert losses[-1] < losses[0] / 10
    again = optimizer_of([torch.zeros(1, 4), torch.zeros(1)])
    again.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["params"][0].grad is not None
    optimizer.zero_grad()
    assert optimizer.param_groups[0]["params"][0].grad is None


def test_lamb_steps_as_the_paper_says():
    weight = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    optimizer = smp.FusedLAMB([weight], lr=0.1, eps=0.0, weight_decay=0.0, use_nvlamb=True,
                              max_grad_norm=0)  # fmt: skip
    weight.grad = torch.tensor([2.0, -5.0], dtype=torch.float64)
    optimizer.step()
    # the first direction of Adam is the sign, and the step is as long as lr times the weights
    expected = torch.tensor([3.0, 4.0], dtype=torch.float64)
    expected -= 0.1 * 5 * torch.tensor([1.0, -1.0], dtype=torch.float64) / 2**0.5
    torch.testing.assert_close(weight.detach(), expected)


def test_lamb_clips_by_the_norm_of_all_gradients():
    one, two = (torch.ones(1, requires_grad=True) for _ in range(2))
    optimizer = smp.FusedLAMB([one, two], max_grad_norm=1.0)
    one.grad, two.grad = torch.tensor([30.0]), torch.tensor([40.0])
    optimizer.step()
    assert optimizer.state[one]["exp_avg"].item() == pytest.approx(0.1 * 0.6)
    assert optimizer.state[two]["exp_avg"].item() == pytest.approx(0.1 * 0.8)


def test_novograd_steps_as_the_paper_says():
    weight = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
    optimizer = smp.FusedNovoGrad(
        [weight], lr=0.1, betas=(0.9, 0.5), eps=0.0, weight_decay=0.1, bias_correction=False,
        grad_averaging=False, reg_inside_moment=True,
    )  # fmt: skip
    x, m, v = torch.ones(2, dtype=torch.float64), 0.0, None
    for grad in ([3.0, 4.0], [0.0, 2.0], [-1.0, 1.0]):
        g = torch.tensor(grad, dtype=torch.float64)
        weight.grad = g.clone()
        optimizer.step()
        v = g.square().sum() if v is None else 0.5 * v + 0.5 * g.square().sum()
        m = 0.9 * m + (g / v.sqrt() + 0.1 * x)
        x = x - 0.1 * m
        torch.testing.assert_close(weight.detach(), x)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: smp.FusedLAMB(p, lr=-1.0),
        lambda p: smp.FusedLAMB(p, betas=(1.0, 0.9)),
        lambda p: smp.FusedLAMB(p, amsgrad=True),
        lambda p: smp.FusedNovoGrad(p, norm_type=1),
    ],
)
def test_arguments_that_no_step_can_follow_are_refused(make):
    with pytest.raises(smp.SettingsError):
        make([torch.zeros(1)])


def test_the_gradient_scaler_skips_a_step_with_an_infinity():
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = smp.GradScaler(init_scale=4.0)
    assert scaler.scale(weight.sum()).item() == 4.0
    weight.grad = torch.tensor([float("inf")])
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == 1.0 and scaler.get_scale() == 2.0
    weight.grad = torch.tensor([2.0])
    scaler.step(optimizer)
    assert weight.item() == 0.0
