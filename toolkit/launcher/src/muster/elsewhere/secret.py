"""The secret by which hosts of a job know one another."""

from __future__ import annotations

import os
from collections.abc import Mapping

from muster.contract.engines.values import SECRET_FILE
from muster.contract.request.settings import MIN_SECRET_BYTES
from muster.types.engine import Engine
from muster.types.errors import ConfigError

MAKE = "openssl rand -hex 32"


def read_secret(engine: Engine, environ: Mapping[str, str]) -> str:
    """The file's secret, or "" where the variable holds one or none is needed.

    Raises ConfigError for a file that cannot be used, and without a secret where hosts have no
    names by which they could be known.
    """
    if engine.secret_file:
        return _of_file(engine.secret_file)
    if engine.nameless and not (
        environ.get("MUSTER_JOB_SECRET") or environ.get("MUSTER_INSECURE_JOIN", "0") != "0"
    ):
        raise ConfigError.of(
            "MUSTER_JOB_SECRET",
            f"not set, and {engine.name} names no hosts: any could join this job",
            f"give all hosts one secret (`{MAKE}`) in {SECRET_FILE} or MUSTER_JOB_SECRET; on a "
            "network that nobody else reaches --insecure-join does without",
        )
    return ""


def _of_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.read(4096).strip()
            owner, mode = os.fstat(file.fileno()).st_uid, os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError.of(SECRET_FILE, f"{path}: {why}", f"`{MAKE} > FILE`") from None
    if len(secret.encode()) < MIN_SECRET_BYTES:
        what = f"{path} has {len(secret.encode())} bytes, at least {MIN_SECRET_BYTES} are needed"
        raise ConfigError.of(SECRET_FILE, what, f"write the output of `{MAKE}` into it")
    if owner == os.getuid() != 0 and mode & 0o004:  # root's are mounted ones, of Kubernetes
        raise ConfigError.of(SECRET_FILE, f"{path} can be read by everybody", f"chmod 600 {path}")
    return secret
