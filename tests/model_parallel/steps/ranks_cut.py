"""Checks of models whose parameters are cut over two replicas each, run by all ranks of one job:
`ranks_cut.py FOLDER`, which one of them leaves checkpoints in."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.tensor import DTensor
from torch.nn import functional

import muster_modelparallel as smp
from muster_modelparallel.errors import CheckpointError, StepError
from muster_modelparallel.wrap.grad_scaler import GradScaler
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give

DEGREE = 2
WORDS, WIDTH, LENGTH, BATCH, LAYERS, MICROBATCHES, STEPS = 24, 8, 5, 4, 6, 2, 4
NO_LIMIT = 1e9


def main() -> None:
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))


def begin(degree: int | None = None, **parameters: object) -> None:
    over()
    sharding = {
        "sharded_data_parallel_degree": DEGREE if degree is None else degree,
        "sdp_param_persistence_threshold": WIDTH * WIDTH,  # biases stay whole
        "sdp_gradient_clipping": NO_LIMIT,
    }
    smp.init({"microbatches": MICROBATCHES, **sharding, **parameters})
    torch.manual_seed(5)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Both ends use one weight, and forward itself uses a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.come = nn.Embedding(WORDS, WIDTH)
        self.place = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))
        self.register_buffer("scale", torch.tensor(0.5))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.go = nn.Linear(WIDTH, WORDS, bias=False)
        self.go.weight = self.come.weight

    def forward(self, words):
        x = self.come(words) + self.scale.to(self.place) * self.place[: words.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.go(x)


def loss_of(output, words):
    return functional.cross_entropy(output.float().flatten(0, 1), words.flatten())


@smp.step
def train(model, words):
    loss = loss_of(model(words), words)
    model.backward(loss)
    return loss


@smp.step
def evaluate(model, words):
    return model(words).argmax(-1)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9),
    "AdamW": lambda given: torch.optim.AdamW(given, lr=0.01, weight_decay=0.1),
    "AdamW foreach": lambda given: torch.optim.AdamW(given, lr=0.01, foreach=True),
    "FusedLAMB": lambda given: smp.FusedLAMB(given, lr=0.01),
    "FusedNovoGrad": lambda given: smp.FusedNovoGrad(given, lr=0.01),
}


def batches(count: int) -> list[torch.Tensor]:
    """Those of all replicas."""
    torch.manual_seed(7)
    return [torch.randint(WORDS, (BATCH * smp.dp_size(), LENGTH)) for _ in range(count)]


def mine(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[smp.dp_rank() * BATCH : (smp.dp_rank() + 1) * BATCH]


def wrapped(name: str = "AdamW", **options: Any) -> tuple[Any, Any]:
    """The optimizer is made before the model is wrapped."""
    module = Net()
    optimizer = OPTIMIZERS[name](module.parameters())
    model = smp.DistributedModel(module, **options)
    return model, smp.DistributedOptimizer(optimizer)


def steps(model: Any, optimizer: Any, given: list[torch.Tensor]) -> None:
    for one in given:
        optimizer.zero_grad()
        train(model, mine(one))
        optimizer.step()


def alone(name: str, given: list[torch.Tensor], limit: float = 0.0) -> nn.Module:
    """One process has the batches of all replicas."""
    torch.manual_seed(5)
    module = Net()
    optimizer = OPTIMIZERS[name](module.parameters())
    for one in given:
        optimizer.zero_grad()
        loss_of(module(one), one).backward()
        if limit:
            nn.utils.clip_grad_norm_(module.parameters(), limit)
        optimizer.step()
    return module


def assert_close(found: Any, wanted: Any, **limits: float) -> None:
    """Of state dictionaries; `wanted` may be a module."""
    wanted = wanted.state_dict() if isinstance(wanted, nn.Module) else wanted
    limits = limits or {"rtol": 1e-4, "atol": 1e-5}
    assert found.keys() == wanted.keys()
    torch.testing.assert_close(
        {name: one.float() for name, one in found.items()},
        {name: one.float() for name, one in wanted.items()},
        **limits,
    )


def same(one: Any, other: Any) -> bool:
    """Of nests of dictionaries and lists with tensors."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def a_step_is_that_of_one_process() -> None:
    for name in OPTIMIZERS:
        begin()
        model, optimizer = wrapped(name)
        steps(model, optimizer, batches(STEPS))
        assert_close(model.state_dict(), alone(name, batches(STEPS)))


