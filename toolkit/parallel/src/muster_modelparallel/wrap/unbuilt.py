"""Documented names that muster does not have yet: they can be imported, and say so when used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import nn

from muster_modelparallel.errors import NotBuiltError


def _function(name: str, purpose: str) -> Callable[..., NoReturn]:
    def use(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(f"smp.{name} ({purpose}) comes with a later release of muster")

    use.__name__ = use.__qualname__ = name.rsplit(".", 1)[-1]
    use.__doc__ = f"{purpose}. Raises NotBuiltError."
    return use


def _module(name: str, purpose: str) -> type[nn.Module]:
    """A class, so that `isinstance` and class statements of scripts work; no instance is made."""
    short = name.rsplit(".", 1)[-1]
    text = f"{purpose}. Making one raises NotBuiltError."
    return type(short, (nn.Module,), {"__init__": _function(name, purpose), "__doc__": text})


_CUT = "cut over the ranks of the tensor-parallel group"

DistributedModule = _module("nn.DistributedModule", "the base of tensor-parallel modules")
DistributedLinear = _module("nn.DistributedLinear", f"a linear layer {_CUT}")
DistributedEmbedding = _module("nn.DistributedEmbedding", f"an embedding {_CUT}")
DistributedTransformer = _module("nn.DistributedTransformer", f"transformer layers {_CUT}")
DistributedTransformerLMHead = _module(
    "nn.DistributedTransformerLMHead", f"a language model {_CUT}"
)
DistributedTransformerLayer = _module(
    "nn.DistributedTransformerLayer", f"a transformer layer {_CUT}"
)
DistributedAttentionLayer = _module("nn.DistributedAttentionLayer", f"attention {_CUT}")
DistributedTransformerOutputLayer = _module(
    "nn.DistributedTransformerOutputLayer", f"the feed-forward part of a layer {_CUT}"
)
FlashAttentionLayer = _module("nn.FlashAttentionLayer", "attention in one fused kernel")

tp_register = _function("tp_register", "a decorator that makes a module tensor-parallel")
tp_register_with_module = _function(
    "tp_register_with_module", "says which module takes another's place when tensors are cut"
)
dump_model = _function("test.torch.utils.dump_model", "writes a model down to compare it later")
verify = _function("test.torch.utils.verify", "compares a model with one that was written down")
