"""Modules. Those that are cut over ranks can be imported; making one raises NotBuiltError."""

from torch.nn import LayerNorm

from muster_modelparallel.wrap.unbuilt import (
    DistributedAttentionLayer,
    DistributedEmbedding,
    DistributedLinear,
    DistributedModule,
    DistributedTransformer,
    DistributedTransformerLayer,
    DistributedTransformerLMHead,
    DistributedTransformerOutputLayer,
    FlashAttentionLayer,
)
from smdistributed.modelparallel.torch.nn import huggingface

FusedLayerNorm = LayerNorm

__all__ = [
    "DistributedAttentionLayer",
    "DistributedEmbedding",
    "DistributedLinear",
    "DistributedModule",
    "DistributedTransformer",
    "DistributedTransformerLMHead",
    "DistributedTransformerLayer",
    "DistributedTransformerOutputLayer",
    "FlashAttentionLayer",
    "FusedLayerNorm",
    "LayerNorm",
    "huggingface",
]
