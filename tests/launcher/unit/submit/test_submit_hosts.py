"""Hosts by ssh: the file that lists them, frames between desk and host, and what is unpacked."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from muster.arguments import UsageError
from muster.elsewhere.records import pack
from muster.local import frames
from muster.local.frames import Receiver, Sender
from muster.submit.hosts.listed import Destination, attended, in_the_job, read_hosts, ssh
from muster.submit.hosts.records import Unpacker
from muster.submit.hosts.request import of_host
from tests.launcher.unit.submit.test_submit_script import job


def listed(tmp_path: Path, text: str) -> tuple[Destination, ...]:
    path = tmp_path / "hosts.txt"
    path.write_text(text)
    return read_hosts(str(path))


def test_a_file_of_hosts(tmp_path: Path) -> None:
    text = "# mine\nnode-a\nme@node-b.local  # the second\n\nnode-c=10.0.0.7\n10.0.0.9\nfd00::2\n"
    hosts = listed(tmp_path, text)
    assert [one.destination for one in hosts] == [
        "node-a", "me@node-b.local", "node-c", "10.0.0.9", "fd00::2",
    ]  # fmt: skip
    assert in_the_job(hosts) == (
        "node-a,node-b.local,node-c=10.0.0.7,10.0.0.9=10.0.0.9,node-4=fd00::2"
    )


def test_destinations_as_ssh_takes_them(tmp_path: Path) -> None:
    text = "me@corp.org@node-a\nssh://node-b\nssh://me@node-c:2222\n"
    hosts = listed(tmp_path, text + "ssh://me@[fd00::2]:22=10.0.0.7\nssh://[fd00::3]\n")
    assert [one.destination for one in hosts] == [
        "me@corp.org@node-a", "ssh://node-b", "ssh://me@node-c:2222", "ssh://me@[fd00::2]:22",
        "ssh://[fd00::3]",
    ]  # fmt: skip
    assert in_the_job(hosts) == "node-a,node-b,node-c,node-3=10.0.0.7,node-4=fd00::3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it names no host"),
        ("# nobody\n", "it names no host"),
        ("node-a\nme@node-a\n", "appears twice"),
        ("node-a\n-oProxyCommand=x\n", "line 2: '-oProxyCommand=x' is no destination"),
        ("localhost\nnode-b\n", "localhost, the leader, is another host for each of them"),
        ("node-a=127.0.0.1\nnode-b\n", "127.0.0.1, the leader, is another host"),
        ("node-a=::1\nnode-b\n", "::1, the leader, is another host"),
        ("node-a node-b\n", "line 1: 'node-a node-b' is no destination"),
        ("node-a=node-b\n", "no destination"),
        ("me@node-a:22\n", "'me@node-a:22' is no destination of ssh"),
        ("ssh://-x\n", "no destination"),
        ("ssh://node-a/tmp\n", "no destination"),
        ("me@-x\n", "no destination"),
        ("../a\n", "no destination"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=r"hosts\.txt") as caught:
        listed(tmp_path, text)
    assert said in caught.value.message and caught.value.fix


def test_a_port_has_a_form_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        listed(tmp_path, "node-a\nme@node-b:2222=10.0.0.7\n")
    assert caught.value.fix == "write ssh://me@node-b:2222=10.0.0.7"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_hosts(str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no text"):
        read_hosts(str(tmp_path / "binary"))


def test_this_host_may_be_the_only_one(tmp_path: Path) -> None:
    assert in_the_job(listed(tmp_path, "localhost\n")) == "localhost"


def test_this_host_may_lead_by_an_address(tmp_path: Path) -> None:
    hosts = listed(tmp_path, "localhost=10.0.0.7\nnode-b\n")
    assert in_the_job(hosts) == "localhost=10.0.0.7,node-b"


@pytest.mark.parametrize("spelt", ["<(cat hosts.txt)", "~/hosts.txt"])
def test_a_file_as_shells_spell_it(tmp_path: Path, spelt: str) -> None:
    """What a shell substitutes for a command can be read once only."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "hosts.txt").write_text("node-a\nnode-b\n")
    script = f"{shlex.quote(sys.executable)} -m muster submit train.py --dry-run --on hosts:{spelt}"
    environ = {**os.environ, "HOME": str(tmp_path)}
    words = ["bash", "-c", script]
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, check=False)
    assert b"-- node-a" in done.stdout and b"-- node-b" in done.stdout, done.stderr


