"""Ways to hosts that people have: many, behind another host, by a shared connection, with shells
and logins of their own."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.version import __version__
from tests.launcher.elsewhere.sshd import ALIAS, Desk, ssh_hosts
from tests.launcher.elsewhere.test_ssh_hosts import SCRIPT, Place, result
from tests.support.waiting import wait_until

NAMES = tuple(f"host-{place}" for place in range(16))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with ssh_hosts(tmp_path_factory.mktemp("ssh") / "d", NAMES) as made:
        yield made


@pytest.fixture
def place(desk: Desk, tmp_path: Path) -> Place:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    return Place(desk, tmp_path)


def nothing_left(place: Place) -> None:
    wait_until(lambda: not any(map(place.desk.left, NAMES)), 60)


def test_hosts_behind_another_one_by_shared_connections(place: Place) -> None:
    """The connections that ssh keeps open for the next command do not keep the job."""
    behind = NAMES[1:5]
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # paths of sockets are
        ways = ("ProxyJump=host-0", "ControlMaster=auto", "ControlPersist=2")
        ways += (f"ControlPath={short}/%C",)
        options = [word for one in ways for word in ("--set", one)]
        code, out, err = result(place.start(*options, file="\n".join(behind)))
        assert code == 0 and out.count("said ") == len(behind), err
    assert {path.name for path in (place.folder / "run/model").iterdir()} == {
        f"weights-{name}" for name in behind
    }
    nothing_left(place)


def test_many_hosts_behind_one_that_takes_few_at_a_time(place: Place) -> None:
    behind = NAMES[1:]
    code, out, err = result(place.start("--set", "ProxyJump=host-0", file="\n".join(behind)))
    assert code == 0 and out.count("said ") == len(behind), err
    nothing_left(place)


OLDER = """\
import runpy, muster.version
muster.version.__version__ = "0.0.9"
runpy.run_module("muster", alter_sys=True)
"""


def test_a_host_with_another_muster_is_told_which_one_to_install(place: Place) -> None:
    (place.folder / "older.py").write_text(OLDER)
    python = place.folder / "python"  # is called with `-m muster run --attended`
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {place.folder}/older.py "$@"\n')
    python.chmod(0o755)
    code, out, err = result(place.start("--python", str(python), file="host-1"))
    assert (code, out) == (2, ""), err
    assert f"host-1 has muster 0.0.9, this is {__version__}" in err, err
    assert f"muster-training=={__version__}" in err and not (place.folder / "run").exists()
    nothing_left(place)


def test_a_host_by_two_names_is_refused(place: Place) -> None:
    """Ranks of both would be there, and want the same ports."""
    code, out, err = result(place.start(file="host-1\n10.78.0.3"))
    assert (code, out) == (2, ""), err
    assert "are the same host" in err and "host-1" in err and "10.78.0.3" in err, err
    assert not (place.folder / "run").exists()
    nothing_left(place)


def test_a_leader_whom_only_the_configuration_of_ssh_knows(place: Place) -> None:
    """The other hosts would look for it for minutes."""
    code, out, err = result(place.start(file=f"{ALIAS}\nhost-1"))
    assert (code, out) == (2, ""), err
    assert f"host-1: it knows no {ALIAS}, the leader (" in err, err
    assert f"{ALIAS}=ADDRESS" in err and "nothing was started" in err
    assert not (place.folder / "run").exists()
    nothing_left(place)
    code, _, err = result(place.start(file=f"{ALIAS}=10.78.0.2\nssh://root@host-1:22"))
    assert code == 0, err


def test_a_folder_below_the_home_of_the_hosts(place: Place) -> None:
    there = place.desk.home / "scratch"
    there.mkdir()
    code, _, err = result(place.start("--set", "TMPDIR=scratch", file="host-1"))
    assert code == 0, err
    assert (place.folder / "run" / "model" / "weights-host-1").exists()
    nothing_left(place)
    assert list(there.iterdir()) == []


@pytest.mark.parametrize("shell", ["dash", "tcsh", "fish"])
def test_any_login_shell_will_do(place: Place, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} on this machine")
    known = place.desk.home.parent / "passwd"
    before = known.read_text()
    known.write_text(before.replace("/bin/bash", path))
    try:
        code, out, err = result(place.start(file="host-2"))
    finally:
        known.write_text(before)
    assert code == 0 and out.count("said ") == 1, err


def test_a_closed_terminal_stops_the_job(place: Place) -> None:
    job = place.start(
        "--set", f"TMPDIR={place.folder}/tmp", env={"STAY": "1"}, file="host-1\nhost-2"
    )
    up = "tmp/muster-job-*/run/*/opt/ml/output/data/up"
    wait_until(lambda: len(list(place.folder.glob(up))) == 2 or job.poll() is not None, 60)
    os.kill(job.pid, signal.SIGHUP)
    code, out, err = result(job)
    assert code == 143 and out.count("saved") == 2, err
    nothing_left(place)


SLOW = """\
import os, time
from muster.local.record import runfolder
def drop(path, drop=runfolder.drop_earlier):
    until = time.monotonic() + 30
    while not os.path.exists({trained!r}):
        if time.monotonic() > until:
            os._exit(99)
        time.sleep(0.02)
    drop(path)
runfolder.drop_earlier = drop
"""


def test_hosts_do_not_wait_until_an_earlier_run_is_deleted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two minutes of silence they would take the desk for gone."""
    trained = place.folder / "trained"
    with (place.folder / "code" / "train.py").open("a") as script:
        script.write(f"Path({str(trained)!r}).write_text('')\n")
    (place.folder / "hook").mkdir()
    (place.folder / "hook/sitecustomize.py").write_text(SLOW.format(trained=str(trained)))
    path = f"{place.folder / 'hook'}:{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)
    earlier = place.folder / "run" / "node-x" / "opt/ml/model/weights"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("")
    (place.folder / "run/.muster-run").write_text("")
    code, _, err = result(place.start("--overwrite", file="host-1"))
    assert code == 0, err
    assert not (place.folder / "run/.earlier").exists() and not earlier.exists()
