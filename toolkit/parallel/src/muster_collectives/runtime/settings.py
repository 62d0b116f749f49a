"""All that the environment says to one rank, checked."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from muster_collectives.runtime import machine, machine_file
from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.stragglers import PERIOD_S
from muster_collectives.runtime.tuning import (
    Tuning,
    defaults,
    parse_choice,
    parse_count,
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
RECORDS = 128
_RECORDS = (RECORDS, 1 << 16)
_SECONDS = (0.001, 1e7)  # of a time that is set


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of this rank, from its environment. `tuning` is what this rank would have: rank
    0's counts for the group. `notes` are for the log. `is_spin_given`, `is_slot_given`: the person
    has chosen the spin and the slot or chunk, so that the number of ranks does not. `gloo` and
    `asynchronous` ("", "lane" or "lazy") are for torch. `records` are kept of each group's last
    operations; `keeps_flight`: they are written of groups without a failure, too."""

    tuning: Tuning = field(default_factory=Tuning)
    is_spin_given: bool = False
    is_slot_given: bool = False
    huge_pages: bool = True
    gloo: bool = False
    asynchronous: str = ""
    core: str = ""
    node: str = ""
    address: str = ""
    interface: str = ""
    key: bytes = field(default=b"", repr=False)
    flight_dir: str = ""
    records: int = RECORDS
    keeps_flight: bool = False
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
    # the core reads this itself, and takes the best for others
    variables.parsed("ISA", parse_choice, "", _ISAS)
    return Settings(
        tuning=read_tuning(variables, base),
        is_spin_given=bool(variables.get("SPIN_US") or variables.get("SPIN_S")),
        is_slot_given=bool(variables.get("SLOT_BYTES") or variables.get("CHUNK_BYTES")),
        huge_pages=variables.parsed("HUGE_PAGES", parse_switch, True),
        gloo=variables.parsed("GLOO", parse_switch, False),
        asynchronous=variables.parsed("ASYNC", parse_choice, "", _ASYNC),
        core=variables.get("CORE"),
        node=variables.get("NODE"),
        address=variables.parsed("ADDRESS", _address, ""),
        interface=variables.get("INTERFACE"),
        key=variables.parsed("KEY", _key, b""),
        flight_dir=variables.get("FLIGHT_DIR"),
        records=variables.parsed("RECORDS", parse_count, RECORDS, *_RECORDS),
        keeps_flight=bool(variables.get("RECORDS")),
        summary_dir=variables.get("SUMMARY_DIR"),
        timeout_s=variables.parsed("TIMEOUT_S", parse_seconds, TIMEOUT_S, *_SECONDS),
        straggler_s=variables.parsed("STRAGGLER_S", parse_seconds, PERIOD_S, *_SECONDS),
        notes=(*variables.notes, *notes),
    )


def current() -> Settings:
    """Those of this process's environment."""
    return read(os.environ)


def _address(text: str, where: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise SettingsError(f"{where}={text!r} is no IP address", "for example 10.0.0.1") from None


def _key(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        # the value is a secret and is not shown
        raise SettingsError(
            f"{where} holds more than hexadecimal digits", "openssl rand -hex 32"
        ) from None
    if len(key) < _MIN_KEY_BYTES:
        raise SettingsError(
            f"{where} has {len(key)} bytes, at least {_MIN_KEY_BYTES} are needed",
            "openssl rand -hex 32",
        )
    return key
