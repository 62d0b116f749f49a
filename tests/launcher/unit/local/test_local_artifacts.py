"""What a job made in its run folder: found, counted, and the models of all hosts in one place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.arguments import UsageError
from muster.local.code import sourcecode
from muster.local.record.artifacts import Clash, Made, gather, made
from muster.local.record.layout import FRESH_SOURCE, MARK
from muster.local.record.runfolder import clear, leave, make_run_folder
from muster.local.record.summary import clashes_in_words, places

HOSTS = ["algo-1", "algo-2"]


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def base(run: Path, host: str) -> Path:
    return run / host / "opt/ml"


def test_the_models_of_all_hosts_lie_in_one_folder(tmp_path: Path) -> None:
    write(base(tmp_path, "algo-1") / "model/a.pt", "one")
    write(base(tmp_path, "algo-2") / "model/part/b.pt", "two")
    (base(tmp_path, "algo-2") / "model/latest").symlink_to("part/b.pt")
    assert gather(str(tmp_path), HOSTS) == []
    model = tmp_path / "model"
    found = sorted(str(p.relative_to(model)) for p in model.rglob("*") if not p.is_dir())
    assert found == ["a.pt", "latest", "part/b.pt"]
    assert (model / "latest").read_text() == "two"
    assert (base(tmp_path, "algo-1") / "model/a.pt").read_text() == "one"


def test_of_one_name_the_first_hosts_file_is_taken_and_the_others_are_told(tmp_path: Path) -> None:
    for host in HOSTS:
        write(base(tmp_path, host) / "model/a.pt", host)
    write(base(tmp_path, "algo-1") / "model/odd")
    write(base(tmp_path, "algo-2") / "model/odd/b.pt")
    clashes = gather(str(tmp_path), ["algo-2", "algo-1"])
    assert clashes == [Clash(name, "algo-2", ("algo-1",)) for name in ("a.pt", "odd")]
    assert (tmp_path / "model/a.pt").read_text() == "algo-2"
    assert (base(tmp_path, "algo-1") / "model/a.pt").read_text() == "algo-1"
    assert "a.pt (algo-2's; also of algo-1)" in clashes_in_words(clashes)


def test_what_cannot_be_gathered_is_where_it_was_and_no_half_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    write(base(tmp_path, "algo-1") / "model/a.pt", "one")
    write(base(tmp_path, "algo-2") / "model/b.pt", "two")

    def full(source: str, *_: object, **__: object) -> None:
        if source.endswith("b.pt"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", full)
    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(OSError, match="No space"):
        gather(str(tmp_path), HOSTS)
    assert not (tmp_path / "model").exists()
    assert (base(tmp_path, "algo-2") / "model/b.pt").read_text() == "two"


def test_a_model_that_cannot_be_read_is_an_error_and_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(base(tmp_path, "algo-1") / "model/a.pt", "one")
    write(base(tmp_path, "algo-2") / "model/b.pt", "two")
    scandir = os.scandir

    def refused(path: str) -> object:
        if str(path).endswith("algo-2/opt/ml/model"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(PermissionError):
        gather(str(tmp_path), HOSTS)
    assert sorted(os.listdir(tmp_path)) == HOSTS
    lines = places(str(tmp_path), HOSTS, None)
    assert not any("none was saved" in line for line in lines)
    assert any("unread" in line and "Permission denied" in line for line in lines)


def test_a_model_that_was_half_gathered_when_muster_was_killed_is_not_the_model(
    tmp_path: Path,
) -> None:
    write(base(tmp_path, "algo-1") / "model/a.pt")
    write(base(tmp_path, "algo-1") / "model/b.pt")
    write(tmp_path / ".model.new/a.pt")
    assert made(str(tmp_path)) == [Made("model", str(base(tmp_path, "algo-1") / "model"), 2)]


@pytest.mark.parametrize("kept", ["", "opt/ml/model/a.pt", "opt/x.npz", "x.npz"])
def test_the_folder_of_one_host_of_another_engine_holds_what_its_job_made(
    tmp_path: Path, kept: str
) -> None:
    for name in (MARK, "events.jsonl", "logs/rank-0.out", "opt/ml/input/config/a.json"):
        write(tmp_path / name)
    (tmp_path / "opt/ml/model").mkdir()
    if kept:
        write(tmp_path / kept)
    assert [one.files for one in made(str(tmp_path))] == [1] * bool(kept)


def test_a_link_in_the_place_of_a_model_is_not_followed(tmp_path: Path) -> None:
    base(tmp_path, "algo-1").mkdir(parents=True)
    (base(tmp_path, "algo-1") / "model").symlink_to("/usr")
    assert gather(str(tmp_path), HOSTS) == []
    assert not (tmp_path / "model").exists()
    assert made(str(tmp_path)) == []


def test_everything_that_a_job_made_is_found_and_what_came_with_the_code_is_not(
    tmp_path: Path,
) -> None:
    write(tmp_path / "src/train.py")
    run = tmp_path / "run"
    sourcecode.pack(str(tmp_path / "src"), str(run / "source/sourcedir.tar.gz"), [str(run)])
    one = base(run, "algo-1")
    for name in ("code/train.py", "code/__pycache__/train.pyc", "output/data/muster/summary.json"):
        write(one / name)
    assert made(str(run)) == []
    for name in ("code/figure.png", "output/data/curve.csv", "checkpoints/1.pt"):
        write(one / name)
    write(base(run, "algo-2") / "checkpoints/2.pt")
    assert made(str(run)) == [
        Made("checkpoints", str(one / "checkpoints"), 1),
        Made("output", str(one / "output/data"), 1),
        Made("code", str(one / "code"), 1),
        Made("checkpoints", str(base(run, "algo-2") / "checkpoints"), 1),
    ]
    lines = [line.split(maxsplit=1) for line in places(str(run), HOSTS, None)]
    assert [name for name, _ in lines] == [
        *("model", "checkpoints", "output", "code", "logs", "record")
    ]
    told = dict(lines)
    assert told["model"] == "none was saved"
    assert told["checkpoints"].endswith("run/algo-*/opt/ml/checkpoints (2 files)")
    assert told["code"].endswith("algo-1/opt/ml/code (1 file that the script wrote there)")
    write(one / "output/curve.csv")
    write(one / "scratch/x")
    write(run / "thesis.txt")
    told = dict(line.split(maxsplit=1) for line in places(str(run), HOSTS, None))
    assert told["output"].endswith("run/algo-1/opt/ml/output (2 files)")
    assert told["other"].endswith("run (2 files)")


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("model/a.pt", "a model"),
        ("algo-1/opt/ml/model/a.pt", "a model"),
        ("algo-2/opt/ml/checkpoints/1", "checkpoints"),
        ("algo-1/opt/ml/output/data/x.csv", "output"),
        ("algo-1/opt/ml/code/results.txt", "files that its script wrote"),
        ("algo-1/opt/ml/output/curve.csv", "output"),
        ("algo-1/opt/ml/scratch/x.npz", "other files"),
        ("algo-1/opt/ml/input/data/x.npz", "other files"),
        ("algo-1/opt/x.npz", "other files"),
        ("algo-1/x.npz", "other files"),
        ("notes/thesis.txt", "other files"),
        ("thesis.txt", "other files"),
    ],
)
def test_an_earlier_run_that_holds_something_is_never_emptied_unasked(
    tmp_path: Path, path: str, what: str
) -> None:
    os.close(make_run_folder("t.py", str(tmp_path / "out")).lock)
    file = write(tmp_path / "out" / path, "weeks of work")
    with pytest.raises(UsageError, match=f"an earlier run and holds {what}$") as refused:
        make_run_folder("t.py", str(tmp_path / "out"))
    assert "another folder" in refused.value.fix
    assert "--overwrite" in refused.value.fix
    assert file.read_text() == "weeks of work"
    again = make_run_folder("t.py", str(tmp_path / "out"), overwrite=True)
    assert file.read_text() == "weeks of work"  # until it is known that the run can begin
    write(tmp_path / "out" / FRESH_SOURCE)
    clear(again)
    assert sorted(os.listdir(again.path)) == [MARK, "source"]
    os.close(again.lock)


def test_a_file_of_the_code_that_the_job_changed_is_one_that_it_made(tmp_path: Path) -> None:
    """Same name, same size: as a pretrained best.pt that is trained further in its place."""
    write(tmp_path / "src/best.pt", "old")
    out = tmp_path / "out"
    os.close(make_run_folder("t.py", str(out)).lock)
    sourcecode.pack(str(tmp_path / "src"), str(out / "source/sourcedir.tar.gz"), [])
    file = write(base(out, "algo-1") / "code/best.pt", "old")
    assert made(str(out)) == []
    file.write_text("new")
    with pytest.raises(UsageError, match=r"holds files that its script wrote$"):
        make_run_folder("t.py", str(out))
    assert file.read_text() == "new"


def test_an_earlier_run_that_cannot_be_read_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system whose server has gone."""
    out = tmp_path / "out"
    os.close(make_run_folder("t.py", str(out)).lock)
    file = write(base(out, "algo-1") / "model/a.pt", "weeks of work")
    scandir = os.scandir

    def stale(path: str) -> object:
        if path.endswith("/model") and "opt" in path:
            raise OSError(116, "Stale file handle", path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", stale)
    with pytest.raises(UsageError, match="Stale file handle"):
        make_run_folder("t.py", str(out))
    monkeypatch.undo()
    assert file.read_text() == "weeks of work"
    os.close(make_run_folder("t.py", str(out), overwrite=True).lock)


def test_a_run_that_cannot_begin_leaves_the_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    os.close(make_run_folder("t.py", str(out)).lock)
    file = write(base(out, "algo-1") / "model/a.pt")
    again = make_run_folder("t.py", str(out), overwrite=True)
    write(out / FRESH_SOURCE)
    leave(again)
    assert file.exists()
    assert not (out / FRESH_SOURCE).exists()