def bytes_of(tensors: Any) -> int:
    return sum((one.to_local() if isinstance(one, DTensor) else one).nbytes for one in tensors)


def each_replica_has_its_part() -> None:
    begin()
    model, optimizer = wrapped()
    steps(model, optimizer, batches(2))
    whole = dict(Net().named_parameters())
    held = dict(model.local_named_parameters())
    cut = {name for name, one in held.items() if isinstance(one, DTensor)}
    assert cut == {name for name in held if whole[name].numel() >= WIDTH * WIDTH}
    for name in cut:
        assert held[name].to_local().numel() * DEGREE == whole[name].numel()
        assert held[name].grad.to_local().nbytes == held[name].to_local().nbytes
        states = optimizer.state[held[name]]
        assert bytes_of([states["exp_avg"]]) * DEGREE == whole[name].nbytes


def whole_states_are_those_of_a_job_that_cuts_nothing() -> None:
    for name in ("AdamW", "FusedNovoGrad"):
        begin(1)
        model, optimizer = wrapped(name)
        steps(model, optimizer, batches(2))
        parameters, states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        begin()
        model, optimizer = wrapped(name)
        steps(model, optimizer, batches(2))
        assert_close(model.state_dict(), parameters)
        assert_states_close(optimizer.state_dict(), states)


def assert_states_close(found: Any, wanted: Any) -> None:
    assert found["param_groups"] == wanted["param_groups"]
    assert found["state"].keys() == wanted["state"].keys()
    for number, values in wanted["state"].items():
        assert found["state"][number].keys() == values.keys()
        for key, value in values.items():
            here = found["state"][number][key]
            assert type(here) is type(value) and not isinstance(here, DTensor)
            torch.testing.assert_close(here, value, rtol=1e-4, atol=1e-5)


def states_go_from_one_that_cuts_to_one_that_does_not_and_back() -> None:
    for name, kind in (("AdamW", {}), ("SGD", {"bf16": True})):
        begin(1, **kind)
        model, optimizer = wrapped(name)
        given = batches(2 * STEPS)
        steps(model, optimizer, given)
        wanted = copy.deepcopy(model.state_dict())
        degrees: list[int | None] = [None, 1, None, 1]
        parameters, states = None, None
        for turn, degree in enumerate(degrees):
            begin(degree, **kind)
            model, optimizer = wrapped(name)
            if parameters is not None:
                model.load_state_dict(parameters)
                optimizer.load_state_dict(states)
            steps(model, optimizer, given[2 * turn : 2 * turn + 2])
            parameters, states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        limits = {"rtol": 0.02, "atol": 0.02} if kind else {}
        assert_close(parameters, wanted, **limits)


def checkpoints_go_from_one_that_cuts_to_one_that_does_not_and_back() -> None:
    given = batches(6)
    for partial in (True, False):
        begin()
        model, optimizer = wrapped()
        steps(model, optimizer, given[:2])
        smp.save_checkpoint(sys.argv[1], "one", partial, model, optimizer, {"steps": 2})
        steps(model, optimizer, given[2:4])
        wanted = copy.deepcopy(model.state_dict())
        for degree in (None, 1):
            begin(degree)
            model, optimizer = wrapped()
            found = smp.resume_from_checkpoint(sys.argv[1], "one", partial)
            assert found == {"steps": 2}
            steps(model, optimizer, given[2:4])
            assert_close(model.state_dict(), wanted)


def a_state_that_is_cut_may_be_left_out() -> None:
    given = batches(3)
    for kind in ({}, {"bf16": True}):
        begin(**kind)
        model, optimizer = wrapped()
        steps(model, optimizer, given)
        wanted = copy.deepcopy(dict(model.state_dict()))
        smp.save_checkpoint(sys.argv[1], "left out", True, model, optimizer)
        for degree in (DEGREE, 1):
            begin(degree, **kind)
            model, optimizer = wrapped()
            steps(model, optimizer, given[:1])
            smp.resume_from_checkpoint(sys.argv[1], load_sharded_optimizer_state=False)
            assert same(dict(model.state_dict()), wanted)
            taken = {int(state["step"]) for state in optimizer.state.values()}
            assert taken == {1 if degree == DEGREE else 3}, taken


