"""Fingerprints, requirements files, sizes, slow mounts."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from muster.stage.code.fingerprint import fingerprint
from muster.stage.patience import Patience
from muster.stage.python.install import with_target
from muster.stage.python.requirements import check, lines_of, options_of
from muster.stage.python.target import pinned
from muster.stage.space import shortage, tree_bytes
from muster.types.errors import InstallError
from muster.types.plain import size_text
from tests.launcher.support.steps import LogLines


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.promise("F24")
def test_the_same_code_has_the_same_hash_wherever_it_lies(tmp_path: Path) -> None:
    files = {"train.py": "1", "pkg/a.py": "2", "pkg-b/a.py": "3", "z/é.txt": "4"}
    one = tree(tmp_path / "one", files)
    two = tree(tmp_path / "two", dict(reversed(files.items())))
    tree(two, {"__pycache__/x.cpython-311.pyc": "host", ".git/HEAD": "host", "x.pyc": "host"})
    os.utime(two / "train.py", (1, 1))
    (two / "train.py").chmod(0o755)
    assert fingerprint(str(one)) == fingerprint(str(two))
    assert len(fingerprint(str(one))) == 64


@pytest.mark.promise("F24")
@pytest.mark.parametrize(
    "changed",
    [
        {"train.py": "2"},
        {"train.py": "1", "new.py": ""},
        {"pkg/train.py": "1"},
        {"train.p": "y1"},
        {"train.py": "", "1": ""},
    ],
)
def test_different_code_has_different_hashes(changed: dict[str, str], tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one", {"train.py": "1"}), tree(tmp_path / "two", changed)
    assert fingerprint(str(one)) != fingerprint(str(two))


def test_links_count_by_their_text_and_are_not_followed(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one", {"a": "1"}), tree(tmp_path / "two", {"a": "1"})
    (one / "loop").symlink_to(".")
    (two / "loop").symlink_to("..")
    assert fingerprint(str(one)) != fingerprint(str(two))


def test_large_files_are_not_read(tmp_path: Path) -> None:
    for name in ("one", "two"):
        tree(tmp_path / name, {"a.py": "1"})
        with (tmp_path / name / "weights.bin").open("wb") as file:
            file.truncate(100 << 30)
    before = time.monotonic()
    assert fingerprint(str(tmp_path / "one")) == fingerprint(str(tmp_path / "two"))
    assert time.monotonic() - before < 5
    os.truncate(tmp_path / "one/weights.bin", 99 << 30)
    assert fingerprint(str(tmp_path / "one")) != fingerprint(str(tmp_path / "two"))


def test_a_pipe_does_not_stop_the_hash(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert fingerprint(str(tmp_path))


def test_lines_are_read_as_pip_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_bytes(
        b"\xef\xbb\xbf# head\n\nnumpy==1 # why\n  torch \\\n  >=2\nx @ file:///a#b\n\\\n"
    )
    assert lines_of(str(path)) == [(3, "numpy==1"), (5, "torch >=2"), (6, "x @ file:///a#b")]


@pytest.mark.promise("B42")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"numpy\nf\xfcr\n", "is not text: byte 0xfc in line 2"),
        (b"numpy\n\ntorch\0\n", "is not text: byte 0x00 in line 3"),
        (b"\x89PNG\r\n", "byte 0x89 in line 1"),
    ],
)
def test_requirements_that_are_not_text_are_refused(
    data: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / "r.txt").write_bytes(data)
    with pytest.raises(InstallError) as caught:
        lines_of(str(tmp_path / "r.txt"))
    assert words in caught.value.message


def test_utf16_with_a_mark_is_text(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_bytes("numpy\n".encode("utf-16"))
    assert lines_of(str(tmp_path / "r.txt")) == [(1, "numpy")]


@pytest.mark.promise("B42", "S08")
@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://me:hunter22@index.example/simple",
        "--extra-index-url=https://me:hunter22@index.example/simple",
        "-i https://me:hunter22@index.example/simple",
        "-f https://me:hunter22@index.example/wheels",
    ],
)
def test_an_index_is_refused_where_there_is_no_network(line: str) -> None:
    check("r.txt", [(4, line)], network_isolation=False)
    with pytest.raises(InstallError) as caught:
        check("r.txt", [(1, "-f ./wheels"), (2, "-f file:///wheels"), (4, line)], True)
    assert "r.txt line 4 names a package index" in caught.value.message
    assert "index.example" in caught.value.message
    assert "hunter22" not in caught.value.message


def test_options_of_nested_files_keep_their_meaning(tmp_path: Path) -> None:
    tree(tmp_path, {"sub/wheels/x": "", "requirements.txt": "-r sub/more.txt\n--no-index\nnumpy\n"})
    tree(tmp_path, {"sub/more.txt": "--find-links wheels\n-r ../requirements.txt\n--pre\n"})
    options = options_of(str(tmp_path / "requirements.txt"))
    assert f"--find-links {tmp_path}/sub/wheels" in options
    assert {"--no-index", "--pre"} < set(options)
    assert "numpy" not in options


def item(name: str, version: str, **info: object) -> dict[str, object]:
    download = {"url": f"https://i/{name}.whl", **info}
    return {"metadata": {"name": name, "version": version}, "download_info": download}


def test_missing_packages_are_pinned_with_hashes_when_all_have_one() -> None:
    hashed = {"archive_info": {"hashes": {"sha256": "ab"}}}
    assert pinned([item("a", "1", **hashed), item("b", "2", **hashed)]) == [
        "a==1 --hash=sha256:ab",
        "b==2 --hash=sha256:ab",
    ]
    assert pinned([item("a", "1", **hashed), item("b", "2")]) == ["a==1", "b==2"]


def test_direct_requirements_keep_their_address() -> None:
    git = item("g", "1", vcs_info={"vcs": "git", "commit_id": "c0"}, subdirectory="py")
    folder = item("f", "1", dir_info={})
    lines = pinned([{**git, "is_direct": True}, {**folder, "is_direct": True}])
    assert lines == ["g @ git+https://i/g.whl@c0#subdirectory=py", "f @ https://i/f.whl"]


def test_a_target_comes_first_on_both_paths() -> None:
    environ = {"PYTHONPATH": "/mine", "PATH": "/bin"}
    assert with_target(environ, "/t") == {"PYTHONPATH": "/t:/mine", "PATH": "/t/bin:/bin"}
    assert with_target({}, "/t")["PYTHONPATH"] == "/t"
    assert with_target(environ, "") == environ


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (97, "97 bytes"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        (812 << 20, "812 MiB"),
        (1023 << 20, "1023 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert size_text(count) == text


def test_room_is_asked_of_the_disk(tmp_path: Path) -> None:
    assert shortage(str(tmp_path), 1) == ""
    assert shortage(str(tmp_path), 1 << 62).startswith("needs 4.19e+06 TiB, ")
    assert shortage("/not/here", 1 << 62) == ""


def test_a_trees_size_does_not_follow_links(tmp_path: Path) -> None:
    tree(tmp_path, {"a": "12345", "b/c": "123"})
    (tmp_path / "b/up").symlink_to("..")
    assert tree_bytes(str(tmp_path)) == 8 + len("..")


@pytest.mark.promise("F54")
def test_a_slow_mount_is_named_while_it_is_slow(tmp_path: Path) -> None:
    """A pipe without a writer blocks its reader as a slow mount does."""
    os.mkfifo(tmp_path / "slow")
    log = LogLines()

    def read() -> None:
        with Patience(str(tmp_path / "slow"), log, after_s=0.05):
            (tmp_path / "slow").read_bytes()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        deadline = time.monotonic() + 10
        while not log.lines and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        (tmp_path / "slow").write_bytes(b"")
        reader.join(10)
    assert log.lines == [f"WARNING stage still reading path={tmp_path}/slow waited_s=0.05"]


def test_a_fast_mount_is_not_mentioned(tmp_path: Path) -> None:
    log = LogLines()
    with Patience(str(tmp_path), log, after_s=30):
        pass
    assert log.lines == []
