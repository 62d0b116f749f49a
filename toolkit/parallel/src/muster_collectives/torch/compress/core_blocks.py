"""blocks.py's form of float32 in host memory, packed and unpacked by the core's kernels.

They read and write the same bytes, up to rounding of a last bit, several times as fast as a chain
of torch's operations; ranks that have no core may be in the same group.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from muster_collectives.binding import library
from muster_collectives.runtime import settings
from muster_collectives.runtime.errors import CoreError
from muster_collectives.torch.compress import blocks


@dataclass(frozen=True)
class CoreBlocks:
    """The core's int8 kernels on tensors. `core`: the loaded library. Tensors are contiguous
    float32 and uint8 in host memory."""

    core: ctypes.CDLL

    def pack(self, rows: Tensor, error: Tensor | None) -> Tensor:
        """uint8 [r, packed bytes] of float32 [r, n], n whole blocks. `error` [r, n] is added before
        and receives what rounding lost, where that is finite."""
        count, values = rows.shape
        blocks.require_whole(values, blocks.BLOCK)
        packed = torch.empty(count, blocks.packed_bytes(values), dtype=torch.uint8)
        lost = error.data_ptr() if error is not None else None
        # rows are whole blocks: all of them are one long row
        self.core.mc_kernel_pack_i8(packed.data_ptr(), rows.data_ptr(), rows.numel(), lost)
        return packed

    def unpack(self, packed: Tensor, values: int) -> Tensor:
        """float32 [r, values]."""
        rows = torch.empty(packed.shape[0], values)
        self.core.mc_kernel_unpack_i8(rows.data_ptr(), packed.data_ptr(), rows.numel())
        return rows

    def sum(self, packed: Tensor, values: int) -> Tensor:
        """float32 [values]: of all rows, in their order."""
        total = self.unpack(packed[:1], values)[0]
        for row in packed[1:]:
            self.core.mc_kernel_unpack_add_i8(total.data_ptr(), row.data_ptr(), values)
        return total


def of_this_process() -> CoreBlocks | None:
    """None where there is no core."""
    try:
        return CoreBlocks(library.load(settings.current().core))
    except CoreError:
        return None


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels can work on these: contiguous, in host memory."""
    return all(each.device.type == "cpu" and each.is_contiguous() for each in tensors)
