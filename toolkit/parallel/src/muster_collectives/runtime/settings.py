"""All that the environment says to one rank, checked."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from muster_collectives.runtime import machine, machine_file
from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.stragglers import PERIOD_S
from muster_collectives.runtime.tuning import (
    Tuning,
    defaults,
    parse_choice,
    parse_seconds,
    parse_switch,
    read_tuning,
)
from muster_collectives.runtime.variables import Variables
from muster_collectives.runtime.variables import read as read_variables

TIMEOUT_S = 1800.0  # what torch.distributed waits as well
_MIN_KEY_BYTES = 16
_ISAS = ("avx512", "avx2", "neon", "plain")  # a processor that lacks one takes the next
_ASYNC = ("lane", "lazy")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of this rank, from its environment. `tuning` is what this rank would have: rank
    0's counts for the group. `notes` are for the log. `is_spin_given`: the person has chosen the
    spin, so that the number of ranks does not. `gloo` and `asynchronous` ("", "lane" or "lazy") are
    for torch."""

    tuning: Tuning = field(default_factory=Tuning)
    is_spin_given: bool = False
    gloo: bool = False
    asynchronous: str = ""
    core: str = ""
    node: str = ""
    address: str = ""
    interface: str = ""
    key: bytes = field(default=b"", repr=False)
    flight_dir: str = ""
    summary_dir: str = ""
    timeout_s: float = TIMEOUT_S
    straggler_s: float = PERIOD_S
    notes: tuple[str, ...] = ()


def read(environ: Mapping[str, str]) -> Settings:
    """From variables, the machine's file and the machine. Raises SettingsError with the name."""
    variables = read_variables(environ)
    processors = machine.processors()
    base = defaults(machine.cache_bytes(), spins=True)
    base, notes = machine_file.apply(machine_file.path_of(environ), base, processors)
    return from_variables(variables, base, notes)


def from_variables(variables: Variables, base: Tuning, notes: tuple[str, ...] = ()) -> Settings:
    """The same with the machine's part given (pure)."""
    _choice(variables, "ISA", _ISAS)  # the core reads it itself, and takes the best for others
    timeout = variables.get("TIMEOUT_S")
    straggler = variables.get("STRAGGLER_S")
    return Settings(
        tuning=read_tuning(variables, base),
        is_spin_given=bool(variables.get("SPIN_US") or variables.get("SPIN_S")),
        gloo=_switch(variables, "GLOO"),
        asynchronous=_choice(variables, "ASYNC", _ASYNC),
        core=variables.get("CORE"),
        node=variables.get("NODE"),
        address=_address(variables.get("ADDRESS")),
        interface=variables.get("INTERFACE"),
        key=_key(variables.get("KEY")),
        flight_dir=variables.get("FLIGHT_DIR"),
        summary_dir=variables.get("SUMMARY_DIR"),
        timeout_s=_seconds(timeout, "TIMEOUT_S", TIMEOUT_S),
        straggler_s=_seconds(straggler, "STRAGGLER_S", PERIOD_S),
        notes=(*variables.notes, *notes),
    )


def current() -> Settings:
    """Those of this process's environment."""
    return read(os.environ)


def _switch(variables: Variables, name: str) -> bool:
    text = variables.get(name)
    return parse_switch(text, f"COLLECTIVES_{name}") if text else False


def _choice(variables: Variables, name: str, known: Collection[str]) -> str:
    text = variables.get(name)
    return parse_choice(text, f"COLLECTIVES_{name}", known) if text else ""


def _seconds(text: str, name: str, default: float) -> float:
    return parse_seconds(text, f"COLLECTIVES_{name}", 0.001, 1e7) if text else default


def _address(text: str) -> str:
    if not text:
        return ""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise SettingsError(
            f"COLLECTIVES_ADDRESS={text!r} is no IP address", "for example 10.0.0.1"
        ) from None


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        # the value is a secret and is not shown
        raise SettingsError(
            "COLLECTIVES_KEY holds more than hexadecimal digits", "openssl rand -hex 32"
        ) from None
    if text and len(key) < _MIN_KEY_BYTES:
        raise SettingsError(
            f"COLLECTIVES_KEY has {len(key)} bytes, at least {_MIN_KEY_BYTES} are needed",
            "openssl rand -hex 32",
        )
    return key
