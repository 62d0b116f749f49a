"""Objects in files: written whole or not at all, read without running anybody's code."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from muster_modelparallel.checkpoint.layout import Wrote, write_file
from muster_modelparallel.errors import CheckpointError


def save_object(obj: object, path: str, wrote: Wrote = lambda: None, **options: Any) -> int:
    """As `torch.save(obj, path, **options)`, but whole or not at all; returns the bytes. `wrote` is
    called whenever a part is on the disk."""
    return write_file(path, lambda to: torch.save(obj, to, **options), wrote)


def load_object(path: str, map_location: Any = "cpu", **options: Any) -> Any:
    """As `torch.load`, of tensors, containers and plain values only, unless `weights_only=False`
    is among the options. Raises CheckpointError for a file that is missing, cut short, or holds
    objects of other classes."""
    options.setdefault("weights_only", "pickle_module" not in options)
    try:
        return torch.load(path, map_location=map_location, **options)
    except pickle.UnpicklingError as error:
        text = str(error)
        if "weights_only" not in text.lower() and "weights only" not in text.lower():
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        raise CheckpointError(
            f"{path} holds objects that are more than tensors and plain values, so that reading "
            f"it could run code: {text.splitlines()[0]}",
            "if you trust the file, load it with weights_only=False",
        ) from error
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is not there") from error
    except (OSError, EOFError, RuntimeError, ValueError) as error:
        what = f"{path} cannot be read, it may have been cut short: {error}"
        raise CheckpointError(what, "resume from another checkpoint") from error


def load_user_content(path: str) -> Any:
    """What the script gave to `save_checkpoint` as `user_content`: any object, documented so; it
    is the script's own file, which is why it may be unpickled where plain values do not do."""
    try:
        return load_object(path)
    except CheckpointError as error:
        if not isinstance(error.__cause__, pickle.UnpicklingError):
            raise
    return load_object(path, weights_only=False)
