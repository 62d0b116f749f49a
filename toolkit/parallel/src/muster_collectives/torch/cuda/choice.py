"""Which composition is faster here, measured when the first call comes: 1 to 2 s on 400 Gbit/s.

Gains of two levels depend on the topology, and are at most (N-1)/N x M/(M-1) in bytes for N ranks
on M nodes, so nothing is chosen without a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.torch.compress import group_calls
from muster_collectives.torch.cuda.groups import InnerGroups
from muster_collectives.torch.cuda.settings import DeviceSettings

VERBS = ("all_reduce", "all_gather", "reduce_scatter")
SIZES_BYTES = (1 << 20, 8 << 20, 64 << 20)
SMALL_BYTES = (1 << 14, 1 << 16)  # on processors, where tests alone have device paths
_ROUNDS = 3
_GAIN = 0.95  # two levels must be faster by this much: the world group has seen more testing


def is_open(settings: DeviceSettings) -> bool:
    return "auto" in (settings.all_reduce, settings.all_gather, settings.reduce_scatter)


def rivals(settings: DeviceSettings) -> dict[str, DeviceSettings]:
    """The settings with every verb made in one way, by that way's name."""
    return {
        way: replace(
            settings, all_reduce=way, all_gather=way, reduce_scatter=way, least_bytes=0, wire="same"
        )
        for way in ("world", "hierarchical")
    }


def settled(
    groups: InnerGroups,
    settings: DeviceSettings,
    paths: Mapping[str, Any],
    device: torch.device,
) -> DeviceSettings:
    """The settings without "auto", the same on all ranks. Collective. `paths`: a DevicePath for
    each of `rivals`."""
    verbs_open = [verb for verb in VERBS if getattr(settings, verb) == "auto"]
    if groups.levels is None:
        worlds: dict[str, Any] = dict.fromkeys(verbs_open, "world")
        return replace(settings, **worlds)
    ways = ("world", "hierarchical")
    sizes = SIZES_BYTES if device.type == "cuda" else SMALL_BYTES
    seconds = [
        [_seconds(paths[way], verb, size, groups.layout.size, device) for way in ways]
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
