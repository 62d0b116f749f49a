"""Object storage that refuses, breaks off or hangs, for one of two hosts (promise F56)."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable

import pytest

from tests.launcher.support.archives import Entry, tar_bytes
from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.records import keep_record
from tests.launcher.support.sabotage import train_after
from tests.launcher.support.staging import empty_code, one_ending, start_after_the_other
from tests.support.servers import Server, answer, refusal

Make = Callable[..., Cluster]
PROGRAM = Entry("train.py", b"print('ran')\n")
LOCATION = "s3://sagemaker-us-west-2-111122223333/job/sourcedir.tar.gz?X-Amz-Signature={}"
REDACTED = "s3://sagemaker-us-west-2-************/job/sourcedir.tar.gz?***"
SIGNATURE = "signature-of-a-link-4a5b6c"
SILENCE_S = 60.0
ECHO = "<AWSAccessKeyId>{0}</AWSAccessKeyId><SignatureProvided>{0}</SignatureProvided>"


def give_up_downloads_soon(total_s: float, read_s: float) -> None:
    """A real client of real servers, with shorter times."""
    from functools import partial

    from muster.stage.code import s3

    s3.download = partial(s3.download, retries=s3.Retries(3, total_s, 0.1, 1.0, read_s))


def stored(job: Cluster) -> bytes:
    """Makes the code lie in object storage; the answer of a store that has it."""
    empty_code(job)
    keep_record(job)
    job.set_hyperparameters(
        {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": LOCATION.format(SIGNATURE),
        }
    )
    job.environ |= {
        "AWS_ACCESS_KEY_ID": "AKIA-of-the-job",
        "AWS_SECRET_ACCESS_KEY": job.canary,
        "AWS_SESSION_TOKEN": job.canary + "-session",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "no_proxy": "*",
    }
    return answer("200 OK", gzip.compress(tar_bytes([PROGRAM]), mtime=0))


def fetch_from(
    job: Cluster, good: Server, bad: Server, total_s: float = 60, read_s: float = 10
) -> None:
    """Starts both hosts; algo-2 is the one whose store misbehaves."""
    command = train_after(give_up_downloads_soon, total_s, read_s)
    job.environ |= good.environ
    start_after_the_other(job, environ=bad.environ, command=command)


def check_no_secret(job: Cluster) -> None:
    """Neither the link's signature nor the account, anywhere; the canary is everybody's check."""
    for name in job.names:
        for text in job.result(name)[1:4]:
            assert SIGNATURE not in str(text)
            assert "111122223333" not in str(text)


@pytest.mark.promise("F56", "S08")
def test_storage_that_fails_is_asked_three_times_and_told_on_both_hosts(cluster: Make) -> None:
    job = cluster("")
    archive = stored(job)
    with Server(archive) as good, Server(refusal("503 Slow Down", "SlowDown")) as bad:
        fetch_from(job, good, bad)
        line = one_ending(job)
        assert bad.connections == 3  # the fault, as often as it was met
    assert line.startswith(
        f"SourceError: fetching the code from {REDACTED} failed after 3 attempts: SlowDown (HTTP 5"
    )
    tried = lines(job.text("algo-2", "err"), "fetching the code failed, trying again")
    assert ["attempt=1" in tried[0], "attempt=2" in tried[1], len(tried)] == [True, True, 2]
    check_no_secret(job)


@pytest.mark.promise("F56", "S08")
@pytest.mark.parametrize(
    ("trouble", "words", "fix"),
    [
        (  # it says what it was sent
            refusal("403 Forbidden", "SignatureDoesNotMatch", ECHO.format(SIGNATURE)),
            "SignatureDoesNotMatch (HTTP 403)",
            "s3:GetObject",
        ),
        (
            answer(
                "301 Moved Permanently",
                b"<Error><Code>PermanentRedirect</Code></Error>",
                headers="x-amz-bucket-region: eu-west-1\r\n",
            ),
            "PermanentRedirect (HTTP 301)",
            "AWS_REGION",
        ),
    ],
    ids=["403", "elsewhere"],
)
def test_storage_that_refuses_is_not_asked_again_and_told_on_both_hosts(
    cluster: Make, trouble: bytes, words: str, fix: str
) -> None:
    job = cluster("")
    archive = stored(job)
    with Server(archive) as good, Server(trouble) as bad:
        fetch_from(job, good, bad)
        line = one_ending(job)
        assert bad.asked.is_set()  # the fault
    assert line.startswith(f"SourceError: fetching the code from {REDACTED} failed: {words}")
    assert not lines(job.text("algo-2", "err"), "trying again")
    for name in job.names:
        assert fix in job.result(name).failure.splitlines()[1]
    check_no_secret(job)


@pytest.mark.promise("F56")
def test_storage_that_is_only_slow_is_waited_for(cluster: Make) -> None:
    """For longer than a silent host is."""
    job = cluster("")
    archive = stored(job)
    slowly = [bytes([byte]) for byte in archive[-30:]]
    with Server(archive) as good, Server([archive[:-30], *slowly]) as slow:
        began = time.monotonic()
        fetch_from(job, good, slow)
        results = job.wait(30)
        assert time.monotonic() - began > 2.9  # the fault
    assert [(r.code, r.out) for r in results.values()] == [(0, "ran\n")] * 2
    check_no_secret(job)
