"""The MUSTER_* variables apart from the deadlines."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from muster.contract.findings import ENOUGH, Findings
from muster.contract.request.hyperparameters import check_argument
from muster.types.cluster import address_of
from muster.types.deadlines import RANGES, variable
from muster.types.debug import Debug, parse_debug
from muster.types.job import Settings
from muster.types.names import did_you_mean
from muster.types.plain import short, whole_number
from muster.types.shown import Shown, parse_ranks

MIN_SECRET_BYTES = 16
PREFIX = "MUSTER_"
ALLOW_CONFLICTS = "MUSTER_ALLOW_CONFLICTS"
ADDRESSES = "MUSTER_HOST_ADDRESSES"
SCRIPT_ARGUMENTS = "MUSTER_SCRIPT_ARGUMENTS"
KEEP_SPELLING = "MUSTER_KEEP_SPELLING"
MAX_SERVERS = 1024
# Without these, hosts do not find or believe one another.
NEEDED_TO_JOIN = ("MUSTER_CONTROL_PORT", "MUSTER_JOB_SECRET", ADDRESSES)
# Names of earlier versions -> what to do instead of setting them.
GONE = {
    "MUSTER_MPI_RAW_OPTIONS": "is not needed any more: custom MPI options go to mpirun as they are",
}
# Between parts of muster: a `train` that is started by a script of another one sees them.
_INTERNAL = ("MUSTER_RUN_ID", "MUSTER_SHIM")
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
# (environment, name, default, findings) -> the value; one that cannot be used becomes a problem
_Reader = Callable[[Mapping[str, str], str, Any, Findings], Any]


def parse_settings(environ: Mapping[str, str], findings: Findings) -> Settings:
    """All settings; what cannot be used becomes a problem, an unknown name a warning."""
    unknown = [n for n in environ if n.startswith(PREFIX) and n not in (*KNOWN, *_INTERNAL)]
    findings.warn_of_each(unknown, _say_unknown, f"unknown {PREFIX}* variables")
    default = Settings()
    settings = Settings(
        **{
            field: read(environ, name, getattr(default, field), findings)
            for field, (name, read) in _SETTINGS.items()
        }
    )
    if settings.control_port == settings.store_port:
        what = f"the store port is {settings.store_port} too"
        findings.problem("MUSTER_CONTROL_PORT", what, "give each its own port")
    return settings


def _say_unknown(name: str) -> str:
    if name in GONE:
        return f"{name} {GONE[name]}"
    if len(name) > 60:  # likeness takes long to find, and there is none
        return f"unknown variable {name[:60]}... is ignored"
    return f"unknown variable {name}{did_you_mean(name, KNOWN, PREFIX) or ' is ignored'}"


def script_arguments(environ: Mapping[str, str], findings: Findings) -> tuple[str, ...]:
    """Arguments after those of the hyperparameters (`muster local SCRIPT -- ...`)."""
    text = environ.get(SCRIPT_ARGUMENTS)
    if not text:
        return ()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        # what it holds is not shown: arguments may be secrets
        what = "expected a JSON list of strings"
        findings.problem(SCRIPT_ARGUMENTS, what, 'such as ["--epochs", "3"], or unset it')
        return ()
    for index, item in enumerate(value):
        check_argument(SCRIPT_ARGUMENTS, f"[{index}]", item, findings)
    return tuple(value)


def flag(environ: Mapping[str, str], name: str, findings: Findings) -> bool:
    """A variable that is 1 or 0 (or true, false); False when unset."""
    value = environ.get(name, "")
    truth = _FLAGS.get(value.lower())
    if truth is None:
        findings.expected(name, "1 or 0", value, f"set {name}=1 or unset it")
    return bool(truth)


def _flag(environ: Mapping[str, str], name: str, default: bool, findings: Findings) -> bool:
    return flag(environ, name, findings)


def _shown(environ: Mapping[str, str], name: str, default: Shown, findings: Findings) -> Shown:
    """What reaches the screen of this host. `name`: the variable with the ranks."""
    text, ranks = environ.get(name), default.ranks
    try:
        ranks = parse_ranks(text) if text else ranks
    except ValueError as error:
        findings.problem(name, str(error), f"set it such as 0,last or unset {name}")
    return Shown(
        prefix=flag(environ, "MUSTER_LOG_PREFIX", findings),
        quiet=flag(environ, "MUSTER_QUIET", findings),
        live=flag(environ, "MUSTER_LIVE", findings),
        ranks=ranks,
    )


def _integer(rule: str, high: int, fix: str = "unset it or set it inside the range") -> _Reader:
    """Of a number from 1 to `high`."""

    def read(environ: Mapping[str, str], name: str, default: Any, findings: Findings) -> Any:
        text = environ.get(name)
        found = default if text is None else whole_number(text, 1, high)
        if found is None and text is not None:
            findings.problem(name, f"{rule}, got {short(text)}", fix)
            return default
        return found

    return read


def _choice(*known: str) -> _Reader:
    def read(environ: Mapping[str, str], name: str, default: str, findings: Findings) -> str:
        value = environ.get(name) or default
        if value in (default, *known):
            return value
        words = f"{', '.join(known[:-1])} or {known[-1]}"
        what = f"expected {words}, got {short(value)}{did_you_mean(value, known)}"
        findings.problem(name, what, f"unset {name} or choose one of these")
        return default

    return read


def _path(what: str, is_good: Callable[[str], bool] = lambda path: True) -> _Reader:
    """Of an absolute path, "" for none."""

    def read(environ: Mapping[str, str], name: str, default: str, findings: Findings) -> str:
        path = environ.get(name, default)
        if not path or (path.startswith("/") and is_good(path)):
            return path
        findings.expected(name, what, path, f"set {name} to one or unset it")
        return default

    return read


def _secret(environ: Mapping[str, str], name: str, default: str, findings: Findings) -> str:
    secret = environ.get(name, default)
    size = len(secret.encode(errors="surrogateescape"))
    if name in environ and size < MIN_SECRET_BYTES:
        what = f"the secret has {size} bytes, at least {MIN_SECRET_BYTES} are needed"
        findings.problem(name, what, "use the output of `openssl rand -hex 32`")
        return default
    return secret


def _debug(environ: Mapping[str, str], name: str, default: Debug, findings: Findings) -> Debug:
    text = environ.get(name)
    if not text:
        return default
    try:
        return parse_debug(text)
    except ValueError as error:
        fix = f"unset {name}: `muster local --debug RANK` sets it"
        findings.problem(name, f"{error}, got {short(text)}", fix)
        return default


_port = _integer("expected a port from 1 to 65535", 65_535)
_folder = _path("an absolute path")
_SETTINGS: dict[str, tuple[str, _Reader]] = {  # by the field of Settings
    "control_port": ("MUSTER_CONTROL_PORT", _port),
    "store_port": ("MUSTER_STORE_PORT", _port),
    "secret": ("MUSTER_JOB_SECRET", _secret),
    "insecure_join": ("MUSTER_INSECURE_JOIN", _flag),
    "shown": ("MUSTER_SHOW_RANKS", _shown),
    "run_dir": ("MUSTER_RUN_DIR", _folder),
    "record": ("MUSTER_RECORD", _choice("off", "tail", "full")),
    "log_limit_bytes": (
        "MUSTER_LOG_LIMIT",
        _integer(f"expected a number of bytes from 1 to {1 << 40}", 1 << 40),
    ),
    "install_target": ("MUSTER_INSTALL_TARGET", _folder),
    "replace_torch": ("MUSTER_REPLACE_TORCH", _flag),
    "oversubscribe": ("MUSTER_OVERSUBSCRIBE", _flag),
    "mpirun": (
        "MUSTER_MPIRUN",
        _path("the absolute path of a program", lambda path: os.access(path, os.X_OK)),
    ),
    "ps_framework": ("MUSTER_PS_FRAMEWORK", _choice("tensorflow", "mxnet", "pytorch")),
    "ps_servers": (
        "MUSTER_PS_SERVERS",
        _integer(
            f"a job has 1 to {MAX_SERVERS:,} parameter servers",
            MAX_SERVERS,
            "unset it for one per host, or set it in range",
        ),
    ),
    "ps_port": ("MUSTER_PS_PORT", _port),
    "worker_port": ("MUSTER_WORKER_PORT", _port),
    "isolation": ("MUSTER_ISOLATION", _choice("netns", "process", "docker")),
    "debug": ("MUSTER_DEBUG", _debug),
    "source": ("MUSTER_SOURCE_DIR", _folder),
    "invented_names": ("MUSTER_INVENTED_NAMES", _flag),
    "tf_chief": ("MUSTER_TF_CHIEF", _choice("chief", "master")),
}
VARIABLES = {field: name for field, (name, _) in _SETTINGS.items()}  # of the fields of Settings
KNOWN = (
    *VARIABLES.values(),
    *("MUSTER_LOG_PREFIX", "MUSTER_QUIET", "MUSTER_LIVE"),
    *(ADDRESSES, ALLOW_CONFLICTS, SCRIPT_ARGUMENTS, KEEP_SPELLING),
    "MUSTER_SSH_PORT",  # of the images' sshd, which `train` has nothing to do with
    *map(variable, RANGES),
)


def parse_addresses(
    environ: Mapping[str, str], hosts: tuple[str, ...], findings: Findings
) -> dict[str, str]:
    """Host name -> address from `{"algo-1": "127.0.0.1"}` or `algo-1=127.0.0.1,algo-2=fd00::2`."""
    text = environ.get(ADDRESSES, "").strip()
    if not text:
        return {}
    pairs = _pairs(text)
    if pairs is None:
        what = "a JSON object or name=address pairs"
        findings.expected(ADDRESSES, what, text, "write algo-1=127.0.0.1,algo-2=127.0.0.2")
        return {}
    problems = len(findings.problems)
    for name, address in pairs.items():
        if len(findings.problems) - problems >= ENOUGH:
            break
        if name not in hosts:
            what = f"unknown host {short(name)}{did_you_mean(name, hosts)}"
            findings.problem(ADDRESSES, what, "name hosts of resourceconfig.json")
        if not address_of(address):
            what = f"{name}: expected an IPv4 or IPv6 address, got {short(address)}"
            fix = "write an address such as 127.0.0.2 or fd00::2"
            if address_of(plain := re.sub(r"\b0+(?=\d)", "", address)):
                what = f"{name}: a number of {short(address)} begins with 0: octal to some systems"
                fix = f"write {plain} if that is meant"
            findings.problem(ADDRESSES, what, fix)
    return {name: address_of(address) or address for name, address in pairs.items()}


def _pairs(text: str) -> dict[str, str] | None:
    if text.startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return None
        good = all(isinstance(address, str) for address in document.values())
        return document if good else None
    items = [item.partition("=") for item in text.split(",") if item.strip()]
    if not all(separator for _, separator, _ in items):
        return None
    return {name.strip(): address.strip() for name, _, address in items}
