"""Sizes and switches of the algorithms: the same on all ranks of a group (pure)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace

from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.types import Wire
from muster_collectives.runtime.variables import Variables

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
_SMALL_CACHE_BYTES = 16 * MIB

_WIRES: Mapping[str, Wire] = {
    "same": Wire.SAME, "fp16": Wire.F16, "bf16": Wire.BF16, "int8": Wire.I8,
}  # fmt: skip
_WIRE_ALIASES: Mapping[str, str] = {"fp32": "same", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes in bytes, `streams` in connections, `spin_s` in seconds; mc_tuning in muster_core.h
    says what each means."""

    slot_bytes: int = MIB
    one_shot_bytes: int = 128 * KIB
    chunk_bytes: int = MIB
    direct_bytes: int = 32 * KIB
    adopt_bytes: int = 512 * MIB
    leader_bytes: int = 256 * KIB
    segment_bytes: int = MIB
    eager_bytes: int = 128 * KIB
    streams: int = 1
    wire: Wire = Wire.SAME
    checked: bool = False
    spin_s: float = 20e-6

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(
                    f"{_variable(name)}={value} is out of bounds",
                    f"a number from {low} to {high}",
                )
        for name in ("slot_bytes", "chunk_bytes"):
            value = getattr(self, name)
            if value % 4096:
                raise SettingsError(
                    f"{_variable(name)}={value} is no multiple of 4096",
                    f"for example {value // 4096 * 4096 or 4096}",
                )
        if self.chunk_bytes > self.slot_bytes:
            raise SettingsError(
                f"a chunk of {self.chunk_bytes} bytes does not fit a slot of {self.slot_bytes}",
                "make COLLECTIVES_CHUNK_BYTES at most COLLECTIVES_SLOT_BYTES",
            )
        if not 0 <= self.spin_s < 1:
            raise SettingsError(
                f"COLLECTIVES_SPIN_US={self.spin_s * 1e6:g} (COLLECTIVES_SPIN_S={self.spin_s:g}) "
                "is out of bounds",
                "0 or more and less than 1000000 (a second)",
            )


# What the core accepts (csrc/api/communicator.c has the same conditions, but names no variable).
# The one-shot form must fit a slot; the core sees to that itself.
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "slot_bytes": (4096, GIB),
    "one_shot_bytes": (0, GIB),
    "chunk_bytes": (4096, GIB),
    "direct_bytes": (0, 1 << 62),
    "adopt_bytes": (0, 1 << 62),
    "leader_bytes": (0, GIB),
    "segment_bytes": (4096, GIB),
    "eager_bytes": (0, 1 << 62),
    "streams": (1, 64),
}


_NAMES = tuple(field.name for field in fields(Tuning))


def defaults(cache_bytes: int, spins: bool) -> Tuning:
    """For a machine whose last-level cache has `cache_bytes` (0: not known). `spins` False where
    ranks outnumber processors: who waits there must give the processor away at once."""
    chunk = MIB if cache_bytes >= _SMALL_CACHE_BYTES else 512 * KIB
    return Tuning(chunk_bytes=chunk, spin_s=20e-6 if spins else 0.0)


def read_tuning(variables: Variables, base: Tuning) -> Tuning:
    """`base` with what the variables say. Raises SettingsError that names the variable."""
    changes: dict[str, object] = {
        name: variables.parsed(name.upper(), parse_bytes, getattr(base, name)) for name in _BOUNDS
    }
    slot_bytes = variables.parsed("SLOT_BYTES", parse_bytes, base.chunk_bytes)
    if not variables.get("CHUNK_BYTES"):
        # a smaller slot alone is a wish for smaller chunks as well
        changes["chunk_bytes"] = min(base.chunk_bytes, slot_bytes)
    changes["checked"] = variables.parsed("CHECKED", parse_switch, base.checked)
    if variables.get("WIRE"):
        changes["wire"] = _WIRES[variables.parsed("WIRE", parse_wire, "")]
    spin_s = variables.parsed("SPIN_S", parse_seconds, base.spin_s, 0, 1)
    spin_us = variables.parsed("SPIN_US", parse_seconds, None, 0, 1e6)
    changes["spin_s"] = spin_s if spin_us is None else spin_us / 1e6
    return replace(base, **changes)  # type: ignore[arg-type]


def parse_bytes(text: str, where: str) -> int:
    """`65536`, `64K`, `64KiB`, `1M`, `4MiB`, `1G`. Raises SettingsError."""
    lowered = text.strip().lower().removesuffix("ib").removesuffix("b")
    scale = {"k": KIB, "m": MIB, "g": GIB}.get(lowered[-1:], 1)
    digits = lowered[:-1] if scale > 1 else lowered
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16):
        raise SettingsError(f"{where}={text!r} is no number of bytes", "for example 65536 or 64KiB")
    return int(digits) * scale


def parse_switch(text: str, where: str) -> bool:
    """Raises SettingsError."""
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise SettingsError(f"{where}={text!r} is no switch", "1 or 0")


def parse_choice(text: str, where: str, known: Collection[str]) -> str:
    """One of `known`, whatever its case. Raises SettingsError."""
    lowered = text.lower()
    if lowered not in known:
        raise SettingsError(f"{where}={text!r} is none of its values", f"one of {', '.join(known)}")
    return lowered


def parse_wire(text: str, where: str) -> str:
    """same, fp16, bf16 or int8, also by the names of torch's types. Raises SettingsError."""
    lowered = text.lower()
    return parse_choice(_WIRE_ALIASES.get(lowered, lowered), where, _WIRES)


def parse_seconds(text: str, where: str, low: float, high: float) -> float:
    """Raises SettingsError."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise SettingsError(
            f"{where}={text!r} is no number from {low:g} to {high:g}", f"set {where}"
        )
    return value


def parse_count(text: str, where: str, low: int, high: int) -> int:
    """Raises SettingsError."""
    if not (text.isascii() and text.isdigit() and len(text) < 16 and low <= int(text) <= high):
        raise SettingsError(f"{where}={text!r} is no whole number from {low} to {high}",
                            f"set {where}")  # fmt: skip
    return int(text)


def encode(tuning: Tuning) -> dict[str, object]:
    """As JSON values."""
    return {**{name: getattr(tuning, name) for name in _NAMES}, "wire": int(tuning.wire)}


def decode(values: Mapping[str, object]) -> Tuning:
    """The way back. Raises SettingsError, TypeError for what `encode` did not make."""
    given = {name: value for name, value in values.items() if name in _NAMES}
    given["wire"] = Wire(int(str(given.get("wire", 0))))
    return Tuning(**given)  # type: ignore[arg-type]


def differences(mine: Tuning, agreed: Tuning) -> str:
    """What of `mine` does not count, in words; "" where nothing differs."""
    ours, theirs = encode(mine), encode(agreed)
    return ", ".join(
        f"{_variable(name)} is {json.dumps(theirs[name])} and not {json.dumps(ours[name])}"
        for name in ours
        if ours[name] != theirs[name]
    )


def _variable(field: str) -> str:
    return "COLLECTIVES_SPIN_US" if field == "spin_s" else f"COLLECTIVES_{field.upper()}"