def a_save_in_the_background_has_the_values_of_its_begin() -> None:
    begin()
    model, optimizer = wrapped()
    given = batches(STEPS)
    steps(model, optimizer, given[:2])
    wanted = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for tag in ("first", "second"):  # the second one waits for the first
        smp.save_checkpoint(
            sys.argv[1], tag, True, model, optimizer, in_pieces=True, in_background=True
        )
    steps(model, optimizer, given[2:])
    smp.wait_for_checkpoint()
    for tag in ("first", None):
        smp.resume_from_checkpoint(sys.argv[1], tag)
        assert same(dict(model.state_dict()), dict(wanted[0]))
        assert same(optimizer.state_dict(), wanted[1])


def a_rank_that_cannot_write_is_an_error_on_all() -> None:
    begin()
    model, optimizer = wrapped()
    steps(model, optimizer, batches(1))
    write = dcp.FileSystemWriter.write_data

    def fails(self: Any, *given: Any) -> Any:
        raise OSError("no space is left")

    for in_background in (False, True):
        if smp.rank() == smp.size() - 1:
            dcp.FileSystemWriter.write_data = fails
        try:
            smp.save_checkpoint(
                sys.argv[1], "bad", True, model, optimizer, in_pieces=True,
                in_background=in_background,
            )  # fmt: skip
            smp.wait_for_checkpoint()
        except CheckpointError as error:
            assert "no space is left" in str(error), error
        else:
            raise AssertionError("no error")
        finally:
            dcp.FileSystemWriter.write_data = write
    smp.save_checkpoint(sys.argv[1], "good", True, model, optimizer, in_pieces=True)
    smp.resume_from_checkpoint(sys.argv[1])


def parts_of_states_are_for_the_rank_that_saved_them() -> None:
    begin()
    model, optimizer = wrapped()
    steps(model, optimizer, batches(2))
    whole, mine = copy.deepcopy((optimizer.local_state_dict(), optimizer.local_state_dict(False)))
    assert bytes_of_states(mine) < 0.8 * bytes_of_states(whole)
    optimizer.load_state_dict(mine)
    assert same(optimizer.local_state_dict(), whole)


def bytes_of_states(found: Any) -> int:
    return bytes_of(
        one for each in found["state"].values() for one in each.values()
        if isinstance(one, torch.Tensor)
    )  # fmt: skip


def norms_are_those_of_all_parts() -> None:
    for norm_type in (2.0, 1.0, float("inf")):
        begin()
        model, optimizer = wrapped("SGD")
        train(model, mine(batches(1)[0]))
        found = model.clip_grad_norm_(0.01, norm_type)
        assert torch.allclose(found, alone_norm(norm_type)), (found, norm_type)
        again = optimizer.clip_master_grads(1.0, norm_type)
        assert abs(again - 0.01) < 1e-4, again


def alone_norm(norm_type: float) -> torch.Tensor:
    torch.manual_seed(5)
    module = Net()
    given = batches(1)[0]
    loss_of(module(given), given).backward()
    return nn.utils.clip_grad_norm_(module.parameters(), 1.0, norm_type)


def each_step_is_clipped_by_the_key() -> None:
    for limit in (0.05, 0.0):
        begin(sdp_gradient_clipping=limit)
        model, optimizer = wrapped("SGD")
        steps(model, optimizer, batches(STEPS))
        assert_close(model.state_dict(), alone("SGD", batches(STEPS), limit))
        assert (optimizer._global_grad_norm is not None) == bool(limit)


def evaluation_between_steps_changes_nothing() -> None:
    begin()
    model, optimizer = wrapped()
    given = batches(STEPS)
    found = []
    for one in given:
        steps(model, optimizer, [one])
        model.eval()
        with torch.no_grad():
            found.append(evaluate(model, mine(one)).concat())
        for name, parameter in model.local_named_parameters():
            is_cut = isinstance(parameter, DTensor)
            assert is_cut == (parameter.numel() >= WIDTH * WIDTH), name
        model.train()
    module = alone("AdamW", given)
    assert_close(model.state_dict(), module)
    assert torch.equal(found[-1], module(mine(given[-1])).argmax(-1))


def gradients_of_several_steps_add_up() -> None:
    for options in ({"backward_passes_per_step": 2}, {}):
        begin()
        model, optimizer = wrapped("SGD", **options)
        given = batches(2)
        for one in given:
            train(model, mine(one))
        optimizer.step()
        torch.manual_seed(5)
        module = Net()
        for one in given:
            loss_of(module(one), one).backward()
        torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9).step()
        assert_close(model.state_dict(), module)


