"""What a split does with the ways in which models hide where a tensor comes from or goes."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from muster_modelparallel.errors import SplitError
from muster_modelparallel.model.ghost import GhostStage
from muster_modelparallel.model.hollow import hollow_parameters, made_hollow
from muster_modelparallel.model.probe import probe
from muster_modelparallel.model.proof import prove
from muster_modelparallel.model.random import Draw
from muster_modelparallel.model.trace import Meta
from muster_modelparallel.model.walk import Origin
from tests.model_parallel.support.cuts import equal_cut
from tests.model_parallel.support.ghost_ranks import run_stages, run_whole
from tests.model_parallel.support.graphs import Block, Side

pytestmark = pytest.mark.torch
IDS = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 1, 2]])
WIDTH = 6


class Chain(nn.Module):
    """An embedding and four linear layers; subclasses put glue between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok = nn.Embedding(10, WIDTH)
        self.h = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.h:
            x = torch.tanh(layer(x))
        return x


class Alias(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Identity()

    def forward(self, ids):
        x = self.tok(ids)
        hidden = self.same(x)
        for layer in self.h:
            x = x + layer(hidden)
        return x


class Borrowed(Chain):
    def forward(self, ids):
        return functional.linear(super().forward(ids), self.tok.weight)


class GlueDropout(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.h:
            x = self.drop(functional.dropout(layer(x), 0.5, self.training))
        return x


class InPlace(Chain):
    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.h:
            x = layer(x)
            x.add_(1.0)
        return x


class Hooked(Chain):
    """Parts of units are collected by hooks, as router logits are."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block() for _ in range(4))

    def forward(self, ids):
        seen: list[torch.Tensor] = []
        handles = [
            block.down.register_forward_hook(lambda part, args, out: seen.append(out))
            for block in self.h
        ]
        x = self.tok(ids)
        for block in self.h:
            x = block(x)
        for handle in handles:
            handle.remove()
        return {"out": x, "none": None, "aux": sum(one.square().mean() for one in seen)}


class Sided(Chain):
    """Units leave tensors as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Side(WIDTH, WIDTH) for _ in range(4))

    def forward(self, ids):
        return super().forward(ids) + sum(layer.seen for layer in self.h)


class Reused(Chain):
    def forward(self, ids):
        x = self.tok(ids)
        for layer in (*self.h, self.h[0]):
            x = torch.tanh(layer(x))
        return x


class Checkpointed(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block() for _ in range(4))

    reentrant = False

    def forward(self, ids):
        x = self.tok(ids)
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Reentrant(Checkpointed):
    reentrant = True


class Norms(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(3) for _ in range(4))

    def forward(self, ids):
        x = self.tok(ids)
        for layer, norm in zip(self.h, self.norms, strict=True):
            x = functional.relu(norm(layer(x)), inplace=True)
        return x


class Tied(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.h[3].weight = self.h[0].weight


class Cached(Chain):
    """An object that units get and fill, and give back, as a key-value cache."""

    def forward(self, ids):
        x, cache = self.tok(ids), Memory()
        for layer in self.h:
            x = torch.tanh(layer(x))
        return x, cache


class Memory:
    """No container that anything could take apart."""


class Number(nn.Linear):
    number = 0.0

    def forward(self, x):
        out = super().forward(x)
        self.number = float(out.detach().mean())
        return out


class Numbered(Chain):
    """A number that follows from the data leaves a unit as an attribute: nothing can see that."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Number(WIDTH, WIDTH) for _ in range(4))

    def forward(self, ids):
        return super().forward(ids) * self.h[0].number


def split(model, parts=2, ids=IDS):
    probed = probe(model, (ids,), {}, parts, timing=False)
    return probed, probed.split(equal_cut(probed.profile, parts))


SPLIT = [
    Chain, Alias, Borrowed, GlueDropout, InPlace, Hooked, Sided, Reused, Checkpointed, Reentrant,
    Norms, Tied, Cached,
]  # fmt: skip


@pytest.mark.parametrize("kind", SPLIT, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_stages_on_models_of_their_own_give_what_the_model_gives(kind, training):
    model = kind().train(training)
    fresh = copy.deepcopy(model)
    probed, found = split(model)
    assert found.parts == 2
    proof = prove(model, found, (IDS,), {}, True, probed.state)
    assert proof.gradients == len(list(model.parameters()))
    other = IDS.flip(0).contiguous() % 7
    whole, stages = (
        run(lambda: copy.deepcopy(fresh), found, (other,), {}, Draw(1, 2, 3))
        for run in (run_whole, run_stages)
    )
    assert all(map(torch.equal, whole.outputs, stages.outputs))
    assert whole.gradients.keys() == stages.gradients.keys()
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(stages.gradients[name], gradient)


def test_a_number_that_leaves_a_unit_unseen_is_refused_by_the_proof_with_the_first_unit():
    model = Numbered()
    probed, found = split(model)
    with pytest.raises(SplitError, match=r"output 0 differs.*no unit differs, but glue"):
        prove(model, found, (IDS,), {}, pristine=probed.state)


def test_memory_that_several_units_return_and_one_changes_keeps_them_on_one_stage():
    class Views(Chain):
        def forward(self, ids):
            x = self.h[0](self.tok(ids))
            y = self.flat(x)
            y.add_(1.0)
            return self.h[2](self.h[1](x))

    model = Views()
    model.flat = nn.Flatten(1)
    probed = probe(model, (IDS,), {}, 2, timing=False)
    names = [unit.name for unit in probed.profile.units]
    held = [
        {names[unit] for unit in one.units}
        for one in probed.profile.constraints
        if one.why == "in-place"
    ]
    assert {"h.0", "h.1"} in held and {"flat", "h.1"} in held
    with pytest.raises(SplitError, match=r"h\.0 is on stage 0 and h\.1 on stage 1.*in-place"):
        probed.split([0, 0, 0, 1, 1])


@pytest.mark.parametrize("kind", [Chain, Norms, GlueDropout], ids=lambda kind: kind.__name__)
def test_a_probe_and_a_proof_leave_no_trace(kind):
    model = kind()
    before = copy.deepcopy(model.state_dict())
    objects = {id(one) for one in (*model.parameters(), *model.buffers())}
    attributes = {path: sorted(vars(module)) for path, module in model.named_modules()}
    torch.manual_seed(5)
    random = torch.get_rng_state()
    probed = probe(model, (IDS,), {}, 2, budget_s=0.1)
    found = probed.split(equal_cut(probed.profile, 2))
    prove(model, found, (IDS,), {}, True, probed.state)
    assert torch.equal(random, torch.get_rng_state())
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    assert objects == {id(one) for one in (*model.parameters(), *model.buffers())}
    assert attributes == {path: sorted(vars(module)) for path, module in model.named_modules()}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_costs_flows_ties_and_blocks_are_those_of_the_model():
    probed = probe(Tied(), (IDS,), {}, 2, budget_s=0.2)
    profile = probed.profile
    assert [unit.name for unit in profile.units] == ["tok", "h.0", "h.1", "h.2", "h.3"]
    assert [unit.block for unit in profile.units] == ["", "h.0", "h.1", "h.2", "h.3"]
    assert [unit.flops for unit in profile.units] == [0.0, *[2.0 * 12 * WIDTH * WIDTH] * 4]
    assert profile.costs == "measured" and all(unit.forward_s > 0 for unit in profile.units)
    assert [(tie.parameter, tie.units) for tie in profile.ties] == [("h.0.weight", (1, 4))]
    flows = [(flow.source, flow.target, flow.bytes, flow.why) for flow in profile.flows]
    assert flows[:2] == [(-1, 0, 96, "argument"), (0, 1, 288, "argument")]
    assert flows[2:] == [(1, 2, 288, "glue"), (2, 3, 288, "glue"), (3, 4, 288, "glue"),
                         (4, 5, 288, "output")]  # fmt: skip


def test_only_what_straddles_a_cut_stays_open_and_one_tensor_is_passed_on_between_blocks():
    model = Checkpointed()
    probed = probe(model, (IDS,), {}, 4, timing=False)
    names = [unit.name for unit in probed.profile.units]
    assert "h.1.up" in names  # a block is more than half a stage of four
    stages = [int(name >= "h.2") if name != "tok" else 0 for name in names]
    found = probed.split(stages)
    assert [call.path for call in found.calls] == ["tok", "h.0", "h.1", "h.2", "h.3"]
    assert found.received[1] == (Origin("value", 2, 0),)
    crossing = {one.cut: one for one in probed.profile.crossings}
    between, inside = names.index("h.2.norm"), names.index("h.1.up")
    assert [crossing[between].tensors, crossing[between].grads] == [1, 1]
    assert crossing[inside].bytes > crossing[between].bytes == found.metas(1)[0].bytes


def test_each_rank_holds_what_it_owns_and_one_element_of_everything_else():
    model = Tied()
    _, found = split(model)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hollow_parameters(model, found.parameters[1]):
        for name, parameter in model.named_parameters():
            stored = parameter.untyped_storage().nbytes()
            assert (stored == 4) == (name not in found.parameters[1])
            assert parameter.shape == shapes[name] and parameter.requires_grad
        optimizer.step()
    assert found.tied == {"h.0.weight"}
    assert set().union(*found.parameters) == set(shapes)


def test_fewer_units_than_stages_are_refused_with_the_reason():
    with pytest.raises(SplitError, match=r"Sided has 5 units with 1 places to cut.*h\.0 to h\.3"):
        probe(Sided(), (IDS,), {}, 4, timing=False)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_with_the_reason():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    padded = torch.tensor([[False, True], [False, False]])
    with torch.no_grad(), pytest.raises(SplitError, match="enable_nested_tensor=False"):
        probe(model, (torch.ones(2, 2, 8),), {"src_key_padding_mask": padded}, 2, timing=False)


def test_a_model_that_calls_other_units_than_the_probe_saw_is_stopped():
    class Skips(Chain):
        skipped = 9

        def forward(self, ids):
            x = self.tok(ids)
            for place, layer in enumerate(self.h):
                if place != self.skipped:
                    x = layer(x)
            return x

    model = Skips()
    _, found = split(model)
    model.skipped = 1
    stage = GhostStage(model, found.whole(), 0)
    with stage.installed(), pytest.raises(SplitError, match=r"expected h\.1 .* found h\.2"):
        stage.run((IDS,), {})


def test_shapes_alone_give_the_units_flows_and_flops_of_the_model_itself():
    real = probe(Hooked(), (IDS,), {}, 3, timing=False).profile
    with torch.device("meta"):
        model = Hooked()
    probed = probe(made_hollow(model), (IDS,), {}, 3, hollow=True)
    hollow = probed.profile
    found = probed.split(equal_cut(hollow, 3))
    assert str(prove(model, found, (IDS,), {})).startswith("not proved: the model is there by")
    assert hollow.units == real.units and hollow.flows == real.flows
    assert hollow.ties == real.ties and hollow.constraints == real.constraints


def test_shapes_alone_copy_no_weight():
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4096, 4096), nn.Linear(4096, 2**26, bias=False)

        def forward(self, x):
            return self.head(self.body(x)).square().mean()

    with torch.device("meta"):
        model = Head()
    seen = probe(made_hollow(model), (torch.ones(8, 4096),), {}, 2, hollow=True).profile
    assert seen.units[1].parameter_bytes == 2**40 and seen.units[1].flops == 2.0 * 8 * 2**38
    assert seen.costs == "flops"


class TestMutations:
    """The proof notices a split that is wrong, whatever made it wrong."""

    def proved(self, model, found, probed):
        prove(model, found, (IDS,), {}, True, probed.state)

    def test_a_placeholder_that_is_sent(self, monkeypatch):
        model = Alias()
        probed, found = split(model)
        self.proved(model, found, probed)
        monkeypatch.setattr(GhostStage, "run", placeholders_sent(GhostStage.run, found.metas(1)))
        with pytest.raises(SplitError, match=r"the first unit that differs is h\.1"):
            self.proved(model, found, probed)

    def test_an_alias_that_is_taken_for_a_tensor_of_its_own(self):
        model = Alias()
        probed, found = split(model)
        calls = list(found.calls)
        leaf = dataclasses.replace(calls[1].returned[0], argument=-1)
        calls[1] = dataclasses.replace(calls[1], returned=(leaf,))
        with pytest.raises(SplitError, match="differs"):
            self.proved(model, dataclasses.replace(found, calls=tuple(calls)), probed)

    def test_a_value_that_is_not_passed_on(self):
        model = Alias()
        probed, found = split(model)
        less = dataclasses.replace(found, received=((), found.received[1][1:]))
        with pytest.raises(SplitError, match="differs"):
            self.proved(model, less, probed)

    def test_a_call_that_is_counted_wrongly(self):
        model = Reused()
        probed, found = split(model)
        wrong = dataclasses.replace(found, calls=found.calls[:-1], stages=found.stages[:-1])
        with pytest.raises(SplitError, match=r"expected the end of forward .* and found h\.0"):
            self.proved(model, wrong, probed)

    def test_a_value_that_is_not_cloned(self):
        model = InPlace()
        probed, found = split(model)
        with pytest.raises(SplitError):
            self.proved(model, dataclasses.replace(found, cloned=frozenset()), probed)

    def test_glue_that_draws_other_numbers_on_each_stage(self, monkeypatch):
        model = GlueDropout()
        probed, found = split(model)
        monkeypatch.setattr(Draw, "at", lambda draw, place: None)
        with pytest.raises(SplitError, match="differs"):
            self.proved(model, found, probed)

    def test_a_parameter_that_is_not_held(self):
        model = Borrowed()
        probed, found = split(model)
        less = found.parameters[1] - {"tok.weight"}
        with pytest.raises(SplitError, match="no unit differs, but glue"):
            self.proved(
                model, dataclasses.replace(found, parameters=(found.parameters[0], less)), probed
            )


def placeholders_sent(run, metas: tuple[Meta, ...]):
    def wrong(stage, args, kwargs, received=(), *rest, **named):
        sent = run(stage, args, kwargs, received, *rest, **named)
        if stage.stage < stage.split.parts - 1:
            return tuple(meta.placeholder(False) for meta in metas)
        return sent

    return wrong


@pytest.mark.parametrize("cast", ["bf16", "autocast"])
def test_sums_of_coarse_numbers_may_come_in_another_order(cast):
    """The output of the embedding goes into every block, so that its gradient is added up anew."""

    class Everywhere(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(16, 32)
            self.h = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))

        def forward(self, ids):
            first = x = self.tok(ids)
            for block in self.h:
                x = block(x + first).tanh()
            return x

    torch.manual_seed(3)
    model = Everywhere().to(torch.bfloat16 if cast == "bf16" else torch.float32)
    ids = torch.randint(16, (8, 24))
    with torch.autocast("cpu", torch.bfloat16, enabled=cast == "autocast"):
        probed = probe(model, (ids,), {}, 4, timing=False)
        found = probed.split([0, 0, 0, 1, 1, 2, 2, 3, 3])
        proof = prove(model, found, (ids,), {}, gradients=True, pristine=probed.state)
    assert proof.gradients == 17 and not proof.why_not


def test_casts_that_autocast_keeps_are_no_weights_of_a_stage():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    x = torch.randn(4, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        probed = probe(model, (x,), {}, 2, timing=False)
        found = probed.split([0, 0, 1, 1])
        held = (found.parameters[0] - {"1.weight"}, found.parameters[1])
        with pytest.raises(SplitError, match="the first unit that differs is 1"):
            prove(
                model, dataclasses.replace(found, parameters=held), (x,), {}, pristine=probed.state
            )


def test_sparse_gradients_are_compared():
    model = nn.Sequential(nn.Embedding(16, 8, sparse=True), nn.Linear(8, 8), nn.Linear(8, 4))
    ids = torch.randint(16, (4, 6))
    probed = probe(model, (ids,), {}, 2, timing=False)
    found = probed.split([0, 0, 1])
    assert prove(model, found, (ids,), {}, gradients=True, pristine=probed.state).gradients == 5


def test_a_model_without_modules_has_no_units():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.weight

    with pytest.raises(SplitError, match="Flat calls no modules that could be units"):
        probe(Flat(), (torch.ones(2, 4),), {}, 1)
