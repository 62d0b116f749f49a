"""Bad requests as whole jobs on two hosts: told by all, at once, and nothing was touched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launcher.support.bad_requests import MPI, TORCH
from tests.launcher.support.cluster import Cluster, Result
from tests.launcher.support.packages import make_wheel

Make = Callable[..., Cluster]
OWN_LIMIT_S = 6.0  # promised: 1 s; two Pythons start in it
# A follower looks for its leader for 5 s, the leader stays until all were told.
TOLD_LIMIT_S = 10.0
SCRIPT = """\
import os, pathlib
pathlib.Path({folder!r}, "started-" + os.environ["SM_CURRENT_HOST"]).touch()
"""


class Mistake(NamedTuple):
    """`text`: how the first line goes on behind the class. The rest: what is put in the way.

    `files`: name in the config folder -> content, None to remove it.
    """

    row: str
    text: str
    files: Mapping[str, str | None] = {}
    parameters: Mapping[str, object] = {}
    environ: Mapping[str, str] = {}


def hosts(**changes: object) -> dict[str, str | None]:
    both = {"hosts": ["algo-1", "algo-2"], "current_host": "algo-1"}
    return {"resourceconfig.json": json.dumps({**both, **changes})}


# without these a host does not know who it is, or cannot prove it to the others
ALONE = (
    Mistake("B01", "resourceconfig.json: not found in BASE/input", {"resourceconfig.json": None}),
    Mistake("B08", "current_host: 'algo-9' is not one of algo-1,", hosts(current_host="algo-9")),
    Mistake(
        "B47", "MUSTER_JOB_SECRET: the secret has 5 bytes", environ={"MUSTER_JOB_SECRET": "5" * 5}
    ),
)
TOGETHER = (
    Mistake("B13", "hyperparameters.json: not found in BASE", {"hyperparameters.json": None}),
    Mistake("B16", "no training program: set", {"hyperparameters.json": '{"lr": "1"}'}),
    Mistake("B25", "conflicting distributions: mpi and", parameters={MPI: "true", TORCH: "true"}),
    Mistake("B38", "inputdataconfig.json[0]: 'a/b' is not", {"inputdataconfig.json": '{"a/b": 1}'}),
    Mistake("B45", "MUSTER_STOP_GRACE_S: expected a", environ={"MUSTER_STOP_GRACE_S": "-1"}),
)


def rows(*mistakes: Mistake) -> list[object]:
    return [pytest.param(m, marks=pytest.mark.promise(m.row), id=m.row) for m in mistakes]


class Desk:
    """A job whose code would leave marks: a package that is installed, a script that starts."""

    def __init__(self, make: Make, folder: Path, **environ: str) -> None:
        self.folder = folder
        wheel = make_wheel(folder / "wheels", "demo", "1.0")
        script = SCRIPT.format(folder=str(folder))
        self.parameters = {"my_password": "pa55word-pa55word"}
        self.job = make(script, hyperparameters=self.parameters, environ=environ)
        for name in self.job.names:
            (self.job.base(name) / "code" / "requirements.txt").write_text(f"{wheel}\n")
        self.before: dict[str, bytes] = {}

    def spoil(self, mistake: Mistake, *names: str) -> None:
        for name in names:
            config = self.job.base(name) / "input" / "config"
            if mistake.parameters:
                wanted = {"sagemaker_program": "train.py", **self.parameters, "lr": "1"}
                text = json.dumps({**wanted, **mistake.parameters})
                (config / "hyperparameters.json").write_text(text)
            for file, content in mistake.files.items():
                if content is None:
                    (config / file).unlink()
                else:
                    (config / file).write_text(content)
        self.before = self.files()

    def site(self, name: str) -> Path:
        """Where the packages of a host go."""
        return self.folder / f"site-{name}"

    def start(self, name: str, environ: Mapping[str, str] = {}) -> None:
        self.job.start(name, environ={"MUSTER_INSTALL_TARGET": str(self.site(name)), **environ})

    def start_all(self, mistake: Mistake, *spoilt: str) -> None:
        for name in self.job.names:
            self.start(name, mistake.environ if name in spoilt else {})

    def files(self) -> dict[str, bytes]:
        """What belongs to the platform and to the user."""
        found = {}
        for name in self.job.names:
            for part in ("input", "code"):
                for path in sorted((self.job.base(name) / part).rglob("*")):
                    content = path.read_bytes() if path.is_file() else b""
                    found[str(path)] = content + b" %d" % path.stat().st_mtime_ns
        return found

    def check_nothing_happened(self, *spoilt: str) -> None:
        """Nothing was started or changed, and on the `spoilt` hosts nothing installed.

        A good host installs while it waits for the others to join.
        """
        assert self.before
        assert self.files() == self.before
        assert not [name for name in spoilt if self.site(name).exists()]
        assert not list(self.folder.glob("started-*"))

    def first_lines(self, results: Mapping[str, Result]) -> set[str]:
        """The first lines of the failure files, with BASE for any host's folder."""
        lines = {result.first_line for result in results.values()}
        for name in self.job.names:  # on a real cluster it is the same on every host
            lines = {line.replace(str(self.job.base(name)), "BASE") for line in lines}
        return lines