def frozen_parameters_stay() -> None:
    begin()
    module = Net()
    for name, one in module.named_parameters():
        one.requires_grad_("blocks.0" not in name and "come" not in name)
    before = copy.deepcopy(module.state_dict())
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    steps(model, optimizer, batches(STEPS))
    after = model.state_dict()
    for name, one in before.items():
        is_same = torch.equal(after[name], one)
        assert is_same == (
            "blocks.0" in name or "come" in name or "go" in name or "scale" in name
        ), name


def half_precision_is_added_up_in_full() -> None:
    for kind in ("bf16", "fp16"):
        begin(1, **{kind: True})
        model, optimizer = wrapped()
        steps(model, optimizer, batches(STEPS))
        wanted = copy.deepcopy(model.state_dict())
        begin(**{kind: True})
        model, optimizer = wrapped()
        steps(model, optimizer, batches(STEPS))
        found = model.state_dict()
        for name, one in wanted.items():
            assert found[name].dtype == one.dtype, name
            torch.testing.assert_close(found[name], one, rtol=0.02, atol=0.02)
        masters = optimizer.state_dict()["master_weights"]
        assert all(one.dtype == torch.float32 for one in masters.values())
        assert len(masters) == len(list(Net().parameters()))
        for one in model.local_parameters():
            wide = torch.float32 if isinstance(one, DTensor) else wanted["scale"].dtype
            assert one.dtype == wide


def an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    begin(fp16=True)
    module = Net()
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), dynamic_loss_scale=True,
        dynamic_loss_args={"init_scale": 2.0**40},
    )  # fmt: skip
    assert optimizer.loss_scale == 2.0**40
    before = copy.deepcopy(model.state_dict())
    steps(model, optimizer, batches(1))
    assert optimizer.overflow
    assert same(dict(model.state_dict()), dict(before)) or smp.pp_size() > 1
    assert optimizer.loss_scale < 2.0**40


def checkpointed_blocks_compute_the_same() -> None:
    for is_before in (True, False):
        begin()
        module = Net()
        if is_before:
            smp.set_activation_checkpointing(module.blocks)
        model = smp.DistributedModel(module)
        if not is_before:
            smp.set_activation_checkpointing(module.blocks)
        optimizer = smp.DistributedOptimizer(OPTIMIZERS["AdamW"](model.parameters()))
        steps(model, optimizer, batches(STEPS))
        assert_close(model.state_dict(), alone("AdamW", batches(STEPS)))


@smp.step
def train_twice(model, words):
    loss = (loss_of(model(words), words) + loss_of(model(words.flip(1)), words.flip(1))) / 2
    model.backward(loss)
    return loss


def a_step_may_call_the_model_twice() -> None:
    begin()
    model, optimizer = wrapped("SGD")
    given = batches(2)
    steps(model, optimizer, given[:1])
    for one in given[1:]:
        optimizer.zero_grad()
        train_twice(model, mine(one))
        optimizer.step()
    torch.manual_seed(5)
    module = Net()
    other = OPTIMIZERS["SGD"](module.parameters())
    for number, one in enumerate(given):
        other.zero_grad()
        losses = [loss_of(module(words), words) for words in (one, one.flip(1))]
        (sum(losses) / 2 if number else losses[0]).backward()
        other.step()
    assert_close(model.state_dict(), module)


def as_one_process_without_a_step_function() -> None:
    if smp.pp_size() > 1:
        return
    begin()
    model, optimizer = wrapped()
    for one in batches(STEPS):
        optimizer.zero_grad()
        model.backward(loss_of(model(mine(one)), mine(one)))
        optimizer.step()
        with torch.no_grad():
            model(mine(one))
    assert_close(model.state_dict(), alone("AdamW", batches(STEPS)))


@smp.step
def train_without(model, words):
    loss_of(model(words), words).backward()


def gradients_that_are_not_the_models_are_refused() -> None:
    begin()
    model, optimizer = wrapped()
    if smp.pp_size() > 1:
        steps(model, optimizer, batches(1))
    try:
        train_without(model, mine(batches(1)[0]))
    except StepError as error:
        assert "loss.backward()" in str(error), error
    else:
        raise AssertionError("not refused")


