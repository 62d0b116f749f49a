"""The stock group: of torch's own class, with NCCL registered for CUDA tensors, as
`init_process_group("cpu:gloo,cuda:nccl")` makes one. CUDA tensors are its alone unless the options
of the device path ask for more.

torch takes a group that is Python in place of its own, with all that is registered there or would
be, and tells it neither the `device_id` nor what it is split from. So they are read where torch's
function that makes groups has them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

_C10D: Any = dist.distributed_c10d


def stock_group(caller: FrameType, ours: Sequence[str], options: Any, backend_options: Any) -> Any:
    """The group for all tensors but those on processors; `caller`, torch's function, asks for it
    with `options`. A device that names one of `ours` gets NCCL if it is CUDA. None where there is
    no such device, or torch makes groups in a way that we do not know. Raises ValueError for
    backends that torch alone can make.
    """
    known = caller.f_locals if caller.f_globals is vars(_C10D) else {}
    group, config = known.get("pg"), known.get("backend_config")
    if group is None or config is None:
        return None
    has_nccl = dist.is_nccl_available() and torch.cuda.is_available()
    for device, asked in config.get_device_backend_map().items():
        if device == "cpu" or (asked in ours and not (device == "cuda" and has_nccl)):
            continue
        name = dist.Backend.NCCL if asked in ours else asked
        kind = dist.Backend.backend_type_map[name]
        group._set_default_backend(kind)  # also what it is split by
        if torch.device(device) not in group._device_types:  # else torch has made it
            backend = _backend(name, device, options, backend_options, known)
            group._register_backend(torch.device(device), kind, backend)
    return group if group._device_types else None


def split(
    stock: Any,
    members: Sequence[int],
    ranks: Sequence[int],
    timeout: timedelta | None,
    options: Any,
    name: str | None,
    description: str | None,
    devices: Sequence[torch.device],
) -> Any:
    """The group of these of its ranks, split from `stock`, whose global ranks are `members`; None
    on other ranks. Raises ValueError for ranks that it has not.

    torch looks `ranks` up, unchecked, in a list that is empty for most default groups, and writes
    the part's into the options: with none given they are the group's own, for the next split too.
    """
    if not ranks or not set(ranks) <= set(range(stock.size())):
        raise ValueError(f"{list(ranks)} are not ranks of a group of {stock.size()}")
    held = [stock._get_backend(device).options for device in devices]
    for each in held:
        each.global_ranks_in_group = list(members)
    given = _copied(held[-1]) if options is None else options
    return stock.split_group(ranks, timeout, given, name, description, list(devices))


def _copied(options: Any) -> Any:
    if not isinstance(options, dist.ProcessGroupGloo._Options):
        return copy.deepcopy(options)
    made: Any = dist.ProcessGroupGloo._Options()  # which torch cannot copy
    made._devices, made._threads = options._devices, options._threads
    made._timeout = options._timeout
    return made


def _backend(name: str, device: str, options: Any, given: Any, known: Mapping[str, Any]) -> Any:
    """As torch 2.13 makes it; `given` are the options of the caller's program."""
    store = dist.PrefixStore(f"{device}/", options.store)
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    if name == dist.Backend.GLOO:
        backend: Any = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        backend.options.global_ranks_in_group = options.global_ranks_in_group
        backend.options.group_name = options.group_id
    elif name == dist.Backend.NCCL and dist.is_nccl_available():
        wanted: Any = dist.ProcessGroupNCCL.Options() if given is None else given
        wanted._timeout = timeout
        wanted.group_name = options.group_id
        wanted.global_ranks_in_group = options.global_ranks_in_group
        if known.get("split_from"):
            wanted.split_from = known["split_from"]
            wanted.split_color = _C10D._process_group_color(options.global_ranks_in_group)
        backend = dist.ProcessGroupNCCL(store, rank, size, wanted)
    else:
        raise ValueError(
            f"backend {name!r} of {device} cannot be made after cpu's\n"
            f"  Fix: name {device} before cpu, or install a torch that has {name}"
        )
    backend._set_sequence_number_for_group()
    return backend
