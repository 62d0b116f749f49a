"""Where a worker's tensors lie, as runs of bytes for each server.

Plain tensors (CPU, row-major) are sent from and received into their own memory. Others, such as
those of a GPU, go through one copy in plain memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from muster_parameter_server.errors import SettingsError
from muster_parameter_server.layout import Segment, TensorSpec
from muster_parameter_server.memory import TORCH, is_plain, pieces
from muster_parameter_server.options import MASTER
from muster_parameter_server.wire.frames import DTYPES, Run


def as_tensors(
    parameters: Iterable[Tensor] | Iterable[tuple[str, Tensor]],
) -> tuple[list[Tensor], list[str]]:
    """Tensors and their names, empty where there are none.

    Raises SettingsError for no tensor, and for two that are the same or share memory.
    """
    pairs = [one if isinstance(one, tuple) else ("", one) for one in parameters]
    if not pairs:
        raise SettingsError("there are no parameters", "pass model.parameters()")
    for number, (_, tensor) in enumerate(pairs):
        if not isinstance(tensor, torch.Tensor):
            raise SettingsError(f"parameter {number} is a {type(tensor).__name__}", "pass tensors")
    names, tensors = [name for name, _ in pairs], [tensor for _, tensor in pairs]
    _require_apart(tensors, names)
    return tensors, names


def _require_apart(tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    """Two parameters in the same memory: each would undo the other's update."""
    spans = []
    for number, tensor in enumerate(tensors):
        if tensor.layout is not torch.strided or not tensor.numel():
            continue
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        begin = tensor.data_ptr()
        place = str(tensor.device), begin, begin + (last + 1) * tensor.element_size()
        spans.append((*place, number))
    for (where, _, end, one), (device, begin, _, other) in pairwise(sorted(spans)):
        if where == device and begin < end:
            first, second = sorted((one, other))
            raise SettingsError(
                f"parameters {_called(first, names[first])} and "
                f"{_called(second, names[second])} share memory",
                "give tied weights as one Parameter, and every tensor once",
            )


def _called(number: int, name: str) -> str:
    return f"{number} ({name})" if name else str(number)


def master_dtype(spec: TensorSpec) -> torch.dtype:
    """What the servers compute in for it."""
    return torch.float64 if spec.dtype == "float64" else torch.float32


def empty_state(specs: Sequence[TensorSpec], slots: Sequence[str]) -> dict[str, list[Tensor]]:
    """Room for a state; with MASTER, empty tensors for full types, where there are half types."""
    found = {
        slot: [torch.zeros(spec.shape, dtype=master_dtype(spec)) for spec in specs]
        for slot in slots
    }  # fmt: skip
    if any(spec.is_half for spec in specs):
        found[MASTER] = [torch.zeros(spec.shape if spec.is_half else (0,)) for spec in specs]
    return found