def a_pass_that_fails_leaves_nothing_behind() -> None:
    if smp.pp_size() > 1:
        return
    begin()
    model, optimizer = wrapped()
    given = batches(STEPS)
    for number, one in enumerate(given):
        if number == 1:
            handle = model.module.blocks[3].register_forward_pre_hook(fail)
            try:
                train(model, mine(one))
            except ValueError as error:
                assert "on purpose" in str(error)
            handle.remove()
        steps(model, optimizer, [one])
    assert_close(model.state_dict(), alone("AdamW", given))


def fail(*_: Any) -> None:
    raise ValueError("on purpose")


@smp.step
def train_scaled(model, words, scaler):
    model.backward(scaler.scale(loss_of(model(words), words)))


def an_infinity_of_one_rank_skips_the_step_on_all() -> None:
    begin()
    model, optimizer = wrapped("SGD")
    scaler = GradScaler(init_scale=1024.0)
    given = batches(3)
    for number, one in enumerate(given):
        optimizer.zero_grad()
        train_scaled(model, mine(one), scaler)
        before = [part(one).clone() for one in model.local_parameters()]
        if number == 1 and smp.rank() == 0:
            part(next(iter(model.local_parameters())).grad).view(-1)[0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        after = [part(one) for one in model.local_parameters()]
        assert same(before, after) == (number == 1)
        assert scaler.get_scale() == (512.0 if number else 1024.0)
    assert_close(model.state_dict(), alone("SGD", [given[0], given[2]]))


def part(one: torch.Tensor) -> torch.Tensor:
    return one.detach().to_local() if isinstance(one, DTensor) else one.detach()


def groups_that_are_added_later_are_updated_too() -> None:
    begin()
    module = Net()
    first, *others = module.parameters()
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD([first], lr=0.05, momentum=0.9))
    optimizer.add_param_group({"params": others})
    steps(model, optimizer, batches(STEPS))
    assert_close(model.state_dict(), alone("SGD", batches(STEPS)))


def optimizers_may_be_wrapped_first_and_be_several() -> None:
    begin()
    module = Net()
    groups = [[], []]
    for number, one in enumerate(module.parameters()):
        groups[number % 2].append(one)
    both = [
        smp.DistributedOptimizer(torch.optim.SGD(group, lr=0.05, momentum=0.9)) for group in groups
    ]
    model = smp.DistributedModel(module)
    for one in batches(STEPS):
        for optimizer in both:
            optimizer.zero_grad()
        train(model, mine(one))
        for optimizer in both:
            optimizer.step()
    assert_close(model.state_dict(), alone("SGD", batches(STEPS)))


@smp.step
def train_some(model, words, is_used):
    loss = loss_of(model(words), words)
    if is_used.all():
        model.backward(loss)
    return loss


