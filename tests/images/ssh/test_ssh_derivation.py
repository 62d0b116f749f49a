"""Keys of ssh between the hosts of a job, without a container: who can derive which."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CODE = Path(__file__).parents[3] / "docker" / "rootfs" / "usr" / "local" / "lib" / "muster-ssh"
pytest.importorskip("cryptography", reason="the keys are made with it")
sys.path.insert(0, str(CODE))
try:
    from muster_ssh import SshError, identity, keys, place, policy, session
finally:
    sys.path.remove(str(CODE))

HOSTS = ["algo-1", "algo-2"]
JOB = {"TRAINING_JOB_NAME": "job-2026-01-01", "TRAINING_JOB_ARN": "arn:aws:sagemaker:x:1:job"}
SECRET = {"MUSTER_JOB_SECRET": "0123456789abcdef0123456789abcdef"}
pytestmark = pytest.mark.promise("S01")


@pytest.fixture
def keygen() -> str:
    found = shutil.which("ssh-keygen")
    if not found:
        pytest.skip("no ssh-keygen here (Debian: openssh-client)")
    return found


def see(
    folder: Path,
    host: str = "algo-1",
    environ: dict[str, str] | None = None,
    request: dict[str, str] | None = None,
    **resources: Any,
) -> identity.Identity:
    """The job as `host` sees it, its files below `folder`."""
    config = folder / host / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    said = {"current_host": host, "hosts": HOSTS, **resources}
    (config / "resourceconfig.json").write_text(json.dumps(said))
    (config / "hyperparameters.json").write_text(json.dumps(request or {"lr": "0.1", "a": "b"}))
    variables = JOB if environ is None else environ
    return identity.read({"SAGEMAKER_BASE_DIR": str(folder / host), **variables})


def user_key(job: identity.Identity) -> str:
    return keys.key(keys.job_key(job.text, job.secret), keys.USER).public


def test_all_hosts_of_a_job_derive_the_same_keys(tmp_path: Path) -> None:
    first = see(tmp_path, "algo-1", current_group_name="a", current_instance_type="x")
    request = {"a": "b", "lr": "0.1"}  # the same in another order
    second = see(tmp_path, "algo-2", request=request, hosts=HOSTS[::-1], current_group_name="b")

    assert first.text and user_key(first) == user_key(second)
    for name in HOSTS:
        ours, theirs = (
            keys.key(keys.job_key(job.text, job.secret), keys.for_host(name))
            for job in (first, second)
        )
        assert ours.public == theirs.public


@pytest.mark.parametrize(
    "other",
    [
        {"environ": {**JOB, "TRAINING_JOB_NAME": "job-2026-01-02"}},
        {"environ": {**JOB, "TRAINING_JOB_ARN": "arn:aws:sagemaker:x:2:job"}},
        {"environ": {**JOB, **SECRET}},
        {"environ": {**JOB, "MUSTER_JOB_SECRET": "another secret of a job"}},
        {"hosts": ["algo-1"]},
        {"request": {"lr": "0.2", "a": "b"}},
    ],
    ids=["name", "arn", "secret", "other-secret", "hosts", "request"],
)
def test_no_two_jobs_share_a_key(tmp_path: Path, other: dict[str, Any]) -> None:
    jobs = see(tmp_path / "one"), see(tmp_path / "two", **other)
    made = [
        keys.key(keys.job_key(job.text, job.secret), purpose).public
        for job in jobs
        for purpose in (keys.USER, *map(keys.for_host, HOSTS))
    ]

    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    ("environ", "resources"), [({}, {}), (JOB, {"hosts": []}), (JOB, {"current_host": "algo-3"})]
)
def test_a_job_that_nothing_sets_apart_has_no_derived_key(
    tmp_path: Path, environ: dict[str, str], resources: dict[str, Any]
) -> None:
    job = see(tmp_path, environ=environ, **resources)

    assert (job.text, job.peers) == (b"", ())
    assert identity.read({"SAGEMAKER_BASE_DIR": str(tmp_path / "none"), **JOB}).text == b""


def test_a_secret_alone_sets_a_job_apart(tmp_path: Path) -> None:
    assert see(tmp_path, environ=SECRET).text


def test_openssh_reads_the_keys_as_they_were_meant(tmp_path: Path, keygen: str) -> None:
    made = keys.key(bytes(32), keys.USER)
    place.write(str(tmp_path / "key"), made.private)

    read = subprocess.run(
        [keygen, "-y", "-f", str(tmp_path / "key")], capture_output=True, text=True, check=True
    )

    assert read.stdout.split()[:2] == made.public.split()


def test_files_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        found = place.take((str(tmp_path),))
        place.write(f"{found.folder}/key", "secret")
    finally:
        os.umask(before)

    assert stat.S_IMODE(os.stat(found.folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{found.folder}/key").st_mode) == 0o600
    assert os.listdir(found.folder) == ["key"]


@pytest.mark.parametrize("planted", ["link", "open", "file"])
def test_a_folder_that_somebody_planted_is_not_used(tmp_path: Path, planted: str) -> None:
    parents = [tmp_path / "first", tmp_path / "second"]
    for parent in parents:
        parent.mkdir()
    name = Path(place.take((str(parents[0]),)).folder)
    name.rmdir()
    if planted == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        name.symlink_to(tmp_path / "elsewhere")
    elif planted == "open":
        name.mkdir()
        name.chmod(0o777)
    else:
        name.write_text("")

    assert place.take(tuple(map(str, parents))).folder == str(parents[1] / name.name)


def test_memory_is_told_from_disk() -> None:
    mounts = (
        "21 1 0:1 / / rw - overlay overlay rw\n"
        "22 21 0:2 / /dev rw - tmpfs tmpfs rw\n"
        "23 22 0:3 / /dev/shm rw shared:1 - tmpfs shm rw\n"
    )

    assert place.filesystem("/dev/shm", mounts) == "tmpfs"
    assert place.filesystem("/run", mounts) == "overlay"
    assert place.filesystem("/dev/shm", mounts + "24 23 8:1 / /dev/shm rw - ext4 x rw\n") == "ext4"


def test_random_keys_stay_when_sshd_is_started_again(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    first = place.random_seed(str(one))

    assert len(first) == 32 and place.random_seed(str(one)) == first
    assert place.random_seed(str(two)) != first


def test_sessions_get_no_secret_of_the_job_and_nothing_of_another_session() -> None:
    environ = {
        **SECRET,
        "HOME": "/x",
        "SSH_CONNECTION": "x",
        "A": "1",
        "B": "two\nlines",
        "C-D": "",
    }

    assert session.session(environ) == ('"A=1"', ())


def test_the_longest_variables_are_left_out_where_there_is_no_room() -> None:
    environ = {"PATH": "/bin", "SM_HPS": "x" * 90_000, "SM_TRAINING_ENV": "y" * 100_000}

    found = session.session(environ)

    assert found.left_out == ("SM_TRAINING_ENV",)
    assert '"PATH=/bin"' in found.text and len(found.text) < session.MAX_BYTES


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"environ": {"MUSTER_JOB_SECRET": "short"}}, "has 5 bytes, at least 16"),
        ({"environ": {"MUSTER_JOB_SECRET": ""}}, "has 0 bytes, at least 16"),
        ({"hosts": ["algo-1", "*"]}, "'*', which is no host name"),
        ({"hosts": ["algo-1", "x\nProxyCommand y"]}, "no host name"),
        ({"hosts": ["algo-1", "-oProxyCommand=y"]}, "no host name"),
        ({"hosts": "algo-1 algo-2"}, "no host name"),
        ({"hosts": [1]}, "no host name"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, said: dict[str, Any], wrong: str) -> None:
    with pytest.raises(SshError) as caught:
        see(tmp_path, **said)

    assert wrong in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    see(tmp_path)
    path = tmp_path / "algo-1" / "input" / "config" / "hyperparameters.json"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(SshError, match=r"hyperparameters\.json"):
        identity.read({"SAGEMAKER_BASE_DIR": str(tmp_path / "algo-1")})


@pytest.mark.parametrize("said", ["0", "65536", "ssh", "", "-1", "٢٢"])
def test_a_port_that_is_none_is_refused(said: str) -> None:
    with pytest.raises(SshError, match="MUSTER_SSH_PORT"):
        identity.port({"MUSTER_SSH_PORT": said})


def test_known_hosts_name_another_port() -> None:
    assert policy.known_hosts([("algo-1", "T K")], 22) == "algo-1 T K muster-ssh\n"
    assert policy.known_hosts([("algo-1", "T K")], 2222) == "[algo-1]:2222 T K muster-ssh\n"
