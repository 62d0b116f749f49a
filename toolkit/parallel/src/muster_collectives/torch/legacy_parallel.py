"""The model wrapper of `smdistributed.dataparallel.torch.parallel`: torch's, with its arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class DistributedDataParallel(nn.parallel.DistributedDataParallel):  # type: ignore[misc]
    """torch's wrapper with the legacy signature; `no_sync()` and all else are torch's.

    Devices are named for modules on one device alone: on processors, and for modules that lie on
    several devices, `device_ids` and `output_device` are ignored.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        **options: Any,
    ) -> None:
        if not _on_one_device(module):
            device_ids, output_device = None, None
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            **options,
        )


def _on_one_device(module: nn.Module) -> bool:
    devices = {parameter.device for parameter in module.parameters()}
    return len(devices) == 1 and devices != {torch.device("cpu")}
