"""The wrapped model of one process: gradients, state, hooks, names, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from muster_modelparallel.errors import NotBuiltError, NotStartedError, SettingsError, StepError
from muster_modelparallel.run.state import state
from muster_modelparallel.run.step import step
from muster_modelparallel.wrap.model import DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer
from tests.model_parallel.support.alone import alone

pytestmark = pytest.mark.torch


def build():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 2))


def plain():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batch(size=8):
    torch.manual_seed(2)
    return torch.randn(size, 3), torch.randn(size, 2)


def gradients(module):
    return [None if each.grad is None else each.grad.clone() for each in module.parameters()]


def close(first, second):
    return all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(first, second, strict=True)
    )


def expected(loss_of, module=None):
    module = module or plain()
    x, y = batch()
    loss_of(module(x), y).backward()
    return gradients(module)


def trained(loss_of, microbatches=4, steps=1, **options):
    with alone(microbatches=microbatches):
        model = DistributedModel(plain(), **options)

        @step
        def train(x, y):
            model.backward(loss_of(model(x), y))

        for _ in range(steps):
            train(*batch())
        return gradients(model.module)


def summed(output, y):
    return mse_loss(output, y, reduction="sum")


def test_gradients_are_averaged_over_microbatches() -> None:
    assert close(trained(mse_loss), expected(mse_loss))


def test_gradients_are_summed_where_the_loss_sums() -> None:
    found = trained(summed, average_grads_across_microbatches=False)
    assert close(found, expected(summed))
    assert not close(trained(summed), expected(summed))


def test_gradients_of_two_steps_add_up() -> None:
    once = expected(mse_loss)
    assert close(trained(mse_loss, steps=2), [2 * each for each in once])


def test_backward_takes_several_tensors_and_their_gradients() -> None:
    with alone(microbatches=2):
        model = DistributedModel(plain())
        x, _ = batch()
        seed = torch.randn(8, 2)

        @step
        def train(x, seed):
            output = model(x)
            model.backward([output, output.sum()], [seed, torch.tensor(2.0)])

        train(x, seed)
        module = plain()
        output = module(x)
        torch.autograd.backward([output, output.sum()], [seed / 2, torch.tensor(1.0)])
        assert close(gradients(model.module), gradients(module))


def test_backward_of_a_tensor_without_gradient_is_torchs_error() -> None:
    with alone(microbatches=2):
        model = DistributedModel(plain())
        with pytest.raises(RuntimeError, match="scalar outputs"):
            step(lambda x: model.backward(model(x)))(batch()[0])


@pytest.mark.promise("B54")
def test_loss_backward_in_a_step_is_refused() -> None:
    with alone(microbatches=2):
        model = DistributedModel(plain())
        train = step(lambda x: model(x).sum().backward())
        with pytest.raises(StepError, match=r"call model\.backward\(loss\)"):
            train(batch()[0])
        good = step(lambda x: model.backward(model(x).sum()))
        good(batch()[0])  # the next step knows nothing of it


def test_gradients_that_are_only_looked_at_are_no_backward() -> None:
    with alone(microbatches=2):
        model = DistributedModel(plain())

        @step
        def penalty(x):
            x = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            model.backward(slope.square().sum())

        penalty(batch()[0])
        assert model.module[0].weight.grad is not None


def test_outside_a_step_function_it_works_as_a_module() -> None:
    with alone(microbatches=4):
        model = DistributedModel(plain())
        x, y = batch()
        model.backward(mse_loss(model(x), y))
        assert close(gradients(model.module), expected(mse_loss)), "not divided by microbatches"
        with pytest.raises(StepError, match="StepOutput"):
            model.backward(step(lambda x: model(x).sum())(x))


def test_evaluation_leaves_gradients_alone() -> None:
    with alone(microbatches=2):
        model = DistributedModel(plain())
        evaluate = torch.no_grad()(step(model))
        out = evaluate(batch()[0]).concat()
        assert torch.allclose(out, plain()(batch()[0]))
        assert gradients(model.module) == [None] * 4


def test_state_has_the_names_of_the_module() -> None:
    with alone():
        module = build()
        names = list(module.state_dict())
        model = DistributedModel(module)
        assert list(model.state_dict()) == names
        build().load_state_dict(model.state_dict())
        local = model.local_state_dict()
        assert local.pop("_smp_is_partial") is True and list(local) == names


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("is_partial", [False, True])
def test_state_of_any_kind_is_loaded(prefix: str, is_partial: bool) -> None:
    with alone():
        model = DistributedModel(build())
        other = build()
        with torch.no_grad():
            other[0].weight.fill_(7)
        given = {prefix + name: value for name, value in other.state_dict().items()}
        if is_partial:
            given["_smp_is_partial"] = True
        assert not model.load_state_dict(given).missing_keys
        assert (model.module[0].weight == 7).all()
        assert "_smp_is_partial" in given or not is_partial, "the caller's is as it was"


def test_state_of_a_module_that_has_a_member_module() -> None:
    with alone():
        model = DistributedModel(nn.ModuleDict({"module": nn.Linear(2, 2)}))
        model.load_state_dict(model.state_dict())
        with pytest.raises(RuntimeError, match="Unexpected key"):
            model.load_state_dict({**model.state_dict(), "more": torch.ones(1)})
        loose = model.load_state_dict({"more": torch.ones(1)}, strict=False)
        assert loose.unexpected_keys == ["more"]


def test_what_is_local_is_all_of_the_module() -> None:
    with alone():
        module = build()
        model = DistributedModel(module)
        assert model.partitioned is True and model.get_module() is module is model.module
        assert list(model.local_named_parameters()) == list(module.named_parameters())
        assert list(model.local_parameters()) == list(module.parameters())
        assert [n for n, _ in model.local_named_buffers()] == [n for n, _ in module.named_buffers()]
        assert len(list(model.local_buffers())) == 3
        assert list(model.local_named_modules()) == list(module.named_modules())
        assert list(model.local_modules()) == list(module.modules())
        assert list(model.named_parameters()) == list(module.named_parameters())
        assert list(model.parameters()) == list(module.parameters())


def test_nothing_is_cut_by_tensor_parallelism() -> None:
    with alone():
        model = DistributedModel(build())
        assert list(model.distributed_modules()) == []
        weight, buffer = next(model.parameters()), next(model.buffers())
        assert not model.is_distributed_parameter(weight)
        assert not model.is_distributed_buffer(buffer)
        assert not model.is_scaled_batch_parameter(weight)
        assert not model.is_scaled_batch_buffer(buffer)
        assert len(list(model.default_reducer_named_parameters())) == 6
        assert list(model.scaled_batch_reducer_named_parameters()) == []


class Elsewhere(torch.Tensor):  # type: ignore[misc]
    """Stands for a tensor that is not on the CPU."""

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_training_and_evaluation_reach_the_module_and_so_does_cpu() -> None:
    with alone():
        model = DistributedModel(build())
        model.eval()
        assert not model.module[2].training
        model.train()
        assert model.module[2].training
        model.double()
        model.module.register_buffer("far", torch.ones(2).as_subclass(Elsewhere))
        assert model.cpu() is model and model.module[0].weight.dtype is torch.float64
        assert type(model.module.far) is torch.Tensor, "buffers come too"


def test_post_partition_hooks_run_once_before_the_first_forward() -> None:
    with alone(microbatches=2):
        events = []
        module = plain()
        module.register_forward_pre_hook(lambda *_: events.append("forward"))
        model = DistributedModel(module)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model.register_post_partition_hook(lambda *given: events.append(given))
        removed = model.register_post_partition_hook(lambda *given: events.append("removed"))
        removed.remove()
        model.register_post_partition_hook(lambda *given: events.append("second"))
        run = step(model)
        assert events == []
        run(batch()[0])
        assert events == [(model, optimizer), "second", "forward", "forward"]
        run(batch()[0])
        assert events[4:] == ["forward", "forward"]
        model.register_post_partition_hook(lambda *given: events.append("late"))
        model(batch()[0])
        assert events[6:] == ["late", "forward"]


def test_gradients_are_clipped_to_a_norm_of_all() -> None:
    with alone(microbatches=2):
        model = DistributedModel(plain())
        step(lambda x: model.backward(model(x).sum()))(batch()[0])
        norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
        assert torch.equal(model.clip_grad_norm_(0.5), norm)
        after = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
        assert after.item() == pytest.approx(0.5, rel=1e-4)
        half = torch.optim.SGD(plain().half().parameters(), lr=0.1)
        DistributedOptimizer(half, static_loss_scale=8.0)
        with pytest.raises(StepError, match="clip_master_grads"):
            model.clip_grad_norm_(0.5)


def test_an_argument_of_the_job_goes_before_overlapping_allreduce() -> None:
    with alone(overlapping_allreduce=False):
        assert DistributedModel(plain()).overlapping_allreduce is False
    with alone():
        assert DistributedModel(plain()).overlapping_allreduce is True


@pytest.mark.promise("B54")
def test_a_second_model_is_refused() -> None:
    with alone() as session:
        first = DistributedModel(plain())
        with pytest.raises(StepError, match="a second DistributedModel"):
            DistributedModel(plain())
        assert session.model is first


def test_a_module_that_is_wrapped_again_is_the_same_model() -> None:
    with alone():
        module = plain()
        model = DistributedModel(module, backward_passes_per_step=2)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        assert DistributedModel(module=module) is DistributedModel(module) is model
        assert model.backward_passes_per_step == 2 and state.optimizer is optimizer


def test_arguments_about_tracing_are_checked_and_taken() -> None:
    with alone():
        with pytest.raises(SettingsError, match="'tpu'"):
            DistributedModel(plain(), trace_device="tpu")
        with pytest.raises(SettingsError, match="trace_execution_times"):
            DistributedModel(plain(), trace_device="cpu", trace_execution_times=True)
        DistributedModel(plain(), trace_execution_times=True, trace_memory_usage=True)


def test_the_state_shows_what_was_wrapped() -> None:
    with alone():
        assert state.model is None and state.optimizer is None
        model = DistributedModel(plain())
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        assert state.model is model and state.optimizer is optimizer


def test_what_cannot_be_wrapped_is_refused() -> None:
    with pytest.raises(NotStartedError):
        DistributedModel(plain())
    with alone():
        with pytest.raises(SettingsError, match="backward_passes_per_step is 0"):
            DistributedModel(plain(), backward_passes_per_step=0)
        with pytest.raises(SettingsError, match="bucket_cap_mb"):
            DistributedModel(plain(), bucket_cap_mb=0)
        with pytest.raises(SettingsError, match=r"torch\.nn\.Module"):
            DistributedModel("model")
        with pytest.raises(SettingsError, match="lazy"):
            DistributedModel(nn.LazyLinear(2))


def test_what_comes_later_says_so() -> None:
    with alone():
        model = DistributedModel(plain())
        for call in (model.join, model.register_comm_hook):
            with pytest.raises(NotBuiltError, match="comes with a later release of muster"):
                call()


def test_a_wrapped_optimizer_made_before_the_model_trains_it() -> None:
    with alone(microbatches=2):
        module = plain()
        reference = copy.deepcopy(module)
        optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
        model = DistributedModel(module)
        train = step(lambda x, y: model.backward(mse_loss(model(x), y)))
        other = torch.optim.Adam(reference.parameters(), lr=0.1)
        x, y = batch()
        for _ in range(3):
            for each in (optimizer, other):
                each.zero_grad()
            train(x, y)
            mse_loss(reference(x), y).backward()
            for each in (optimizer, other):
                each.step()
        assert close(module.parameters(), reference.parameters())
