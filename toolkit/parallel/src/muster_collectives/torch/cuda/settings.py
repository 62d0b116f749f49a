"""How collectives of CUDA tensors are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from muster_collectives.runtime import variables
from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.tuning import parse_bytes, parse_choice, parse_wire
from muster_collectives.torch.compress import wires

_MIB = 1 << 20
_TWO_LEVEL = ("auto", "world", "hierarchical")
_WAYS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": (*_TWO_LEVEL, "host"), "all_gather": _TWO_LEVEL, "reduce_scatter": _TWO_LEVEL,
}  # fmt: skip
_LEAST: Mapping[str, int] = {"least_bytes": 0, "segment_bytes": 4096}


@dataclass(frozen=True)
class DeviceSettings:
    """How device tensors travel. The same on all ranks. The defaults hand everything to the world
    group.

    `all_reduce`: "world"; "hierarchical" (in the node, between nodes, in the node); "host" (through
    host memory: slow networks, GPUs without peer access); "auto" (what is faster of the first two
    when the first call comes). `all_gather` and `reduce_scatter`: the same but for "host". Of the
    hierarchical ones, calls below `least_bytes` and layouts without two levels take the world.
    `segment_bytes`: pieces whose legs overlap. `wire`: form of float32 sums between nodes, one of
    compress.wires.NAMES; other than "same" it makes large float32 sums hierarchical.
    `timeout_s`: of a host-staged call."""

    all_reduce: str = "world"
    all_gather: str = "world"
    reduce_scatter: str = "world"
    wire: str = "same"
    least_bytes: int = _MIB
    segment_bytes: int = 32 * _MIB
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        for name, known in (*_WAYS.items(), ("wire", wires.NAMES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}: one of {', '.join(known)}")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: {least} at least")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s:g}: more than 0")


def read_settings(environ: Mapping[str, str], timeout_s: float = 1800.0) -> DeviceSettings:
    """COLLECTIVES_DEVICE_ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER, _LEAST_BYTES and _SEGMENT_BYTES,
    and COLLECTIVES_WIRE, written as for the core. Raises SettingsError that names the variable."""
    said = variables.read(environ)
    values: dict[str, object] = {"timeout_s": timeout_s}
    for field in fields(DeviceSettings):
        name = "WIRE" if field.name == "wire" else f"DEVICE_{field.name.upper()}"
        text = said.get(name)
        if text and field.name != "timeout_s":
            values[field.name] = _value(variables.PREFIX + name, field.name, text)
    return DeviceSettings(**values)  # type: ignore[arg-type]


def _value(variable: str, name: str, text: str) -> object:
    if name.endswith("_bytes"):
        value = parse_bytes(text, variable)
        if value < _LEAST[name]:
            raise SettingsError(f"{variable}={text!r} is too small", f"{_LEAST[name]} at least")
        return value
    return (
        parse_wire(text, variable) if name == "wire" else parse_choice(text, variable, _WAYS[name])
    )