def a_microbatch_may_have_no_backward() -> None:
    if smp.pp_size() == 1:
        return  # each backward is collective
    begin()
    model, optimizer = wrapped("SGD")
    given = batches(3)
    for turn, one in enumerate(given):
        optimizer.zero_grad()
        is_used = torch.ones(BATCH, dtype=torch.bool)
        if turn:
            is_used[BATCH // 2 :] = False  # those of the last microbatch
        train_some(model, mine(one), is_used)
        optimizer.step()
    torch.manual_seed(5)
    module = Net()
    other = OPTIMIZERS["SGD"](module.parameters())
    for turn, one in enumerate(given):
        other.zero_grad()
        for words in one.chunk(smp.dp_size()):
            used = words.chunk(MICROBATCHES)[: 1 if turn else MICROBATCHES]
            for each in used:
                (loss_of(module(each), each) / MICROBATCHES / smp.dp_size()).backward()
        other.step()
    assert_close(model.state_dict(), module)


def a_model_that_is_cut_keeps_its_type() -> None:
    begin()
    model, optimizer = wrapped()
    steps(model, optimizer, batches(1))
    assert model.to("cpu") is model and model.float() is model
    for change in (model.half, model.double):
        try:
            change()
        except StepError as error:
            assert "before DistributedModel" in str(error)
        else:
            raise AssertionError("not refused")


def what_is_frozen_may_be_trained_later() -> None:
    for kind in ({}, {"bf16": True}):
        begin(**kind)
        module = Net()
        module.requires_grad_(False)
        module.go.requires_grad_(True)
        model = smp.DistributedModel(module)
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        steps(model, optimizer, batches(1))
        before = copy.deepcopy(model.state_dict())
        for one in model.parameters():
            one.requires_grad_(True)
        steps(model, optimizer, batches(2))
        after = model.state_dict()
        for name in before:
            assert name == "scale" or not torch.equal(before[name], after[name]), name


def a_look_without_inference_tensors_comes_first() -> None:
    begin()
    model, optimizer = wrapped()
    if smp.pp_size() == 1:
        with torch.inference_mode():
            model(mine(batches(1)[0]))
    steps(model, optimizer, batches(STEPS))
    assert_close(model.state_dict(), alone("AdamW", batches(STEPS)))


def a_copy_of_the_module_is_refused() -> None:
    if smp.pp_size() > 1:
        return  # a rank may have no unit
    begin()
    model, _ = wrapped()
    try:
        copy.deepcopy(model.module)
    except AssertionError as error:
        assert "deepcopy" in str(error)
    else:
        raise AssertionError("not refused")


def calls_of_a_step(**parameters: Any) -> tuple[int, int]:
    """All-gathers and reduce-scatters, when the step function is known."""
    begin(**parameters)
    model, optimizer = wrapped("SGD")
    first, second = batches(2)
    steps(model, optimizer, [first])
    counts = [0, 0]
    before = [dist.all_gather_single, dist.reduce_scatter_single]

    def counting(at: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[at] += 1
            return before[at](*args, **kwargs)

        return call

    dist.all_gather_single, dist.reduce_scatter_single = counting(0), counting(1)
    try:
        train(model, mine(second))
    finally:
        dist.all_gather_single, dist.reduce_scatter_single = before
    return counts[0], counts[1]


def in_a_pipeline_microbatches_cost_no_more_messages() -> None:
    gathers, scatters = calls_of_a_step()
    again = calls_of_a_step(microbatches=2 * MICROBATCHES)
    if smp.pp_size() > 1:
        assert gathers == scatters and again == (gathers, scatters), (gathers, scatters, again)
    else:
        assert again == (2 * gathers, 2 * scatters), (gathers, scatters, again)


def a_smaller_bucket_makes_more_groups() -> None:
    large = calls_of_a_step()
    small = calls_of_a_step(sdp_reduce_bucket_size=WIDTH * WIDTH)
    assert small[0] > large[0] and small[1] > large[1], (large, small)


def smaller_parameters_than_the_threshold_stay_whole() -> None:
    begin(sdp_param_persistence_threshold=10**6)
    model, optimizer = wrapped()
    steps(model, optimizer, batches(STEPS))
    assert not any(isinstance(one, DTensor) for one in model.parameters())
    assert_close(model.state_dict(), alone("AdamW", batches(STEPS)))


CHECKS = [
    a_step_is_that_of_one_process,
    each_replica_has_its_part,
    whole_states_are_those_of_a_job_that_cuts_nothing,
    states_go_from_one_that_cuts_to_one_that_does_not_and_back,
    checkpoints_go_from_one_that_cuts_to_one_that_does_not_and_back,
    a_state_that_is_cut_may_be_left_out,
    a_save_in_the_background_has_the_values_of_its_begin,
    a_rank_that_cannot_write_is_an_error_on_all,
    parts_of_states_are_for_the_rank_that_saved_them,
    norms_are_those_of_all_parts,
    each_step_is_clipped_by_the_key,
    evaluation_between_steps_changes_nothing,
    gradients_of_several_steps_add_up,
    frozen_parameters_stay,
    half_precision_is_added_up_in_full,
    an_overflow_on_one_rank_skips_the_step_on_all,
    checkpointed_blocks_compute_the_same,
    a_step_may_call_the_model_twice,
    as_one_process_without_a_step_function,
    a_pass_that_fails_leaves_nothing_behind,
    an_infinity_of_one_rank_skips_the_step_on_all,
    groups_that_are_added_later_are_updated_too,
    optimizers_may_be_wrapped_first_and_be_several,
    a_microbatch_may_have_no_backward,
    a_model_that_is_cut_keeps_its_type,
    what_is_frozen_may_be_trained_later,
    a_look_without_inference_tensors_comes_first,
    a_copy_of_the_module_is_refused,
    in_a_pipeline_microbatches_cost_no_more_messages,
    a_smaller_bucket_makes_more_groups,
    smaller_parameters_than_the_threshold_stay_whole,
    gradients_that_are_not_the_models_are_refused,  # the pipeline is not usable afterwards
]

if __name__ == "__main__":
    main()
