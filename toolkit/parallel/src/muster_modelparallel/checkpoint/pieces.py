"""Checkpoints in pieces: each rank writes what it has and reads what it needs, whatever the degrees
were. torch's distributed checkpoint (DCP) does it; what are no tensors lies beside its files.

Keys: model.NAME, optimizer.NAME.KEY, master_weights.NAME, by names of the user's module.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from muster_modelparallel.checkpoint.files import load_object, save_object
from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.model.nests import map_tensors
from muster_modelparallel.run.objects import CommGroup, allgather
from muster_modelparallel.wrap.model import PARTIAL, DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer
from muster_modelparallel.wrap.optimizer_state import MASTERS
from muster_modelparallel.wrap.shard.values import empty_like

_MODEL, _OPTIMIZER, _MASTERS = "model.", "optimizer.", "master_weights."
_REST = "rest.pt"  # of the optimizer: groups, loss scale, states that are no tensors


def save(
    folder: str,
    model: DistributedModel | None,
    optimizer: DistributedOptimizer | None,
    group: Any,
    in_background: bool,
) -> Future[Any]:
    """Done when all ranks have written into the folder: when it returns or, `in_background`,
    later; values are copied before. Collective; `group`: of all ranks, for CPU tensors alone."""
    tensors: dict[str, Any] = {}
    if model is not None:
        tensors |= {_MODEL + name: one for name, one in model.held_state().items()}
    if optimizer is not None:
        state, rest = _parted(optimizer)
        tensors |= state
        if dist.get_rank() == 0:
            save_object(rest, os.path.join(folder, _REST))
    if in_background:  # torch's async_save copies parts of tensors twice
        with torch.no_grad():
            tensors = map_tensors(lambda one: one.detach().to("cpu", copy=True), tensors)
    thread = ThreadPoolExecutor(1)  # that a disk which hangs holds up nobody else
    writer = dcp.FileSystemWriter(folder)
    return thread.submit(dcp.save, tensors, storage_writer=writer, process_group=group)


class Room(NamedTuple):
    """Where a rank reads what it needs of the checkpoint in `folder`: tensors by key."""

    folder: str
    reader: dcp.FileSystemReader
    tensors: dict[str, Any]


def room_for(
    folder: str, model: DistributedModel, optimizer: DistributedOptimizer | None, strict: bool
) -> Room:
    """Raises CheckpointError for a checkpoint of another model, or that cannot be read."""
    reader = _Reader(folder)
    saved = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {}
    for name, value in model.held_state().items():
        if isinstance(value, torch.Tensor) and _MODEL + name in saved:
            tensors[_MODEL + name] = empty_like(value, value.shape, value.dtype)
    known = {_MODEL + name for name in model.module.state_dict()}
    unknown = [key for key in saved if key.startswith(_MODEL) and key not in known]
    if strict and unknown:
        raise CheckpointError(
            f"{folder} has {unknown[0].removeprefix(_MODEL)}, which the model has not",
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
    return Room(folder, reader, tensors)


def read(room: Room, group: Any) -> None:
    """Fills it. Collective, as `save`."""
    dcp.load(room.tensors, storage_reader=room.reader, process_group=group)


def put(
    room: Room, model: DistributedModel, optimizer: DistributedOptimizer | None, strict: bool
) -> None:
    """What was read becomes that of the model and the optimizer. Raises as their
    `load_state_dict`."""
    own = {
        key.removeprefix(_MODEL): one for key, one in room.tensors.items() if key.startswith(_MODEL)
    }
    model.load_state_dict({**own, PARTIAL: True}, strict)
    rest = os.path.join(room.folder, _REST)
    if optimizer is not None and os.path.exists(rest):
        optimizer.load_state_dict(_joined(load_object(rest), room.tensors, _names(optimizer)))


def _names(optimizer: DistributedOptimizer) -> dict[Any, str]:
    """Of parameters by their numbers."""
    named = {} if optimizer.model is None else optimizer.model.named_parameters()
    name_of = {id(one): name for name, one in named}
    return {
        number: name_of.get(id(one), f"#{number}")
        for number, one in enumerate(optimizer.parameters())
    }


def _parted(optimizer: DistributedOptimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of this rank's state, and what is none of all ranks. Collective."""
    found, names = optimizer.held_state(), _names(optimizer)
    tensors = {_MASTERS + names[at]: one for at, one in found.pop(MASTERS, {}).items()}
    plain: dict[Any, dict[str, Any]] = {}
    for number, values in found["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{_OPTIMIZER}{names[number]}.{key}"] = value
            else:
                plain.setdefault(number, {})[key] = value
    every = allgather(plain, CommGroup.WORLD)
    found["state"] = {number: one for each in reversed(every) for number, one in each.items()}
    return tensors, found


def _room(saved: Mapping[str, Any], optimizer: DistributedOptimizer) -> dict[str, Any]:
    """For the tensors of the state of what this rank updates."""
    of = dict(zip(_names(optimizer).values(), optimizer.parameters(), strict=True))
    held = {id(one) for one in optimizer.held_parameters()}
    made: dict[str, Any] = {}
    for key, meta in saved.items():
        is_master, name = key.startswith(_MASTERS), ""
        if is_master:
            name = key.removeprefix(_MASTERS)
        elif key.startswith(_OPTIMIZER):
            name = key.removeprefix(_OPTIMIZER).rpartition(".")[0]
        if name in of and id(of[name]) in held and isinstance(meta, TensorStorageMetadata):
            made[key] = empty_like(of[name], meta.size, meta.properties.dtype)
    return made


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
