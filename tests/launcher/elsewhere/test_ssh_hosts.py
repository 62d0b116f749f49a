"""`muster submit --on hosts:FILE`, from a desk to two hosts with a real sshd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.sshd import Desk, processes, ssh_hosts
from tests.support.waiting import wait_until, within

WAIT_S = 60.0
KEY = "f00dcafe"
NAMES = ("node-a", "node-b")
SCRIPT = """\
import json, os, signal, sys, time
from pathlib import Path
me = os.environ["SM_CURRENT_HOST"]
model, checkpoints = Path("/opt/ml/model"), None
def save(number, frame):
    Path(os.environ["SM_MODEL_DIR"], f"saved-{me}").write_text("saved")
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
told = []
for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        told.append(path.read_bytes())
    except OSError:
        pass
words = [os.environ["TOKEN"], os.environ.get("MUSTER_JOB_SECRET", "none, as it should be")]
seen = [word in line.decode(errors="replace") for line in told for word in words]
print("said", json.dumps([me, os.environ["SM_HOSTS"], os.environ["MASTER_ADDR"], any(seen)]), flush=True)
Path(os.environ["SM_MODEL_DIR"], f"weights-{me}").write_text(me)
if os.environ.get("FAIL") == me:
    sys.exit(42)
Path(os.environ["SM_OUTPUT_DATA_DIR"], "up").write_text("")
while os.environ.get("STAY"):
    time.sleep(0.05)
"""


class Place(NamedTuple):
    desk: Desk
    folder: Path

    def start(
        self, *options: str, env: dict[str, str] | None = None, file: str = "\n".join(NAMES)
    ) -> subprocess.Popen[str]:
        """`muster submit` at the desk."""
        (self.folder / "hosts.txt").write_text(file + "\n")
        command = [sys.executable, "-m", "muster", "submit", "code/train.py"]
        command += ["--on", "hosts:hosts.txt", "--set", f"F={self.desk.config}", *options]
        if "--output" not in options:
            command += ["--output", "run"]
        environ = {**os.environ, "TOKEN": f"token {KEY}", "MUSTER_QUIET": "1", **(env or {})}
        given = ["--env", "TOKEN", *(word for name in env or () for word in ("--env", name))]
        return subprocess.Popen(
            [*self.desk.inside("desk"), f"--wd={self.folder}", *command, *given],
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *options: str, **more: object) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of one that ends by itself; nothing is left on any host."""
        return self.ended(self.start(*options, **more))  # type: ignore[arg-type]

    def ended(self, job: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = job.communicate(timeout=within(WAIT_S))
        self.nothing_left(err)
        return job.returncode, out, err

    def nothing_left(self, story: str) -> None:
        wait_until(
            lambda: not any(self.desk.left(name) for name in NAMES),
            WAIT_S,
            lambda: f"{story}\n{[self.desk.left(name) for name in NAMES]}",
        )


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


def test_hosts_run_one_job_and_their_records_come_back(place: Place) -> None:
    code, out, err = place.run("--set", f"TMPDIR={place.folder / 'tmp'}")
    assert code == 0, err
    said = [json.loads(line.partition("said ")[2]) for line in out.splitlines() if "said" in line]
    names = json.dumps(list(NAMES), separators=(",", ":"))
    assert sorted(said) == [[name, names, "node-a", False] for name in NAMES], out
    run = place.folder / "run"
    assert sorted(path.name for path in (run / "model").iterdir()) == [
        f"weights-{name}" for name in NAMES
    ]
    assert (run / "summary.json").exists()
    assert all((run / name / "events.jsonl").exists() for name in NAMES)
    assert list((place.folder / "tmp").iterdir()) == []