def test_ssh_asks_nobody_and_takes_the_users_options() -> None:
    settings = {"F": "my config", "Port": "2222", "TMPDIR": "/scratch"}
    assert ssh(Destination("me@node-a", "node-a"), settings) == [
        "ssh", "-T", "-o", "BatchMode=yes", "-F", "my config", "-o", "Port=2222", "--", "me@node-a",
    ]  # fmt: skip


@pytest.mark.parametrize(("grace_s", "told"), [(None, "8"), (120.0, "120")])
def test_a_host_is_told_its_place_and_its_time_to_stop(
    tmp_path: Path, grace_s: float | None, told: str
) -> None:
    """What others must not read stands beside its command line."""
    made = job(tmp_path, grace_s=grace_s)
    made = made._replace(request=made.request._replace(environ={"TOKEN": "hunter2"}))
    Path(made.run).mkdir()
    Path(made.run, "secret").write_text("f00d" * 16 + "\n")
    request = of_host(made, listed(tmp_path, "me@node-a\nnode-b=10.0.0.7\n"), 1)
    variables = dict(request["variables"])  # type: ignore[call-overload]
    assert (variables["MUSTER_ENGINE"], variables["MUSTER_HOST_INDEX"]) == ("hosts", "1")
    assert variables["MUSTER_HOSTS"] == "node-a,node-b=10.0.0.7"
    assert variables["MUSTER_STOP_TOTAL_S"] == told and request["stop_s"] == float(told)
    assert variables["MUSTER_JOB_SECRET"] == "f00d" * 16 and request["leader"] == "node-a"
    assert "hunter2" in str(request["environ"])
    assert not {"hunter2", "f00d" * 16} & set(str(request["arguments"]).split("'"))


@pytest.mark.parametrize("python", ["/no where/it's/python", "/usr/bin/python3"])
def test_what_a_shell_makes_of_the_remote_command(tmp_path: Path, python: str) -> None:
    """The words reach the Python that was named, whatever its path."""
    assert shlex.split(attended(python)) == [python, "-m", "muster", "run", "--attended"]
    (tmp_path / "muster").write_text("#!/bin/sh\necho found $*\n")
    (tmp_path / "muster").chmod(0o755)
    text = attended(sys.executable).replace(sys.executable, "/nowhere/python")
    (tmp_path / ".profile").write_text(f"PATH={tmp_path}:$PATH\n")
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", text], capture_output=True, env=environ, check=True)
    assert done.stdout == b"found run --attended\n"


@contextmanager
def through(send: Callable[[Sender], object], noise: bytes = b"") -> Iterator[Receiver]:
    """What arrives of what is sent, by a pipe that ends then."""
    out, into = os.pipe()

    def write() -> None:
        os.write(into, noise)
        send(Sender(into))
        os.close(into)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield Receiver(out)
    finally:
        os.close(out)
        writer.join()


@given(some.binary(max_size=300).filter(lambda noise: b"muster-attended" not in noise))
def test_a_login_may_say_anything_before_the_mark(noise: bytes) -> None:
    def send(sender: Sender) -> None:
        sender.send(frames.BEAT)
        sender.tell(frames.HELLO, muster="1")

    with through(send, noise + frames.MARK) as found:
        assert found.find_mark() == noise
        kind, content = found.next()
        assert (kind, frames.fields_of(content)) == (frames.HELLO, {"muster": "1"})
        assert found.next() == (b"", b"")


def test_content_of_any_size_arrives_in_pieces() -> None:
    data = os.urandom(2 * frames.MAX_BYTES + 5)
    with through(lambda sender: sender.send(frames.CODE, data)) as found:
        pieces = [found.next()[1] for _ in range(3)]
        assert b"".join(pieces) == data and found.next()[0] == b""


