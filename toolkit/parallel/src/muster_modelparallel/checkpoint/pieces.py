"""Checkpoints in pieces: each rank writes what it has and reads what it needs, whatever the degrees
were. torch's distributed checkpoint (DCP) does it; what are no tensors lies beside its files.

Keys: model.NAME, optimizer.NAME.KEY, master_weights.NAME, by names of the user's module.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from muster_modelparallel.checkpoint.files import load_object, save_object
from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.model.nests import leaves, map_tensors
from muster_modelparallel.wrap.model import PARTIAL, DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer
from muster_modelparallel.wrap.optimizer_state import MASTERS
from muster_modelparallel.wrap.shard.values import empty_like

_MODEL, _OPTIMIZER, _MASTERS = "model.", "optimizer.", "master_weights."
_REST = "rest.pt"  # what are no tensors: of the model its extra states, of the optimizer its groups


class Pieces(NamedTuple):
    """What a rank has: tensors by key, and what are none."""

    tensors: dict[str, Any]
    rest: dict[str, Any]


def pieces_of(
    model: DistributedModel | None, optimizer: DistributedOptimizer | None, as_copies: bool
) -> Pieces:
    """This rank's; `as_copies`: in the host's memory. Not collective. Raises CheckpointError for a
    state of the optimizer with tensors within other values."""
    tensors: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, one in ({} if model is None else model.held_state()).items():
        if isinstance(one, torch.Tensor):
            tensors[_MODEL + name] = one
        else:
            rest.setdefault("model", {})[name] = one
    if optimizer is not None:
        state, rest["optimizer"] = _parted(optimizer)
        tensors |= state
    if as_copies:  # torch's async_save copies parts of tensors twice
        with torch.no_grad():
            tensors = map_tensors(lambda one: one.detach().to("cpu", copy=True), tensors)
    return Pieces(tensors, rest)


def save_rest(folder: str, every: Sequence[Mapping[str, Any]]) -> None:
    """What are no tensors, of all ranks."""
    made: dict[str, Any] = {"model": {}}
    for rest in reversed(every):
        made["model"].update(rest.get("model", {}))
    if "optimizer" in every[0]:
        states = [rest["optimizer"]["state"] for rest in reversed(every)]
        merged = {number: one for each in states for number, one in each.items()}
        made["optimizer"] = {**every[0]["optimizer"], "state": merged}
    save_object(made, os.path.join(folder, _REST))


def save(folder: str, tensors: Mapping[str, Any], group: Any, device: torch.device) -> Future[None]:
    """Done when all ranks have written; of a thread that nobody waits for at exit. `group`: of all
    ranks, for CPU tensors alone. What it raises is a CheckpointError."""
    done: Future[None] = Future()

    def write() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # of this thread: copies go by its stream
            dcp.save(
                dict(tensors), storage_writer=dcp.FileSystemWriter(folder), process_group=group
            )
        except BaseException as error:  # DCP's is no Exception
            problem = CheckpointError(f"torch's distributed checkpoint: {error}")
            problem.__cause__ = error
            done.set_exception(problem)
        else:
            done.set_result(None)

    threading.Thread(target=write, name="checkpoint", daemon=True).start()
    return done


class Room(NamedTuple):
    """Where a rank reads what it needs of the checkpoint in `folder`: tensors by key."""

    folder: str
    reader: dcp.FileSystemReader
    rest: dict[str, Any]
    tensors: dict[str, Any]


def room_for(
    folder: str, model: DistributedModel, optimizer: DistributedOptimizer | None, strict: bool
) -> Room:
    """Raises CheckpointError for a checkpoint of another model, or that cannot be read."""
    reader = _Reader(folder)
    saved = reader.read_metadata().state_dict_metadata
    rest = load_object(os.path.join(folder, _REST))
    tensors: dict[str, Any] = {}
    for name, value in model.held_state().items():
        if isinstance(value, torch.Tensor) and _MODEL + name in saved:
            tensors[_MODEL + name] = empty_like(value, value.shape, value.dtype)
    known = set(model.module.state_dict())
    names = [key.removeprefix(_MODEL) for key in saved if key.startswith(_MODEL)]
    unknown = [name for name in (*names, *rest["model"]) if name not in known]
    if strict and unknown:
        raise CheckpointError(
            f"{folder} has {unknown[0]}, which the model has not",
            "is it a checkpoint of the same model?",
        )
    if optimizer is not None:
        tensors |= _room(saved, optimizer)
    for key, tensor in tensors.items():
        found = getattr(saved[key], "size", None)
        if found != tensor.shape:
            raise CheckpointError(
                f"{folder} has {key} of shape {found}, and here it has {tuple(tensor.shape)}",
                "is it a checkpoint of the same model?",
            )
    return Room(folder, reader, rest, tensors)


def read(room: Room, group: Any) -> None:
    """Fills it. Collective, as `save`. Raises CheckpointError."""
    try:
        dcp.load(room.tensors, storage_reader=room.reader, process_group=group)
    except dcp.CheckpointException as error:  # it is no Exception
        raise CheckpointError(f"{room.folder} cannot be read: {error}") from error


def put(
    room: Room,
    model: DistributedModel,
    optimizer: DistributedOptimizer | None,
    strict: bool,
    masters_only: bool,
) -> None:
    """What was read becomes that of the model and the optimizer. Raises as their
    `load_state_dict`."""
    own = {
        key.removeprefix(_MODEL): one for key, one in room.tensors.items() if key.startswith(_MODEL)
    }
    model.load_state_dict({**own, **room.rest["model"], PARTIAL: True}, strict)
    if optimizer is not None and "optimizer" in room.rest:
        state = _joined(room.rest["optimizer"], room.tensors, _names(optimizer))
        optimizer.load_state_dict(state, masters_only)


def _names(optimizer: DistributedOptimizer) -> dict[Any, str]:
    """Of parameters by their numbers."""
    named = {} if optimizer.model is None else optimizer.model.named_parameters()
    name_of = {id(one): name for name, one in named}
    return {
        number: name_of.get(id(one), f"#{number}")
        for number, one in enumerate(optimizer.parameters())
    }


def _parted(optimizer: DistributedOptimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of this rank's state, and what are none."""
    found, names = optimizer.held_state(), _names(optimizer)
    tensors = {_MASTERS + names[at]: one for at, one in found.pop(MASTERS, {}).items()}
    plain: dict[Any, dict[str, Any]] = {}
    for number, values in found["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{_OPTIMIZER}{names[number]}.{key}"] = value
            elif any(isinstance(leaf, torch.Tensor) for leaf in leaves(value)):
                raise CheckpointError(
                    f"the optimizer keeps {key}, a {type(value).__name__} with tensors, for "
                    f"{names[number]}, which are not saved in pieces",
                    "leave out in_pieces",
                )
            else:
                plain.setdefault(number, {})[key] = value
    return tensors, {**found, "state": plain}


