"""The MUSTER_* variables apart from the deadlines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from muster.contract.findings import ENOUGH, Findings, short
from muster.contract.request.hyperparameters import check_argument
from muster.types.deadlines import RANGES, variable
from muster.types.job import Settings
from muster.types.names import did_you_mean
from muster.types.shown import Shown, parse_ranks

MIN_SECRET_BYTES = 16
PREFIX = "MUSTER_"
ALLOW_CONFLICTS = "MUSTER_ALLOW_CONFLICTS"
ADDRESSES = "MUSTER_HOST_ADDRESSES"
SCRIPT_ARGUMENTS = "MUSTER_SCRIPT_ARGUMENTS"
KEEP_SPELLING = "MUSTER_KEEP_SPELLING"
ISOLATION = "MUSTER_ISOLATION"
SOURCE = "MUSTER_SOURCE_DIR"
PS_SERVERS = "MUSTER_PS_SERVERS"
SHOW_RANKS = "MUSTER_SHOW_RANKS"
MAX_SERVERS = 1024
KNOWN = (
    "MUSTER_CONTROL_PORT",
    "MUSTER_STORE_PORT",
    "MUSTER_JOB_SECRET",
    "MUSTER_INSECURE_JOIN",
    ADDRESSES,
    "MUSTER_LOG_PREFIX",
    "MUSTER_QUIET",
    "MUSTER_LIVE",
    SHOW_RANKS,
    "MUSTER_RUN_DIR",
    "MUSTER_RECORD",
    "MUSTER_LOG_LIMIT",
    "MUSTER_INSTALL_TARGET",
    "MUSTER_REPLACE_TORCH",
    ALLOW_CONFLICTS,
    "MUSTER_OVERSUBSCRIBE",
    "MUSTER_MPIRUN",
    "MUSTER_PS_FRAMEWORK",
    PS_SERVERS,
    "MUSTER_PS_PORT",
    "MUSTER_WORKER_PORT",
    "MUSTER_TF_CHIEF",
    SCRIPT_ARGUMENTS,
    KEEP_SPELLING,
    ISOLATION,
    SOURCE,
    "MUSTER_SSH_PORT",  # of the images' sshd, which `train` has nothing to do with
    *map(variable, RANGES),
)
# Without these, hosts do not find or believe one another.
NEEDED_TO_JOIN = ("MUSTER_CONTROL_PORT", "MUSTER_JOB_SECRET", ADDRESSES)
# Names of earlier versions -> what to do instead of setting them.
GONE = {
    "MUSTER_MPI_RAW_OPTIONS": "is not needed any more: custom MPI options go to mpirun as they are",
}
# Between parts of muster: a `train` that is started by a script of another one sees them.
_INTERNAL = ("MUSTER_RUN_ID", "MUSTER_SHIM")
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
_RECORDS = ("off", "tail", "full")
_ISOLATIONS = ("netns", "process", "docker")
_FRAMEWORKS = ("tensorflow", "mxnet", "pytorch")


def parse_settings(environ: Mapping[str, str], findings: Findings) -> Settings:
    """All settings; what cannot be used becomes a problem, an unknown name a warning."""
    unknown = [n for n in environ if n.startswith(PREFIX) and n not in (*KNOWN, *_INTERNAL)]
    findings.warn_of_each(unknown, _say_unknown, f"unknown {PREFIX}* variables")
    default = Settings()
    settings = Settings(
        control_port=_port(environ, "MUSTER_CONTROL_PORT", default.control_port, findings),
        store_port=_port(environ, "MUSTER_STORE_PORT", default.store_port, findings),
        secret=_secret(environ, findings),
        insecure_join=flag(environ, "MUSTER_INSECURE_JOIN", findings),
        shown=_shown(environ, findings),
        run_dir=_folder(environ, "MUSTER_RUN_DIR", findings),
        record=_record(environ, default.record, findings),
        log_limit_bytes=_bytes(environ, "MUSTER_LOG_LIMIT", default.log_limit_bytes, findings),
        install_target=_folder(environ, "MUSTER_INSTALL_TARGET", findings),
        replace_torch=flag(environ, "MUSTER_REPLACE_TORCH", findings),
        oversubscribe=flag(environ, "MUSTER_OVERSUBSCRIBE", findings),
        mpirun=_program(environ, "MUSTER_MPIRUN", findings),
        ps_framework=_choice(environ, "MUSTER_PS_FRAMEWORK", "", _FRAMEWORKS, findings),
        ps_servers=_servers(environ, findings),
        ps_port=_port_or_none(environ, "MUSTER_PS_PORT", findings),
        worker_port=_port_or_none(environ, "MUSTER_WORKER_PORT", findings),
        isolation=_choice(environ, ISOLATION, "", _ISOLATIONS, findings),
        source=_folder(environ, SOURCE, findings),
        tf_chief=_choice(environ, "MUSTER_TF_CHIEF", "chief", ("chief", "master"), findings),
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
        findings.problem(name, f"expected 1 or 0, got {short(value)}", f"set {name}=1 or unset it")
    return bool(truth)


def _shown(environ: Mapping[str, str], findings: Findings) -> Shown:
    """What reaches the screen of this host."""
    text, ranks = environ.get(SHOW_RANKS), None
    try:
        ranks = parse_ranks(text) if text else None
    except ValueError as error:
        findings.problem(SHOW_RANKS, str(error), f"set it such as 0,last or unset {SHOW_RANKS}")
    return Shown(
        prefix=flag(environ, "MUSTER_LOG_PREFIX", findings),
        quiet=flag(environ, "MUSTER_QUIET", findings),
        live=flag(environ, "MUSTER_LIVE", findings),
        ranks=ranks,
    )


def _port(environ: Mapping[str, str], name: str, default: int, findings: Findings) -> int:
    return _integer(environ, name, default, 65_535, "a port", findings)


def _port_or_none(environ: Mapping[str, str], name: str, findings: Findings) -> int | None:
    return _port(environ, name, 0, findings) or None


def _servers(environ: Mapping[str, str], findings: Findings) -> int | None:
    """The number of parameter servers of the job (B48)."""
    text = environ.get(PS_SERVERS)
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 15 and 1 <= int(text) <= MAX_SERVERS:
        return int(text)
    what = f"a job has 1 to {MAX_SERVERS:,} parameter servers, got {short(text)}"
    findings.problem(PS_SERVERS, what, f"unset {PS_SERVERS} for one per host, or set it in range")
    return None


def _choice(
    environ: Mapping[str, str], name: str, default: str, known: tuple[str, ...], findings: Findings
) -> str:
    value = environ.get(name) or default
    if value not in (default, *known):
        what = f"expected {' or '.join(known)}, got {short(value)}{did_you_mean(value, known)}"
        findings.problem(name, what, f"unset {name} or choose one of these")
        return default
    return value


def _bytes(environ: Mapping[str, str], name: str, default: int, findings: Findings) -> int:
    return _integer(environ, name, default, 1 << 40, "a number of bytes", findings)


def _integer(
    environ: Mapping[str, str], name: str, default: int, high: int, what: str, findings: Findings
) -> int:
    text = environ.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 15 and 1 <= int(text) <= high:
        return int(text)
    expected = f"expected {what} from 1 to {high}, got {short(text)}"
    findings.problem(name, expected, f"unset {name} or set it inside the range")
    return default


def _secret(environ: Mapping[str, str], findings: Findings) -> str:
    secret = environ.get("MUSTER_JOB_SECRET", "")
    size = len(secret.encode(errors="surrogateescape"))
    if "MUSTER_JOB_SECRET" in environ and size < MIN_SECRET_BYTES:
        what = f"the secret has {size} bytes, at least {MIN_SECRET_BYTES} are needed"
        findings.problem("MUSTER_JOB_SECRET", what, "use the output of `openssl rand -hex 32`")
        return ""
    return secret


def _folder(environ: Mapping[str, str], name: str, findings: Findings) -> str:
    path = environ.get(name, "")
    if path and not path.startswith("/"):
        what = f"expected an absolute path, got {short(path)}"
        findings.problem(name, what, f"set {name} to an absolute path or unset it")
        return ""
    return path


def _program(environ: Mapping[str, str], name: str, findings: Findings) -> str:
    """The path of a program, "" when it is to be searched for."""
    path = environ.get(name, "")
    if path and not (path.startswith("/") and os.access(path, os.X_OK)):
        what = f"expected the absolute path of a program, got {short(path)}"
        findings.problem(name, what, f"set {name} to one that is there, or unset it")
        return ""
    return path


def _record(environ: Mapping[str, str], default: str, findings: Findings) -> str:
    value = environ.get("MUSTER_RECORD") or default
    if value not in _RECORDS:
        what = f"expected off, tail or full, got {short(value)}{did_you_mean(value, _RECORDS)}"
        findings.problem("MUSTER_RECORD", what, "unset it or choose one of the three")
        return default
    return value


def parse_addresses(
    environ: Mapping[str, str], hosts: tuple[str, ...], findings: Findings
) -> dict[str, str]:
    """Host name -> address from `{"algo-1": "127.0.0.1"}` or `algo-1=127.0.0.1,algo-2=fd00::2`."""
    text = environ.get(ADDRESSES, "").strip()
    if not text:
        return {}
    pairs = _pairs(text)
    if pairs is None:
        what = f"expected a JSON object or name=address pairs, got {short(text)}"
        findings.problem(ADDRESSES, what, "write algo-1=127.0.0.1,algo-2=127.0.0.2")
        return {}
    problems = len(findings.problems)
    for name, address in pairs.items():
        if len(findings.problems) - problems >= ENOUGH:
            break
        if name not in hosts:
            what = f"unknown host {short(name)}{did_you_mean(name, hosts)}"
            findings.problem(ADDRESSES, what, "name hosts of resourceconfig.json")
        if not _is_ipv4(address) and not _ipv6(address):
            what = f"{name}: expected an IPv4 or IPv6 address, got {short(address)}"
            findings.problem(ADDRESSES, what, "write an address such as 127.0.0.2 or fd00::2")
    return {name: _ipv6(address) or address for name, address in pairs.items()}


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


def _is_ipv4(address: str) -> bool:
    parts = address.split(".")
    return len(parts) == 4 and all(
        part.isascii() and part.isdecimal() and len(part) <= 3 and int(part) <= 255
        for part in parts
    )


def _ipv6(address: str) -> str:
    """The address in the form that the kernel gives it back in; "" when it is none."""
    if ":" not in address:
        return ""
    import socket

    try:
        return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, address))
    except (OSError, ValueError):
        return ""
