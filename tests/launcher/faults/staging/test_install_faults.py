"""Requirements that cannot be installed on one of two hosts (promises F52, F57)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.disks.mounts import behind, small_disk
from tests.launcher.support.packages import make_wheel
from tests.launcher.support.records import keep_record
from tests.launcher.support.staging import one_ending

Make = Callable[..., Cluster]
PRINTS = "print('ran')\n"
PASS_WORD = "pass-word-of-an-index-9c1d"


def job_with(cluster: Make, files: Mapping[str, str], hosts: int = 2) -> Cluster:
    """Hosts whose code folder holds `files`, each with an install target of its own, and packages
    that are taken from the folder `wheels` only."""
    job = cluster(PRINTS, hosts=hosts)
    keep_record(job)
    for name in job.names:
        for path, text in files.items():
            (job.base(name) / "code" / path).write_text(text)
    job.environ |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels(job)),
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one the other way round
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "1",
        "PIP_TIMEOUT": "5",
    }
    return job


def wheels(job: Cluster) -> Path:
    folder = job.folder / "wheels"
    folder.mkdir(exist_ok=True)
    return folder


def target(job: Cluster, name: str) -> Path:
    return job.folder / f"site-{name}"


def start(job: Cluster, name: str, environ: Mapping[str, str] | None = None, **how: object) -> None:
    own = {"MUSTER_INSTALL_TARGET": str(target(job, name)), **(environ or {})}
    job.start(name, environ=own, **how)  # type: ignore[arg-type]


def start_after_the_other(
    job: Cluster, environ: Mapping[str, str] | None = None, **how: object
) -> None:
    """Starts algo-2, where the fault is, when algo-1 has installed everything."""
    start(job, "algo-1")
    job.wait_for("algo-1", "Successfully installed")
    start(job, "algo-2", environ, **how)


def check_failure_files(job: Cluster, *words: str) -> None:
    """Every host's failure file holds the installer's words, and no text the password."""
    for name in job.processes:
        result = job.result(name)
        for word in words:
            assert word in result.failure, result.failure
        assert PASS_WORD not in result.failure + result.out + result.err


@pytest.mark.promise("F57")
def test_without_a_fault_both_hosts_install_and_run(cluster: Make) -> None:
    """What the tests below break is whole otherwise."""
    job = job_with(cluster, {"requirements.txt": "demo==1.0\n", "train.py": "import demo\n"})
    make_wheel(wheels(job), "demo", "1.0")
    for name in job.names:
        start(job, name)
    assert {r.code for r in job.wait(60).values()} == {0}
    assert all((target(job, name) / "demo.py").exists() for name in job.names)


@pytest.mark.promise("F57")
def test_a_version_that_one_host_cannot_have_ends_both(cluster: Make) -> None:
    job = job_with(cluster, {"requirements.txt": "demo>=2\n"})
    make_wheel(wheels(job), "demo", "2.0")
    old = job.folder / "old"
    make_wheel(old, "demo", "1.0")
    start_after_the_other(job, {"PIP_FIND_LINKS": str(old)})
    assert one_ending(job) == (
        "InstallError: pip failed (exit code 1): No matching distribution found for demo>=2"
        " (on algo-2)"
    )
    check_failure_files(job, "from versions: 1.0", "check name and version")


@pytest.mark.promise("F57")
def test_a_host_without_any_network_says_so(cluster: Make) -> None:
    """In a network namespace of its own, where no name resolves: a job of one host."""
    apart = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets us make no network namespaces")
    job = job_with(cluster, {"requirements.txt": "demo\n"}, hosts=1)
    job.environ |= {"PIP_NO_INDEX": "", "PIP_INDEX_URL": "https://index.invalid/simple"}
    start(job, "algo-1", command=[*apart, sys.executable, "-m", "muster", "train"])
    line = one_ending(job)
    assert "No matching distribution found for demo" in line
    assert "resolution" in job.text("algo-1") + job.text("algo-1", "err")  # the fault
    check_failure_files(job, "Fix: this host cannot reach the package index")


def large_wheel(folder: Path, name: str) -> None:
    """A wheel of 8 MiB that unpacks to as much."""
    path = make_wheel(folder, name, "1.0")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.bin", os.urandom(8 << 20))


@pytest.mark.promise("F52", "F57")
@pytest.mark.parametrize("where", ["temporary folder", "target"])
def test_a_disk_that_packages_do_not_fit_on_is_named_with_its_room_on_both(
    cluster: Make, where: str
) -> None:
    job = job_with(cluster, {"requirements.txt": "demo\n"})
    large_wheel(wheels(job), "demo")
    folder = job.folder / "small" if where == "temporary folder" else target(job, "algo-2")
    seen = job.folder / "seen"
    small = behind(small_disk(folder, "size=4m"), afterwards=f"ls -A {folder} > {seen}")
    own = {"TMPDIR": str(folder)} if where == "temporary folder" else {}
    start_after_the_other(job, own, command=small)
    line = one_ending(job)
    assert re.match(r"InstallError: pip failed \(exit code \d\): .*No space left on device", line)
    check_failure_files(job, f"Fix: give the disk of {folder} more room (")
    left = seen.read_text().split()
    assert ".muster-installed" not in left  # so that the next attempt installs anew
    assert where == "target" or left == []


@pytest.mark.promise("F52", "F57")
def test_a_disk_that_a_package_cannot_be_built_on_is_told_with_both_sizes(cluster: Make) -> None:
    setup = "from setuptools import setup\nsetup(name='mine', version='1', py_modules=['train'])\n"
    job = job_with(cluster, {"setup.py": setup})
    for name in job.names:
        (job.base(name) / "code" / "weights.bin").write_bytes(os.urandom(8 << 20))
    folder, seen = job.folder / "small", job.folder / "seen"
    small = behind(small_disk(folder, "size=4m"), afterwards=f"ls -A {folder} > {seen}")
    start_after_the_other(job, {"TMPDIR": str(folder)}, command=small)
    line = one_ending(job)
    code = job.base("algo-2") / "code"
    assert line.startswith(f"InstallError: no copy of {code} could be made to build its package: ")
    assert "needs 8 MiB, 4 MiB free" in line
    assert seen.read_text() == ""
