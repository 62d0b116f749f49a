"""Model parallelism for PyTorch: a script names its model, its optimizer and its step.

    import muster_modelparallel as smp

    smp.init()
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

    @smp.step
    def train_step(x, y):
        loss = criterion(model(x), y)
        model.backward(loss)
        return loss

The API is that of smdistributed.modelparallel.torch 1.x, whose name muster-compat has. Source: the
public documentation of the library. Torch is imported when the first name that needs it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster_modelparallel.version import __version__

if TYPE_CHECKING:
    from muster_modelparallel.checkpoint.resuming import resume_from_checkpoint
    from muster_modelparallel.checkpoint.saving import save_checkpoint, wait_for_checkpoint
    from muster_modelparallel.checkpoint.single import load, save
    from muster_modelparallel.errors import (
        CheckpointError,
        ExchangeError,
        ModelParallelError,
        NotBuiltError,
        NotStartedError,
        PlanError,
        SettingsError,
        StepError,
    )
    from muster_modelparallel.run.objects import (
        CommGroup,
        RankType,
        allgather,
        barrier,
        broadcast,
        dp_barrier,
        mp_barrier,
        recv_from,
        send,
    )
    from muster_modelparallel.run.outputs import StepOutput
    from muster_modelparallel.run.ranks import (
        dp_rank,
        dp_size,
        get_dp_group,
        get_dp_process_group,
        get_mp_group,
        get_mp_process_group,
        get_pp_group,
        get_pp_process_group,
        get_rdp_group,
        get_rdp_process_group,
        get_tp_group,
        get_tp_process_group,
        get_world_process_group,
        local_rank,
        local_size,
        mp_rank,
        mp_size,
        pp_rank,
        pp_size,
        rank,
        rdp_rank,
        rdp_size,
        size,
        tp_rank,
        tp_size,
    )
    from muster_modelparallel.run.session import init, is_initialized, is_tracing
    from muster_modelparallel.run.state import rmsg, state
    from muster_modelparallel.run.step import step
    from muster_modelparallel.wrap.activations import (
        checkpoint_sequential,
        set_activation_checkpointing,
    )
    from muster_modelparallel.wrap.creation import delay_param_initialization, model_creation
    from muster_modelparallel.wrap.grad_scaler import GradScaler
    from muster_modelparallel.wrap.layerwise import FusedLAMB, FusedNovoGrad
    from muster_modelparallel.wrap.model import DistributedModel
    from muster_modelparallel.wrap.optimizer import DistributedOptimizer
    from muster_modelparallel.wrap.partitions import (
        get_partition,
        partition,
        set_partition,
        set_tensor_parallelism,
        tensor_parallelism,
    )
    from muster_modelparallel.wrap.unbuilt import tp_register, tp_register_with_module

    DP_GROUP = CommGroup.DP_GROUP
    MP_GROUP = CommGroup.MP_GROUP
    PP_GROUP = CommGroup.PP_GROUP
    RDP_GROUP = CommGroup.RDP_GROUP
    TP_GROUP = CommGroup.TP_GROUP
    WORLD = CommGroup.WORLD

__all__ = [
    "CheckpointError",
    "CommGroup",
    "DP_GROUP",
    "DistributedModel",
    "DistributedOptimizer",
    "ExchangeError",
    "FusedLAMB",
    "FusedNovoGrad",
    "GradScaler",
    "MP_GROUP",
    "ModelParallelError",
    "NotBuiltError",
    "NotStartedError",
    "PP_GROUP",
    "PlanError",
    "RDP_GROUP",
    "RankType",
    "SettingsError",
    "StepError",
    "StepOutput",
    "TP_GROUP",
    "WORLD",
    "__version__",
    "allgather",
    "barrier",
    "broadcast",
    "checkpoint_sequential",
    "delay_param_initialization",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_partition",
    "get_pp_group",
    "get_pp_process_group",
    "get_rdp_group",
    "get_rdp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_process_group",
    "init",
    "is_initialized",
    "is_tracing",
    "load",
    "local_rank",
    "local_size",
    "model_creation",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "partition",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "recv_from",
    "resume_from_checkpoint",
    "rmsg",
    "save",
    "save_checkpoint",
    "send",
    "set_activation_checkpointing",
    "set_partition",
    "set_tensor_parallelism",
    "size",
    "state",
    "step",
    "tensor_parallelism",
    "tp_rank",
    "tp_register",
    "tp_register_with_module",
    "tp_size",
    "wait_for_checkpoint",
]

_HOMES: Mapping[str, tuple[str, ...]] = {
    "run.session": (
        "init",
        "is_initialized",
        "is_tracing",
    ),
    "run.ranks": (
        "dp_rank",
        "dp_size",
        "get_dp_group",
        "get_dp_process_group",
        "get_mp_group",
        "get_mp_process_group",
        "get_pp_group",
        "get_pp_process_group",
        "get_rdp_group",
        "get_rdp_process_group",
        "get_tp_group",
        "get_tp_process_group",
        "get_world_process_group",
        "local_rank",
        "local_size",
        "mp_rank",
        "mp_size",
        "pp_rank",
        "pp_size",
        "rank",
        "rdp_rank",
        "rdp_size",
        "size",
        "tp_rank",
        "tp_size",
    ),
    "run.objects": (
        "CommGroup",
        "RankType",
        "allgather",
        "barrier",
        "broadcast",
        "dp_barrier",
        "mp_barrier",
        "recv_from",
        "send",
    ),
    "run.step": ("step",),
    "run.outputs": ("StepOutput",),
    "run.state": (
        "rmsg",
        "state",
    ),
    "wrap.model": ("DistributedModel",),
    "wrap.optimizer": ("DistributedOptimizer",),
    "wrap.creation": ("delay_param_initialization", "model_creation"),
    "wrap.partitions": (
        "get_partition",
        "partition",
        "set_partition",
        "set_tensor_parallelism",
        "tensor_parallelism",
    ),
    "wrap.activations": (
        "checkpoint_sequential",
        "set_activation_checkpointing",
    ),
    "wrap.grad_scaler": ("GradScaler",),
    "wrap.layerwise": (
        "FusedLAMB",
        "FusedNovoGrad",
    ),
    "wrap.unbuilt": (
        "tp_register",
        "tp_register_with_module",
    ),
    "checkpoint.saving": ("save_checkpoint", "wait_for_checkpoint"),
    "checkpoint.resuming": ("resume_from_checkpoint",),
    "checkpoint.single": (
        "load",
        "save",
    ),
}
_GROUPS = ("DP_GROUP", "MP_GROUP", "PP_GROUP", "RDP_GROUP", "TP_GROUP", "WORLD")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _GROUPS:
        objects = importlib.import_module(f"{__name__}.run.objects")
        return getattr(objects.CommGroup, name)
    home = next((home for home, names in _HOMES.items() if name in names), "errors")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
