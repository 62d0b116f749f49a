"""Secrets that turn up nowhere but in the processes that they are for (promises S08, S09)."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster, Result, pids
from tests.launcher.support.packages import make_wheel
from tests.support.commands import Recorder

Make = Callable[..., Cluster]

SCRIPT = """\
import json, os, sys, time
import helper
everything = json.load(open(os.path.join(os.environ['TEST_FOLDER'], 'canaries')))
found = {**os.environ, **dict(zip(sys.argv[1::2], sys.argv[2::2]))}
known = [one for one in everything if any(one in value for value in found.values())]
open(os.path.join(os.environ['TEST_FOLDER'], 'known-' + os.environ['SM_CURRENT_HOST']), 'w').write(
    json.dumps([everything.index(one) for one in known]))
time.sleep(1)
if os.environ['SM_CURRENT_HOST'] == 'algo-2':
    raise ValueError('not admitted with ' + ' and '.join(known))
time.sleep(600)
"""


def canary(odd: str = "") -> str:
    return f"canary{odd}{secrets.token_hex(12)}"


class Canaries:
    """Secrets of every kind that a job may hold; `of_ranks`: those that its scripts are given."""

    def __init__(self) -> None:
        self.variables = {
            "AWS_SECRET_ACCESS_KEY": canary(),
            "AWS_SESSION_TOKEN": canary("/+="),
            "HF_TOKEN": canary(),
            "DB_PASSWORD": canary("'\"\\$ é"),
            "GIT_CREDENTIALS": canary(),
            "CODEARTIFACT_AUTH_TOKEN": canary(),
        }
        self.only_there = canary()  # known to one host
        self.index = canary()  # the password of an index in a variable
        self.requirements = canary()  # and in requirements.txt
        self.job_secret = canary()
        self.parameters = {"api_key": canary(), "hub-token": canary("."), "nested": canary()}
        self.address = canary()  # a password in an address of an innocent name

    @property
    def of_arguments(self) -> list[str]:
        return [*self.parameters.values(), self.address]

    @property
    def of_ranks(self) -> list[str]:
        return [*self.variables.values(), self.only_there, self.index, *self.of_arguments]

    @property
    def all(self) -> list[str]:
        return [*self.of_ranks, self.requirements, self.job_secret]

    def hyperparameters(self) -> dict[str, str]:
        return {
            "sagemaker_program": "train.py",
            "api_key": self.parameters["api_key"],
            "hub-token": self.parameters["hub-token"],
            "options": json.dumps({"login": {"password": self.parameters["nested"]}}),
            "database": f"postgresql://me:{self.address}@db.example:5432/x",
        }

    def environment(self) -> dict[str, str]:
        return {
            **self.variables,
            "PIP_INDEX_URL": f"http://someone:{self.index}@127.0.0.1:1/simple",
            "MUSTER_JOB_SECRET": self.job_secret,
        }

    def forms(self, one: str) -> set[bytes]:
        """A canary as it may be written."""
        return {one.encode(), json.dumps(one)[1:-1].encode(), repr(one)[1:-1].encode()}

    def in_(self, data: bytes) -> list[str]:
        return [one for one in self.all if any(form in data for form in self.forms(one))]


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


def job_with(cluster: Make, canaries: Canaries, script: str = SCRIPT) -> Cluster:
    """Two hosts that install a package and are given every canary; one more on algo-2."""
    job = cluster(script, environ=canaries.environment())
    job.expect(scripts_show_it=True)
    job.set_hyperparameters(canaries.hyperparameters())
    wheels = job.folder / "wheels"
    make_wheel(wheels, "helper", "1.0")
    (job.folder / "canaries").write_text(json.dumps(canaries.all))
    index = f"--extra-index-url http://someone:{canaries.requirements}@127.0.0.1:1/simple\n"
    for name in job.names:
        (job.base(name) / "code" / "requirements.txt").write_text(index + "helper==1.0\n")
    home = job.folder / "home"  # what is written there is looked at too
    home.mkdir()
    job.environ |= {
        "HOME": str(home),
        "TEST_FOLDER": str(job.folder),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(wheels),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    return job


def start(job: Cluster, canaries: Canaries) -> None:
    for name in job.names:
        own = {"MUSTER_INSTALL_TARGET": str(job.folder / f"site-{name}")}
        if name == "algo-2":
            own["ONLY_HERE_TOKEN"] = canaries.only_there
        job.start(name, environ=own)


@contextmanager
def command_lines(job: Cluster) -> Iterator[set[bytes]]:
    """The command lines of the job's Pythons and of what they start, as they tell them themselves,
    and those of this machine that could be seen meanwhile."""
    seen: set[bytes] = set()
    recorder = Recorder(job.folder.parent)
    job.environ |= recorder.environ
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            for pid in pids():
                try:
                    seen.add(Path(f"/proc/{pid}/cmdline").read_bytes())
                except OSError:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join(10)
        seen |= {"\0".join(words).encode() for words in recorder.started()}


def written(job: Cluster) -> Mapping[str, bytes]:
    """What the job left on the disk, but for what it was given and what its screen showed."""
    given = [job.base(name) / part for name in job.names for part in ("input", "code")]
    mine = {
        job.folder / "canaries",
        *(job.folder / n / s for n in job.names for s in ("out", "err")),
    }
    found = {}
    for top in (job.folder, job.temp):
        for path in top.rglob("*"):
            if path.is_file() and path not in mine and not set(given) & set(path.parents):
                found[str(path)] = path.read_bytes()
    return found


def system_files() -> dict[str, tuple[int, int]]:
    """Size and time of change of all below /etc, where everybody may read."""
    found = {}
    for path in Path("/etc").rglob("*"):
        about = path.lstat()
        found[str(path)] = (about.st_size, about.st_mtime_ns)
    return found


@pytest.mark.promise("S08")
@pytest.mark.promise("S09")
def test_no_canary_leaves_the_processes_that_it_is_for(cluster: Make, canaries: Canaries) -> None:
    job = job_with(cluster, canaries)
    system = system_files()
    with command_lines(job) as seen:
        start(job, canaries)
        results = job.wait(90)
    assert "/etc/passwd" in system
    assert system_files() == system
    known = json.loads((job.folder / "known-algo-2").read_text())
    assert {canaries.all[i] for i in known} == set(canaries.of_ranks), "the canaries were there"
    _only_scripts_have_them_on_their_line(seen, canaries)
    for name, result in results.items():
        assert result.code == 1
        assert result.first_line.startswith(
            "UserScriptError: ValueError: not admitted with *** and"
        )
        _nothing_on_the_screen(result, canaries, spoken=name == "algo-2")
    files = written(job)
    assert any(path.endswith("summary.json") for path in files)
    assert any(path.endswith("events.jsonl") for path in files)
    assert any(b"not admitted with ***" in data for path, data in files.items() if ".err" in path)
    for path, data in files.items():
        assert not canaries.in_(data), path


def _only_scripts_have_them_on_their_line(seen: set[bytes], canaries: Canaries) -> None:
    """Hyperparameters are the arguments of scripts: that is how SageMaker hands them over."""
    scripts = 0
    for line in seen:
        shown = canaries.in_(line)
        if shown:
            assert line.split(b"\0")[1] == b"train.py", line
            assert set(shown) <= set(canaries.of_arguments), line
            scripts += 1
    assert scripts, "no script was seen while it ran"
    assert any(b"pip\0install" in line for line in seen), "no installer was seen"


def _nothing_on_the_screen(result: Result, canaries: Canaries, spoken: bool) -> None:
    """What a script writes is passed on as it is, and nothing else holds a canary."""
    assert not canaries.in_(result.out.encode())
    own = [line for line in result.err.splitlines() if canaries.in_(line.encode())]
    assert len(own) == spoken, own
    assert all(line.startswith("ValueError: not admitted with canary") for line in own)


@pytest.mark.promise("S08")
@pytest.mark.parametrize(
    "command", [["plan"], ["plan", "--json"], ["doctor"], ["doctor", "--json"]]
)
def test_muster_shows_no_canary(cluster: Make, canaries: Canaries, command: list[str]) -> None:
    job = job_with(cluster, canaries)
    environ = {**job.environ, "SAGEMAKER_BASE_DIR": str(job.base("algo-1"))}
    done = subprocess.run(
        [sys.executable, "-m", "muster", *command],
        env=environ, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert len(done.stdout) > 100, done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert not canaries.in_(done.stdout + done.stderr)
    if command == ["plan"]:
        assert b"***" in done.stdout


@pytest.mark.promise("S08")
@pytest.mark.promise("S09")
def test_large_values_that_went_to_files_are_gone_after_the_job(
    cluster: Make, canaries: Canaries
) -> None:
    """SM_TRAINING_ENV holds every hyperparameter; too long for a variable, it goes to a file."""
    script = (
        "import os, stat\n"
        "path = os.environ['SM_TRAINING_ENV_FILE']\n"
        "print(oct(stat.S_IMODE(os.stat(path).st_mode)), len(open(path).read()))\n"
        "print(oct(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode)))\n"
    )
    job = cluster(script, hosts=1)
    job.set_hyperparameters(
        {**canaries.hyperparameters(), "long": "x" * 100_000, "l2": "y" * 90_000}
    )
    result = job.run()["algo-1"]
    assert result.code == 0
    assert result.out.startswith("0o600 ")
    assert result.out.endswith("0o700\n")
    for path, data in written(job).items():
        assert not canaries.in_(data), path
