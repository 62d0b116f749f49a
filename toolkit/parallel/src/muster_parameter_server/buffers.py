"""Where a worker's tensors lie, as runs of bytes for each server.

Plain tensors (CPU, row-major) are sent from and received into their own memory. Others, such as
those of a GPU, go through one copy in plain memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from muster_parameter_server.errors import SettingsError
from muster_parameter_server.exchange import Run
from muster_parameter_server.frames import DTYPES
from muster_parameter_server.layout import Segment
from muster_parameter_server.memory import is_plain, pieces


def as_tensors(parameters: Iterable[Tensor] | Iterable[tuple[str, Tensor]]) -> list[Tensor]:
    """The tensors without names. Raises SettingsError for none, or for one that comes twice."""
    found = [one[1] if isinstance(one, tuple) else one for one in parameters]
    if not found:
        raise SettingsError("there are no parameters", "pass model.parameters()")
    for number, tensor in enumerate(found):
        if not isinstance(tensor, torch.Tensor):
            raise SettingsError(f"parameter {number} is a {type(tensor).__name__}", "pass tensors")
    if len({id(tensor) for tensor in found}) != len(found):
        raise SettingsError("a parameter is given twice", "pass every tensor once")
    return found


def master_dtype(tensor: Tensor) -> torch.dtype:
    """What the servers compute in for it."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def empty_state(tensors: Sequence[Tensor], slots: Sequence[str]) -> dict[str, list[Tensor]]:
    return {
        slot: [torch.zeros(one.shape, dtype=master_dtype(one)) for one in tensors]
        for slot in slots
    }  # fmt: skip


class Buffers:
    """`plan`: for each server its segments."""

    def __init__(self, tensors: list[Tensor], plan: Sequence[tuple[Segment, ...]]) -> None:
        self.tensors = tensors
        self._plan = plan
        self._plain = [
            one.detach() if is_plain(one) else torch.zeros(one.shape, dtype=one.dtype)
            for one in tensors
        ]
        self._zeros: dict[int, Tensor] = {}
        self._held: list[Tensor] = []  # keeps the memory of an exchange alive

    def parameters(self) -> list[list[Run]]:
        """What the parameters hold now, for each server."""
        for plain, tensor in zip(self._plain, self.tensors, strict=True):
            if not is_plain(tensor):
                plain.copy_(tensor.detach())
        return self.landings()

    def landings(self) -> list[list[Run]]:
        """Where parameters from the servers go; then call `landed`."""
        if any(
            is_plain(tensor) and tensor.data_ptr() != plain.data_ptr()
            for tensor, plain in zip(self.tensors, self._plain, strict=True)
        ):
            # the script gave a parameter other memory (`.data = `): follow it
            self._plain = [
                tensor.detach() if is_plain(tensor) else plain
                for tensor, plain in zip(self.tensors, self._plain, strict=True)
            ]
        return self._runs(self._plain)

    def landed(self) -> None:
        """Brings what was received to tensors that are not plain."""
        self._held = []
        for plain, tensor in zip(self._plain, self.tensors, strict=True):
            if not is_plain(tensor):
                tensor.detach().copy_(plain)

    def gradients(self, gradients: Sequence[Tensor | None]) -> list[list[Run]]:
        """Raises SettingsError for a gradient that does not fit its parameter."""
        if len(gradients) != len(self.tensors):
            raise SettingsError(
                f"{len(gradients)} gradients for {len(self.tensors)} parameters",
                "pass one for each, None for one without",
            )
        self._held = [self._gradient(number, one) for number, one in enumerate(gradients)]
        return self._runs(self._held)

    def _gradient(self, number: int, gradient: Tensor | None) -> Tensor:
        tensor = self.tensors[number]
        if gradient is None:
            if number not in self._zeros:
                self._zeros[number] = torch.zeros(tensor.shape, dtype=tensor.dtype)
            return self._zeros[number]
        if gradient.shape != tensor.shape or gradient.dtype != tensor.dtype or gradient.is_sparse:
            raise SettingsError(
                f"gradient {number} is {gradient.layout} {gradient.dtype} "
                f"{tuple(gradient.shape)}, its parameter {tensor.dtype} {tuple(tensor.shape)}",
                "push dense gradients as backward() leaves them in .grad",
            )
        return gradient.detach().to("cpu").contiguous()

    def checked_state(
        self, state: Mapping[str, Sequence[Tensor]], slots: Sequence[str]
    ) -> dict[str, list[Tensor]]:
        """The state as plain tensors. Raises SettingsError when it is not of these parameters."""
        if set(state) != set(slots):
            raise SettingsError(
                f"the state has {sorted(state)}, this optimizer {sorted(slots)}",
                "load what the same optimizer has saved",
            )
        found = {}
        for slot in slots:
            shapes = [tuple(one.shape) for one in state[slot]]
            if shapes != [tuple(one.shape) for one in self.tensors]:
                raise SettingsError(f"the state's {slot} has other shapes", "load the same model's")
            found[slot] = [
                kept.detach().to("cpu", master_dtype(one)).contiguous()
                for kept, one in zip(state[slot], self.tensors, strict=True)
            ]
        self._held = [one for kept in found.values() for one in kept]
        return found

    def state(self, state: Mapping[str, Sequence[Tensor]], slots: Sequence[str]) -> list[list[Run]]:
        """For each server the slots of each of its segments, in the server's order."""
        return [
            [_run(state[slot], _of_state(segment)) for segment in segments for slot in slots]
            for segments in self._plan
        ]

    def _runs(self, plain: Sequence[Tensor]) -> list[list[Run]]:
        return [[_run(plain, segment) for segment in segments] for segments in self._plan]


def _of_state(segment: Segment) -> Segment:
    """The segment in the dtype of its state."""
    name = "float64" if segment.dtype.name == "float64" else "float32"
    return segment._replace(dtype=DTYPES[name])


def _run(tensors: Sequence[Tensor], segment: Segment) -> Run:
    return Run(segment.dtype, segment.elements, pieces(tensors, segment))