def test_a_frame_that_is_cut_or_too_long_is_the_end() -> None:
    for data in (b"O\0\0\0\x05abc", b"O\xff\xff\xff\xffabc", b"O\0"):
        with through(lambda sender: None, data) as found:
            assert found.next() == (b"", b"")
    with through(lambda sender: None, b"no muster here") as found:
        assert found.find_mark() is None


def packed(run: Path, most_bytes: int = 1 << 30) -> tuple[bytes, list[str]]:
    pieces: list[bytes] = []
    left_out = pack(str(run), pieces.append, most_bytes)
    return b"".join(pieces), left_out


def unpacked(run: Path, data: bytes, leads: bool = True) -> str:
    """What was wrong, "" for nothing."""
    unpacker = Unpacker(str(run), "node-a", leads)
    for start in range(0, len(data), 1000):
        unpacker.take(data[start : start + 1000])
    unpacker.close()
    return unpacker.trouble


@pytest.fixture
def run(tmp_path: Path) -> Path:
    files = {
        "summary.json": "{}",
        "node-a/events.jsonl": "e",
        "node-a/logs/rank-0.out": "o",
        "node-a/opt/ml/model/weights": "w" * 5000,
        "node-a/opt/ml/output/data/a b": "",
        "node-a/opt/ml/input/data/set/x": "data",
        "node-a/source/sourcedir.tar.gz": "code",
        "node-a/site/package.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "there/node-a/opt/ml/checkpoints").symlink_to("/etc")
    (tmp_path / "there/node-a/link").symlink_to("/etc/passwd")
    return tmp_path / "there"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_a_record_and_results_travel_but_no_data_and_no_links(run: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    data, left_out = packed(run)
    assert (unpacked(here, data), left_out) == ("", [])
    assert names(here) == {
        "summary.json", "node-a/events.jsonl", "node-a/logs/rank-0.out",
        "node-a/opt/ml/model/weights", "node-a/opt/ml/output/data/a b",
    }  # fmt: skip
    assert (here / "node-a/opt/ml/model/weights").read_text() == "w" * 5000


def test_the_record_comes_first_where_not_all_may_come(run: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    data, left_out = packed(run, 100)
    assert left_out == ["node-a/opt/ml/model/weights (5000 bytes)"]
    assert unpacked(here, data) == ""
    assert {"summary.json", "node-a/events.jsonl", "node-a/logs/rank-0.out"} <= names(here)


@pytest.mark.parametrize("cut", [1, 600, 5000])
def test_an_archive_that_is_cut_is_not_complete(run: Path, tmp_path: Path, cut: int) -> None:
    here = tmp_path / "here"
    here.mkdir()
    assert "damaged" in unpacked(here, packed(run)[0][:cut])


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/etc/x", tarfile.REGTYPE),
        ("../x", tarfile.REGTYPE),
        ("node-a/../../x", tarfile.REGTYPE),
        ("node-a/./x", tarfile.REGTYPE),
        ("node-a//x", tarfile.REGTYPE),
        ("node-a", tarfile.REGTYPE),
        ("node-b/events.jsonl", tarfile.REGTYPE),
        ("submitted.json", tarfile.REGTYPE),
        ("node-a/link", tarfile.SYMTYPE),
        ("node-a/same", tarfile.LNKTYPE),
        ("node-a/device", tarfile.CHRTYPE),
        ("node-a/pipe", tarfile.FIFOTYPE),
    ],
)
def test_what_does_not_belong_into_a_record_is_not_written(
    tmp_path: Path, name: str, kind: bytes
) -> None:
    here = tmp_path / "a" / "here"
    here.mkdir(parents=True)
    assert "does not belong" in unpacked(here, member(name, kind, "/etc/passwd"))
    assert names(tmp_path) == set()


def test_only_the_leader_brings_the_summary(tmp_path: Path) -> None:
    assert "does not belong" in unpacked(tmp_path, member("summary.json"), leads=False)
    assert unpacked(tmp_path, member("summary.json")) == ""


def test_no_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "summary.json").symlink_to("/nowhere")
    assert "File exists" in unpacked(tmp_path, member("summary.json"))
