"""How collectives of CUDA tensors are made, and which composition is faster here.

That is measured when the first call comes: 1 to 2 s on 400 Gbit/s. Gains of two levels depend on
the topology, and are at most (N-1)/N x M/(M-1) in bytes for N ranks on M nodes, so nothing is
chosen without a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.runtime import variables
from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.tuning import parse_bytes, parse_choice, parse_wire
from muster_collectives.torch.compress import exchange, group_calls
from muster_collectives.torch.cuda.groups import InnerGroups

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
    compress.exchange.NAMES; other than "same" it makes large float32 sums hierarchical.
    `timeout_s`: of a host-staged call."""

    all_reduce: str = "world"
    all_gather: str = "world"
    reduce_scatter: str = "world"
    wire: str = "same"
    least_bytes: int = _MIB
    segment_bytes: int = 32 * _MIB
    timeout_s: float = 1800.0

    @property
    def composes(self) -> bool:
        """Whether anything is asked for that the world group does not do."""
        ways = self.all_reduce, self.all_gather, self.reduce_scatter
        return set(ways) != {"world"} or self.wire != "same"

    def __post_init__(self) -> None:
        for name, known in (*_WAYS.items(), ("wire", exchange.NAMES)):
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


VERBS = ("all_reduce", "all_gather", "reduce_scatter")
SIZES_BYTES = (1 << 20, 8 << 20, 64 << 20)
SMALL_BYTES = (1 << 14, 1 << 16)  # on processors, where tests alone have device paths
_ROUNDS = 3
_GAIN = 0.95  # two levels must be faster by this much: the world group has seen more testing


def is_open(settings: DeviceSettings) -> bool:
    return "auto" in (settings.all_reduce, settings.all_gather, settings.reduce_scatter)


def settled(
    groups: InnerGroups,
    settings: DeviceSettings,
    path_of: Callable[[DeviceSettings], Any],
    device: torch.device,
) -> DeviceSettings:
    """The settings without "auto", the same on all ranks. Collective. `path_of`: a DevicePath with
    settings of its own."""
    verbs_open = [verb for verb in VERBS if getattr(settings, verb) == "auto"]
    if groups.intra is None:
        worlds: dict[str, Any] = dict.fromkeys(verbs_open, "world")
        return replace(settings, **worlds)
    ways: list[dict[str, Any]] = [dict.fromkeys(VERBS, way) for way in ("world", "hierarchical")]
    paths = [path_of(replace(settings, **way, least_bytes=0, wire="same")) for way in ways]
    sizes = SIZES_BYTES if device.type == "cuda" else SMALL_BYTES
    seconds = [
        [_seconds(path, verb, size, groups.layout.size, device) for path in paths]
        for verb in verbs_open
        for size in sizes
    ]
    slowest = torch.tensor(seconds, device=device)
    # all ranks decide alike
    group_calls.all_reduce(groups.world, slowest, dist.ReduceOp.MAX).wait()
    gains = (slowest[:, 1] < slowest[:, 0] * _GAIN).view(len(verbs_open), len(sizes)).tolist()
    chosen, least_bytes = decided(dict(zip(verbs_open, gains, strict=True)), sizes)
    return replace(settings, **chosen, least_bytes=max(least_bytes, settings.least_bytes))


def decided(gains: Mapping[str, list[bool]], sizes: tuple[int, ...]) -> tuple[dict[str, Any], int]:
    """Two levels for verbs that gain at the largest size, from where all of those gain (pure)."""
    chosen = {verb: "hierarchical" if each[-1] else "world" for verb, each in gains.items()}
    least = 0
    for each in gains.values():
        if each[-1]:
            lost = [index for index, gain in enumerate(each) if not gain]
            least = max(least, sizes[lost[-1] + 1] if lost else sizes[0])
    return chosen, least


def _seconds(path: Any, verb: str, bytes_: int, ranks: int, device: torch.device) -> float:
    """The best of some rounds; the first, which sets things up, does not count."""
    part = torch.zeros(max(1, bytes_ // 4 // ranks), device=device)
    whole = torch.zeros(part.numel() * ranks, device=device)
    best = float("inf")
    for number in range(_ROUNDS + 1):
        _finish(device)
        began = time.perf_counter()
        if verb == "all_reduce":
            work = path.all_reduce(whole, dist.ReduceOp.SUM)
        elif verb == "all_gather":
            work = path.all_gather_single(whole, part)
        else:
            work = path.reduce_scatter_single(part, whole, dist.ReduceOp.SUM)
        work.wait()
        _finish(device)
        best = min(best, time.perf_counter() - began) if number else best
    return best


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
