"""State dictionaries between Hugging Face's format and that of the wrapped model.

A model is never rebuilt from other modules here, so its names are those of Hugging Face and both
formats are one. Source: "Support for Hugging Face Transformer Models" of the developer guide.
"""

from __future__ import annotations

from typing import Any

from muster_modelparallel.errors import NotBuiltError
from muster_modelparallel.run.session import current


def to_hugging_face(state_dict: dict[str, Any], max_seq_len: int | None = None) -> dict[str, Any]:
    """A full state dictionary of the wrapped model, for the model of Hugging Face. Raises
    NotBuiltError where tensors are cut over ranks."""
    return _same(state_dict)


def from_hugging_face(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dictionary of a model of Hugging Face, for the wrapped model. Raises NotBuiltError
    where tensors are cut over ranks."""
    return _same(state_dict)


def _same(state_dict: dict[str, Any]) -> dict[str, Any]:
    if current().config.tensor_parallel_degree > 1:
        raise NotBuiltError(
            "state dictionaries of tensor-parallel models come with a later release of muster"
        )
    return state_dict