class Buffers:
    """A worker's memory of parameters and gradients. `specs`: the tensors as they were registered;
    `plan`: for each server its segments.

    The servers know the tensors as they were then, so what has another dtype or shape later is
    refused with SettingsError before a byte of it is read or written."""

    def __init__(
        self,
        tensors: list[Tensor],
        specs: Sequence[TensorSpec],
        plan: Sequence[tuple[Segment, ...]],
    ) -> None:
        self.tensors = tensors
        self._specs = specs
        self._plan = plan
        self._staged: dict[int, Tensor] = {}  # plain copies of tensors that are not plain
        self._versions: list[int] | None = None
        self._zeros: dict[int, Tensor] = {}
        self._held: list[Tensor] = []  # keeps the memory of an exchange alive

    def parameters(self) -> list[list[Run]]:
        """What the parameters hold now, for each server."""
        plain = self._plain()
        for number, staged in self._staged.items():
            staged.copy_(self.tensors[number].detach())
        return self._runs(plain)

    def landings(self) -> list[list[Run]]:
        """Where parameters from the servers go; then call `landed`."""
        return self._runs(self._plain())

    def landed(self) -> None:
        """What was received is in the tensors, and autograd knows that they were changed."""
        self._held = []
        for number, tensor in enumerate(self.tensors):
            if number in self._staged:
                tensor.detach().copy_(self._staged[number])
            elif not tensor.is_inference():
                increment_version(tensor)
        self._versions = [_version(tensor) for tensor in self.tensors]

    def require_unchanged(self) -> None:
        """Raises SettingsError for a parameter that the script has written since `landed`."""
        for number, tensor in enumerate(self.tensors):
            if self._versions is not None and _version(tensor) != self._versions[number]:
                raise SettingsError(
                    f"parameter {_called(number, self._specs[number].label)} was written since the "
                    "servers' values came; they know nothing of it, and the next pull would undo "
                    "it",
                    "call server.load() on all workers to make rank 0's values the servers', or "
                    "server.pull() to drop what was written",
                )

    def _plain(self) -> list[Tensor]:
        """The memory of each parameter as it is now (`.data = ` may have moved it)."""
        found: list[Tensor] = []
        for number, tensor in enumerate(self.tensors):
            self._require_same(number, tensor, "parameter")
            if is_plain(tensor):
                self._staged.pop(number, None)
                found.append(tensor.detach())
                continue
            if number not in self._staged:
                self._staged[number] = torch.zeros(tensor.shape, dtype=tensor.dtype)
            found.append(self._staged[number])
        return found

    def _require_same(self, number: int, tensor: Tensor, what: str) -> None:
        spec = self._specs[number]
        same = tensor.dtype is TORCH[spec.dtype] and tensor.shape == spec.shape
        if not same or tensor.layout is not torch.strided:
            raise SettingsError(
                f"{what} {_called(number, spec.label)} is {tensor.layout} {tensor.dtype} "
                f"{tuple(tensor.shape)} now, but connected as {spec.dtype} {spec.shape}",
                "change dtypes and shapes before connecting; push dense gradients as backward() "
                "leaves them in .grad",
            )

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
        if gradient is None:
            if number not in self._zeros:
                spec = self._specs[number]
                self._zeros[number] = torch.zeros(spec.shape, dtype=TORCH[spec.dtype])
            return self._zeros[number]
        self._require_same(number, gradient, "gradient")
        return gradient.detach().to("cpu").contiguous()

    def checked_state(
        self, state: Mapping[str, Sequence[Tensor]], slots: Sequence[str]
    ) -> dict[str, list[Tensor]]:
        """The state as plain tensors. Raises SettingsError when it is not of these parameters."""
        if set(state) - {MASTER} != set(slots):
            raise SettingsError(
                f"the state has {sorted(state)}, this optimizer {sorted(slots)}",
                "load what the same optimizer has saved",
            )
        found = {}
        for slot in state:
            wanted = [spec.shape for spec in self._specs]
            if slot == MASTER:
                wanted = [spec.shape if spec.is_half else (0,) for spec in self._specs]
            if [tuple(one.shape) for one in state[slot]] != wanted:
                raise SettingsError(f"the state's {slot} has other shapes", "load the same model's")
            found[slot] = [
                kept.detach().to("cpu", master_dtype(spec)).contiguous()
                for kept, spec in zip(state[slot], self._specs, strict=True)
            ]
        self._held = [one for kept in found.values() for one in kept]
        return found

    def state(self, state: Mapping[str, Sequence[Tensor]], slots: Sequence[str]) -> list[list[Run]]:
        """For each server what `state` has of each of its segments, in the server's order."""
        names = [*slots, MASTER] if MASTER in state else slots
        return [
            [
                _run(state[name], _of_state(segment))
                for segment in segments
                for name in names
                if name != MASTER or segment.is_half
            ]
            for segments in self._plan
        ]

    def _runs(self, plain: Sequence[Tensor]) -> list[list[Run]]:
        return [[_run(plain, segment) for segment in segments] for segments in self._plan]


def _version(tensor: Tensor) -> int:
    """Autograd's count of writes; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _of_state(segment: Segment) -> Segment:
    """The segment in the dtype of its state."""
    name = "float64" if segment.dtype.name == "float64" else "float32"
    return segment._replace(dtype=DTYPES[name])


def _run(tensors: Sequence[Tensor], segment: Segment) -> Run:
    return Run(segment.dtype, segment.elements, pieces(tensors, segment))