def _room(saved: Mapping[str, Any], optimizer: DistributedOptimizer) -> dict[str, Any]:
    """For the tensors of the state of what this rank updates."""
    of = dict(zip(_names(optimizer).values(), optimizer.parameters(), strict=True))
    wanted: dict[str, torch.Tensor] = {}
    for key in saved:
        if key.startswith(_MASTERS):
            name = key.removeprefix(_MASTERS)
        elif key.startswith(_OPTIMIZER):
            name = key.removeprefix(_OPTIMIZER).rpartition(".")[0]
        else:
            continue
        if name in of and isinstance(saved[key], TensorStorageMetadata):
            wanted[key] = of[name]
    mine = {id(one) for one in optimizer.updated(dict.fromkeys(wanted.values()))}
    return {
        key: empty_like(one, saved[key].size, saved[key].properties.dtype)
        for key, one in wanted.items()
        if id(one) in mine
    }


def _joined(
    rest: dict[str, Any], tensors: Mapping[str, Any], names: Mapping[Any, str]
) -> dict[str, Any]:
    """The inverse of `_parted`, of what this rank has."""
    number_of = {name: number for number, name in names.items()}
    masters = {}
    for key, value in tensors.items():
        if key.startswith(_MASTERS):
            masters[number_of[key.removeprefix(_MASTERS)]] = value
        elif key.startswith(_OPTIMIZER):
            name, _, what = key.removeprefix(_OPTIMIZER).rpartition(".")
            rest["state"].setdefault(number_of[name], {})[what] = value
    return {**rest, MASTERS: masters} if masters else rest


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]  # torch is untyped here
    """Does not run what a file says."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """As torch's. Raises CheckpointError where the file is not there, not whole, or has more
        in it than torch's own words about tensors."""
        name = os.path.join(self.path, ".metadata")
        try:
            with open(name, "rb") as file:
                found: Metadata = _Words(file).load()
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ValueError) as error:
            what = f"{name} cannot be read: {error}"
            raise CheckpointError(what, "resume from another checkpoint") from error
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Words(pickle.Unpickler):
    """Of classes only those that DCP's metadata is made of."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")


_CLASSES: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata",
        "ChunkStorageMetadata", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("PosixPath",),
}  # fmt: skip