def check_texts(results: Mapping[str, Result]) -> None:
    for result in results.values():
        assert result.failure.splitlines()[1].startswith("Fix: ")
        assert result.err.count("FAILED ConfigError: ") <= 1
        assert "Traceback" not in result.err
        assert "pa55word" not in result.failure + result.out + result.err


def test_a_good_request_leaves_the_marks_that_a_bad_one_must_not(
    cluster: Make, tmp_path: Path
) -> None:
    desk = Desk(cluster, tmp_path)
    desk.start_all(TOGETHER[0])
    results = desk.job.wait()
    assert {result.code for result in results.values()} == {0}, results["algo-1"].err
    for name in desk.job.names:
        assert (desk.site(name) / "demo.py").exists()
        assert (tmp_path / f"started-{name}").exists()


@pytest.mark.parametrize("mistake", rows(*ALONE, *TOGETHER))
def test_what_is_bad_on_all_hosts_ends_them_at_once_and_touches_nothing(
    cluster: Make, tmp_path: Path, mistake: Mistake
) -> None:
    desk = Desk(cluster, tmp_path)
    desk.spoil(mistake, *desk.job.names)
    if mistake.row == "B01":  # each host names its own base folder, which elsewhere is the same
        desk.job.expect(apart=frozenset({"algo-2"}))
    desk.start_all(mistake, *desk.job.names)
    results = desk.job.wait(OWN_LIMIT_S)
    assert {result.code for result in results.values()} == {100}
    (line,) = desk.first_lines(results)
    assert line.startswith("ConfigError: " + mistake.text)
    check_texts(results)
    desk.check_nothing_happened(*desk.job.names)


@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
@pytest.mark.parametrize("mistake", rows(*TOGETHER))
def test_what_is_bad_on_one_host_ends_all_with_its_first_line(
    cluster: Make, tmp_path: Path, mistake: Mistake, host: str
) -> None:
    desk = Desk(cluster, tmp_path)
    desk.spoil(mistake, host)
    desk.start_all(mistake, host)
    results = desk.job.wait(TOLD_LIMIT_S)
    assert {result.code for result in results.values()} == {100}
    assert len({result.first_line for result in results.values()}) == 1
    (line,) = desk.first_lines(results)
    assert line.startswith("ConfigError: " + mistake.text)
    check_texts(results)
    desk.check_nothing_happened(host)


@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
@pytest.mark.parametrize("mistake", rows(*ALONE))
def test_a_host_that_cannot_say_who_it_is_ends_alone_and_is_missed_by_the_other(
    cluster: Make, tmp_path: Path, mistake: Mistake, host: str
) -> None:
    desk = Desk(cluster, tmp_path, MUSTER_JOIN_S="1.5")
    desk.job.expect(apart=frozenset({host}))
    desk.spoil(mistake, host)
    desk.start_all(mistake, host)
    results = desk.job.wait(TOLD_LIMIT_S)
    bad = results.pop(host)
    assert bad.code == 100
    (line,) = desk.first_lines({host: bad})
    assert line.startswith("ConfigError: " + mistake.text)
    (other,) = results.values()
    assert other.code == 102
    assert host in other.first_line
    assert "within 1.5 s" in other.first_line
    check_texts({host: bad})
    desk.check_nothing_happened(host)


def test_a_bad_leader_stays_until_a_late_host_was_told(cluster: Make, tmp_path: Path) -> None:
    desk = Desk(cluster, tmp_path)
    mistake = TOGETHER[0]
    desk.spoil(mistake, "algo-1")
    desk.start("algo-1")
    desk.job.wait_for("algo-1", "waiting up to 60 s to tell algo-2", "err")
    assert desk.job.processes["algo-1"].poll() is None
    desk.start("algo-2")
    results = desk.job.wait(TOLD_LIMIT_S)
    assert {result.code for result in results.values()} == {100}
    assert len({result.first_line for result in results.values()}) == 1
    desk.check_nothing_happened("algo-1")


def test_a_bad_follower_without_a_leader_gives_up_after_five_seconds(
    cluster: Make, tmp_path: Path
) -> None:
    desk = Desk(cluster, tmp_path)
    desk.spoil(TOGETHER[1], "algo-2")
    began = time.monotonic()
    desk.start("algo-2")
    result = desk.job.wait(TOLD_LIMIT_S)["algo-2"]
    assert time.monotonic() - began > 4
    assert result.code == 100
    assert result.first_line.startswith("ConfigError: no training program")
    desk.check_nothing_happened("algo-2")


def test_a_misspelt_variable_is_one_warning_and_no_failure(cluster: Make, tmp_path: Path) -> None:
    desk = Desk(cluster, tmp_path, MUSTER_JION_S="5")
    desk.start_all(TOGETHER[0])
    results = desk.job.wait()
    assert {result.code for result in results.values()} == {0}
    for result in results.values():
        assert result.err.count("MUSTER_JION_S") == 1
        assert "unknown variable MUSTER_JION_S, did you mean 'MUSTER_JOIN_S'?" in result.err
