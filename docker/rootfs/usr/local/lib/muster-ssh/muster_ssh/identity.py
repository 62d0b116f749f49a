"""Which job this is, in words that every host of the job finds alike and no other job has."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from muster_ssh import SshError

__all__ = ["Identity", "port", "read"]

MIN_SECRET_BYTES = 16  # as `train` demands
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")


class Identity(NamedTuple):
    """A job as one of its hosts sees it.

    `text`: what keys are derived from, the same on all hosts; empty when there is nothing that
    sets this job apart from others, and then nobody else can have its keys.
    """

    host: str = ""
    hosts: tuple[str, ...] = ()
    interface: str = ""
    secret: bytes = b""
    text: bytes = b""

    @property
    def peers(self) -> tuple[str, ...]:
        """The hosts whose keys can be known, this one among them."""
        return self.hosts if self.text else ()


def read(environ: Mapping[str, str]) -> Identity:
    """The identity, from SageMaker's files and variables.

    Of resourceconfig.json only `hosts` counts: its other fields differ from host to host. Raises
    SshError for a file that cannot be read, a host name that is none, a secret that is too short.
    """
    base = os.path.join(environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "input", "config")
    resources = _object(os.path.join(base, "resourceconfig.json"))
    request = _object(os.path.join(base, "hyperparameters.json"))
    hosts = _hosts(resources.get("hosts", []))
    host, interface = (resources.get(key) for key in ("current_host", "network_interface_name"))
    secret = _secret(environ)
    names = {
        "arn": environ.get("TRAINING_JOB_ARN", ""),
        "name": environ.get("TRAINING_JOB_NAME", "") or str(request.get("sagemaker_job_name", "")),
    }
    text = b""
    if host in hosts and (secret or any(names.values())):
        said = {**names, "hosts": sorted(hosts), "request": request}
        text = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    return Identity(str(host or ""), hosts, str(interface or ""), secret, text)


def port(environ: Mapping[str, str]) -> int:
    """MUSTER_SSH_PORT, 22 by default. Raises SshError."""
    said = environ.get("MUSTER_SSH_PORT", "22")
    if said.isascii() and said.isdecimal() and len(said) < 6 and 0 < int(said) < 65536:
        return int(said)
    raise SshError(
        f"MUSTER_SSH_PORT: expected a port from 1 to 65535, got {said[:40]!r}: "
        "unset it or set it inside the range, alike on all hosts"
    )


def _object(path: str) -> Mapping[str, object]:
    """A JSON object; {} where there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        wrong = f"{path} cannot be read: {error}: give the file that SageMaker writes"
        raise SshError(wrong) from error
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise SshError(f"{path} holds a {kind}, no JSON object: give the file SageMaker writes")
    return found


def _hosts(found: object) -> tuple[str, ...]:
    """Names that can stand in ssh's files as they are, without a pattern or a second word."""
    listed = found if isinstance(found, list) else [found]
    for name in listed:
        if not isinstance(name, str) or not _HOST.fullmatch(name):
            raise SshError(
                f"resourceconfig.json: hosts has {str(name)[:80]!r}, which is no host name: "
                "use letters, digits, dots, hyphens and underscores"
            )
    return tuple(listed)


def _secret(environ: Mapping[str, str]) -> bytes:
    secret = os.fsencode(environ.get("MUSTER_JOB_SECRET", ""))
    if "MUSTER_JOB_SECRET" in environ and len(secret) < MIN_SECRET_BYTES:
        raise SshError(
            f"MUSTER_JOB_SECRET has {len(secret)} bytes, at least {MIN_SECRET_BYTES} are needed: "
            "use the output of `openssl rand -hex 32`, the same on all hosts"
        )
    return secret
