"""What the ranks of a pipeline tell one another of a step: where its functions stopped, and outputs
of the last stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from muster_modelparallel.run.mesh import Mesh
from muster_modelparallel.run.pipeline.delivery import Delivery
from muster_modelparallel.run.pipeline.protocols import ModelCall
from muster_modelparallel.run.pipeline.suspended import Ended
from muster_modelparallel.run.pipeline.tasks import Agreed, Output, Task, Want
from muster_modelparallel.run.pipeline.waits import Waits
from muster_modelparallel.shape.topology import GroupKind


class Exchange:
    """Every call is collective over the pipeline. `place`: this rank's, in it."""

    def __init__(self, mesh: Mesh, waits: Waits) -> None:
        self._group: Any = mesh.group(GroupKind.PP)
        self._device = mesh.device
        self._waits = waits
        self.delivery = Delivery(self._group, mesh.device, waits)
        ranks = dist.get_process_group_ranks(self._group)
        self.place: int = ranks.index(mesh.rank)
        self._me = f"rank {mesh.rank}"
        self._others = ", ".join(f"rank {rank}" for rank in ranks if rank != mesh.rank)

    def said(self, tasks: Sequence[Task], is_stray: bool) -> Agreed:
        """What any rank says of these tasks. is_stray: whether this rank has gradients without
        `model.backward`."""
        word = [0] * (4 + max(len(task.outputs) for task in tasks))
        word[3] = is_stray
        for task in tasks:
            word[0] |= isinstance(task.said, Ended)
            word[1] |= isinstance(task.said, ModelCall)
            word[2] |= bool(task.roots)
            if isinstance(task.said, Want):
                word[4 + task.said.place] = 1
        said = torch.tensor(word, device=self._device)
        with self._waits.waiting(f"{self._me} waits for the others, {self._others}, in a step"):
            dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group)
        ended, called, backward, stray, *wanted = said.tolist()
        places = tuple(place for place, flag in enumerate(wanted) if flag)
        return Agreed(bool(ended), bool(called), bool(backward), bool(stray), places)

    def deliver(self, outputs: Sequence[Output], source: int) -> None:
        """From the rank at that place, which has the last stage, to all."""
        if not outputs:
            return
        if self.place == source:
            for one in outputs:
                one.check()
        tensors = [
            torch.empty(one.meta.shape, dtype=one.meta.dtype, device=self._device)
            if one.tensor is None
            else one.tensor
            for one in outputs
        ]
        with self._waits.waiting(f"{self._me} waits for outputs of the last stage"):
            self.delivery.tensors(tensors, source)
        for output, tensor in zip(outputs, tensors, strict=True):
            if output.tensor is None:  # of a graph, as the real one: no leaf, which code may change
                needs = output.meta.requires_grad
                output.tensor = tensor.requires_grad_().clone() if needs else tensor
