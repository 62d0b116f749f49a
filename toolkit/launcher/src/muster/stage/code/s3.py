"""Fetches one object from S3 or from something that speaks like it (F56).

boto3 is imported here only, when the code is at an `s3://` address; it is an extra.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from muster.stage.space import DISK_FULL, shortage
from muster.types.errors import ConfigError, SourceError
from muster.types.steps import Log
from muster.types.values import NamedTuple

_CHUNK = 64 << 10  # small: between two chunks is where the deadline is looked at
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_ELSEWHERE = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"})
_RETRIED_CODES = frozenset({"RequestTimeout", "SlowDown", "Throttling", "InternalError"})


class Retries(NamedTuple):
    """Attempts, the time for all of them together, and the pause that doubles after each."""

    attempts: int = 3
    total_s: float = 120.0
    pause_s: float = 1.0
    connect_s: float = 10.0
    read_s: float = 30.0


_DEFAULT = Retries()


def redacted(text: str) -> str:
    """`text` without account numbers, credentials and signatures in addresses.

    A signed link that came as a key stands in botocore's texts with its `?` quoted.
    """
    text = re.sub(r"(?<!\d)\d{12}(?!\d)", "*" * 12, text)
    text = re.sub(r"(?<=://)[^\s/@]+@", "***@", text)
    return re.sub(r"(\?|%3[Ff])[^\s\"')]+", "?***", text)


def download(
    location: str, path: str, environ: Mapping[str, str], log: Log, retries: Retries = _DEFAULT
) -> None:
    """Writes the object at `s3://BUCKET/KEY` to `path`.

    Endpoint: AWS_ENDPOINT_URL_S3, else S3_ENDPOINT_URL; region: AWS_REGION, else
    SAGEMAKER_REGION; credentials as boto3 finds them. Blocks for at most `total_s`, give or take
    one read. Raises SourceError with the redacted location; ConfigError for half an address.
    """
    bucket, _, key = location.removeprefix("s3://").partition("/")
    if not bucket or not key:
        raise ConfigError.of(
            "sagemaker_submit_directory",
            f"expected s3://BUCKET/KEY, got {redacted(location)!r}",
            "name the archive itself, such as s3://my-bucket/code/sourcedir.tar.gz",
        )
    failures = _failures(location)
    deadline = time.monotonic() + retries.total_s
    for attempt in range(1, retries.attempts + 1):
        try:
            _attempt(bucket, key, path, environ, deadline, retries)
            return
        except failures as error:
            pause = retries.pause_s * 2 ** (attempt - 1)
            over = attempt == retries.attempts or time.monotonic() + pause >= deadline
            if over or not _may_pass(error):
                raise _refused(location, error, attempt) from error
            log(
                "stage", "fetching the code failed, trying again", level="WARNING",
                location=redacted(location), attempt=attempt, error=_text(error),
            )  # fmt: skip
            time.sleep(pause)


def _failures(location: str) -> tuple[type[Exception], ...]:
    """What a fetch may end with. Raises SourceError when there is no boto3."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise SourceError(
            f"fetching {redacted(location)} needs boto3, which is not installed here",
            "python -m pip install boto3, or put the code into the code folder",
        ) from error
    return (BotoCoreError, ClientError, OSError)


def _attempt(
    bucket: str,
    key: str,
    path: str,
    environ: Mapping[str, str],
    deadline: float,
    retries: Retries,
) -> None:
    left = max(1.0, deadline - time.monotonic())
    client = _client(environ, min(retries.connect_s, left), min(retries.read_s, left))
    try:
        answer = client.get_object(Bucket=bucket, Key=key)
        with contextlib.closing(answer["Body"]) as body:
            short = shortage(os.path.dirname(path), int(answer["ContentLength"]))
            if short:
                raise _no_space(path, short)
            _save(body, path, deadline)
    finally:
        client.close()


def _save(body: Any, path: str, deadline: float) -> None:
    try:
        with open(path, "wb") as file:
            for chunk in body.iter_chunks(_CHUNK):
                file.write(chunk)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{file.tell()} bytes had come when the time was over")
    except OSError as error:
        if error.errno in DISK_FULL:
            raise _no_space(path, "the disk is full") from error
        raise


def _client(environ: Mapping[str, str], connect_s: float, read_s: float) -> Any:
    import boto3
    from botocore.config import Config

    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("S3_ENDPOINT_URL") or None
    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"total_max_attempts": 1},  # muster counts and logs its own
        # a stand-in for S3 seldom resolves names with the bucket in front
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    region = environ.get("AWS_REGION") or environ.get("SAGEMAKER_REGION") or None
    session = boto3.session.Session(region_name=region)
    return session.client("s3", endpoint_url=endpoint, config=config)


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    status, code = _status(error)
    if status:
        return status in _RETRIED or code in _RETRIED_CODES
    hopeless = ("NoCredentials", "PartialCredentials", "ParamValidation", "Invalid", "Unknown")
    return not type(error).__name__.startswith(hopeless)


def _status(error: Exception) -> tuple[int, str]:
    """HTTP status and S3's code of a ClientError; 0 and "" for anything else."""
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status), str(response.get("Error", {}).get("Code", ""))


def _text(error: Exception) -> str:
    status, code = _status(error)
    return f"{code} (HTTP {status})" if status else redacted(f"{type(error).__name__}: {error}")


def _refused(location: str, error: Exception, attempts: int) -> SourceError:
    status, code = _status(error)
    fix = "check that the endpoint can be reached from this host, and its region"
    if status == 404:
        fix = "check the address, and that the archive was uploaded before the job started"
    elif code in _ELSEWHERE:
        fix = "set AWS_REGION to the region of the bucket, and check the permission to read it"
    elif status in (400, 401, 403):
        fix = "give the job's role or credentials permission to read it (s3:GetObject)"
    elif "Credentials" in type(error).__name__:
        fix = "give the job a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    return SourceError(
        f"fetching the code from {redacted(location)} failed{tried}: {_text(error)}", fix
    )


def _no_space(path: str, short: str) -> SourceError:
    return SourceError(
        f"no space left fetching the code archive ({short})",
        f"give the disk of {os.path.dirname(path)} more room",
    )
