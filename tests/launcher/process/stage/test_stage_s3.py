"""Fetching code from S3: moto as the store, and servers that misbehave as the real one may."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from muster.stage.code.s3 import Retries, download, redacted
from muster.stage.code.source import fetch
from muster.types.errors import ConfigError, SourceError
from tests.launcher.support.archives import code_archive
from tests.launcher.support.jobs import make_job
from tests.launcher.support.steps import LogLines
from tests.support.servers import Script, Server, answer

BUCKET = "sagemaker-us-west-2-111122223333"
LOCATION = f"s3://{BUCKET}/job/source/sourcedir.tar.gz"
REDACTED = "s3://sagemaker-us-west-2-************/job/source/sourcedir.tar.gz"
QUICK = Retries(attempts=3, total_s=60, pause_s=0.05, connect_s=5, read_s=10)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store that holds LOCATION."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        region_name="us-west-2",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    place = {"LocationConstraint": "us-west-2"}
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration=place)
    archive = code_archive(tmp_path_factory.mktemp("s3") / "c.tar.gz", train_py="sent")
    client.upload_file(str(archive), BUCKET, "job/source/sourcedir.tar.gz")
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"])
def test_code_comes_from_s3(variable: str, store: str, tmp_path: Path) -> None:
    log = LogLines()
    environ = {variable: store, "AWS_REGION": "us-west-2"}
    job = make_job(base=str(tmp_path / "ml"), environ=environ)._replace(source=LOCATION)
    program = fetch(job, log)
    assert (tmp_path / "ml/code/train.py").read_text() == "sent"
    assert program.name == "train.py"
    assert log.lines[0] == f"INFO stage fetching the code location={REDACTED}"
    assert "111122223333" not in log.text
    assert os.listdir(tmp_path / "ml") == ["code"]


def fails(
    environ: dict[str, str],
    folder: Path,
    location: str = LOCATION,
    log: LogLines | None = None,
    retries: Retries = QUICK,
) -> SourceError:
    with pytest.raises(SourceError) as caught:
        download(location, str(folder / "x"), environ, log or LogLines(), retries)
    assert caught.value.exit_code == 101
    assert redacted(location) in caught.value.message
    assert "111122223333" not in caught.value.message
    return caught.value


@pytest.mark.promise("F56")
def test_an_object_that_is_not_there_is_not_asked_for_again(store: str, tmp_path: Path) -> None:
    log = LogLines()
    environ = {"AWS_ENDPOINT_URL_S3": store, "AWS_REGION": "us-west-2"}
    error = fails(environ, tmp_path, LOCATION + ".gone", log)
    assert "(HTTP 404)" in error.message
    assert "check the address" in error.fix
    assert log.lines == []


SILENCE = 30.0
BUSY = answer("503 Slow Down", b"<Error><Code>SlowDown</Code></Error>")


@pytest.mark.promise("F56")
@pytest.mark.parametrize(
    "trouble",
    [BUSY, None, SILENCE, answer("200 OK", b"half", length=8)],
    ids=["503", "reset", "silence", "cut short"],
)
def test_what_passes_is_tried_again(trouble: Script, tmp_path: Path) -> None:
    log = LogLines()
    with Server(trouble, trouble, answer("200 OK", b"whole")) as server:
        read_s = 1.0 if trouble == SILENCE else QUICK.read_s
        download(LOCATION, str(tmp_path / "x"), server.environ, log, QUICK._replace(read_s=read_s))
        assert server.connections == 3
    assert (tmp_path / "x").read_bytes() == b"whole"
    assert [line.split(" error=")[0] for line in log.lines] == [
        f"WARNING stage fetching the code failed, trying again location={REDACTED} attempt={n}"
        for n in (1, 2)
    ]


@pytest.mark.promise("F56")
def test_three_attempts_are_all(tmp_path: Path) -> None:
    with Server(BUSY) as server:
        error = fails(server.environ, tmp_path)
        assert server.connections == 3
    assert "failed after 3 attempts: SlowDown (HTTP 503)" in error.message


@pytest.mark.clock
@pytest.mark.promise("F56")
def test_the_time_for_all_attempts_is_limited(tmp_path: Path) -> None:
    head = answer("200 OK", length=100_000_000)
    before = time.monotonic()
    with Server([head, *[b"x" * 65536] * 100]) as server:
        error = fails(server.environ, tmp_path, retries=QUICK._replace(total_s=1.0))
        assert server.connections == 1
    assert 1 <= time.monotonic() - before < 4
    assert "bytes had come when the time was over" in error.message
    assert Retries().total_s == 120


@pytest.mark.promise("F56")
@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [
        ("403 Forbidden", "AccessDenied", "s3:GetObject"),
        ("404 Not Found", "NoSuchBucket", "check the address"),
        ("400 Bad Request", "AuthorizationHeaderMalformed", "permission"),
    ],
)
def test_a_refusal_is_final_and_names_its_cure(
    status: str, code: str, fix: str, tmp_path: Path
) -> None:
    with Server(answer(status, f"<Error><Code>{code}</Code></Error>".encode())) as server:
        error = fails(server.environ, tmp_path)
        assert server.connections == 1
    assert f"failed: {code} (HTTP {status[:3]})" in error.message
    assert fix in error.fix


def test_no_credentials_are_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with Server(BUSY) as server:
        error = fails(server.environ, tmp_path)
        assert server.connections == 0
    assert "NoCredentialsError" in error.message
    assert "give the job a role" in error.fix


@pytest.mark.promise("F52")
def test_an_archive_that_does_not_fit_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.stage.space.free_bytes", lambda _: 64 << 20)
    with Server(answer("200 OK", length=812 << 20)) as server, pytest.raises(SourceError) as caught:
        download(LOCATION, str(tmp_path / "x"), server.environ, LogLines(), QUICK)
    assert caught.value.message == (
        "no space left fetching the code archive (needs 812 MiB, 64 MiB free)"
    )
    assert not _connections_to(server.environ["AWS_ENDPOINT_URL_S3"])


def _connections_to(address: str) -> list[str]:
    """The descriptors of this process that are connected to `address`, an URL with a port."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if address.endswith(f":{connection.getpeername()[1]}"):
                    found.append(name)
    return found


@pytest.mark.parametrize("location", ["s3://", "s3://bucket", "s3://bucket/", "s3:///key"])
def test_half_an_address_is_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected s3://BUCKET/KEY"):
        download(location, str(tmp_path / "x"), {}, LogLines())


def test_a_missing_boto3_is_told_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(SourceError, match="needs boto3, which is not installed") as caught:
        download(LOCATION, str(tmp_path / "x"), {}, LogLines())
    assert "pip install boto3" in caught.value.fix


@pytest.mark.promise("S08")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOCATION, REDACTED),
        ("https://me:pw@h/a?X-Amz-Signature=abc", "https://***@h/a?***"),
        ("s3://b/1234567890123/x", "s3://b/1234567890123/x"),
        ("s3://bucket/key", "s3://bucket/key"),
        ('"https://h/b/key%3FX-Amz-Signature%3Dabc": x', '"https://h/b/key?***": x'),
    ],
)
def test_locations_are_redacted(text: str, expected: str) -> None:
    assert redacted(text) == expected


def test_boto3_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, muster.stage.code.source, muster.stage.code.s3; print('boto3' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
