"""Full, read-only and absent output folders, as real mounts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster, Result, lines
from tests.launcher.support.disks.mounts import behind, read_only_disk, small_disk

Make = Callable[..., Cluster]

FILLS_AND_FAILS = (
    "import os\n"
    "folder = os.environ['SM_OUTPUT_DIR']\n"
    "try:\n"
    "    with open(os.path.join(folder, 'big'), 'wb', buffering=0) as file:\n"
    "        while True:\n"
    "            file.write(b'x' * 512)\n"
    "except OSError as error:\n"
    "    print('landed:', error.strerror, flush=True)\n"
    "raise ValueError('bad batch')\n"
)
FAILS = "raise ValueError('bad batch')\n"
SAID = "UserScriptError: ValueError: bad batch (algo-1 rank 0, exit code 1)"


def run_on(job: Cluster, *mounts: str) -> tuple[Result, str]:
    """Runs the host behind `mounts` of its own; its result, and the failure file seen there."""
    seen = job.folder / "seen"
    keep = f"cat {job.base('algo-1')}/output/failure > {seen} 2>/dev/null"
    job.expect(no_status_file=True)  # it lies below a mount that only the host sees
    job.start(command=behind(mounts, afterwards=keep))
    result = job.wait(30)["algo-1"]
    return result, seen.read_text()


def check_failure(result: Result, seen: str) -> None:
    """The right code, and the failure whole in its file, or else on stderr."""
    assert result.code == 1, result.err
    assert "FAILED algo-1 rank 0: ValueError: bad batch" in result.err
    assert result.err.rstrip().splitlines()[-1] == "exit code 1"
    if seen:
        assert seen.startswith(SAID + "\nFix: ")
        assert seen.endswith("ValueError: bad batch\n")
        assert len(seen.encode()) <= 1024
    else:
        assert "no failure file could be written" in result.err


@pytest.mark.promise("F50")
def test_a_disk_that_the_script_fills_keeps_the_failure_file_whole(cluster: Make) -> None:
    job = cluster(FILLS_AND_FAILS, hosts=1)
    output = job.base("algo-1") / "output"
    result, seen = run_on(job, *small_disk(output))
    assert "landed: No space left on device" in result.out
    check_failure(result, seen)
    assert seen


@pytest.mark.promise("F50")
def test_a_disk_that_was_full_before_costs_the_file_and_not_the_code(cluster: Make) -> None:
    job = cluster(FAILS, hosts=1)
    output = job.base("algo-1") / "output"
    result, seen = run_on(
        job,
        *small_disk(output, "size=64k,nr_inodes=2"),
        f"{{ cat /dev/zero > {output}/big 2>/dev/null; test -s {output}/big; }}",
    )
    assert "no room can be reserved for the failure file" in result.err  # the fault
    check_failure(result, seen)
    assert not seen


def data_alone(job: Cluster) -> list[str]:
    """Mounts of an output folder that is read-only but for its `data`."""
    output = job.base("algo-1") / "output"
    made = [f"mkdir -p {output}", f"mount -t tmpfs tmpfs {output}", f"mkdir {output}/data"]
    disk = [f"mount -t tmpfs tmpfs {output}/data", f"mount -o remount,ro {output}"]
    return [*made, *disk, f"! touch {output}/probe 2>/dev/null"]


@pytest.mark.promise("F51")
def test_a_read_only_output_folder_costs_the_file_and_not_the_code(cluster: Make) -> None:
    job = cluster(FAILS, hosts=1)
    result, seen = run_on(job, *data_alone(job))
    check_failure(result, seen)
    assert not seen


@pytest.mark.promise("F51")
def test_a_read_only_output_folder_does_not_fail_a_job_that_went_well(cluster: Make) -> None:
    job = cluster("print('ran')", hosts=1)
    result, seen = run_on(job, *data_alone(job))
    assert (result.code, result.out, seen) == (0, "ran\n", "")
    assert "no room can be reserved" in result.err


@pytest.mark.promise("B41")
@pytest.mark.parametrize("name", ["model", "output/data", "checkpoints"])
def test_a_folder_for_the_jobs_work_that_is_read_only_ends_it_before_it_runs(
    cluster: Make, name: str
) -> None:
    job = cluster("print('ran')", hosts=1)
    folder = job.base("algo-1") / name
    result, _ = run_on(job, *read_only_disk(folder))
    assert (result.code, result.out) == (100, ""), result.err
    assert f"ConfigError: {folder}: cannot be written: mounted read-only" in result.err
    assert "--tmpfs" in result.err


@pytest.mark.promise("B41")
def test_a_host_that_cannot_keep_a_model_ends_the_job_on_all_hosts(cluster: Make) -> None:
    job = cluster("print('ran')")
    folder = job.base("algo-2") / "model"
    job.start("algo-1")
    job.start("algo-2", command=behind(read_only_disk(folder)))
    results = job.wait(30)
    assert [(result.code, result.out) for result in results.values()] == [(100, "")] * 2
    assert f"{folder}: cannot be written" in results["algo-1"].first_line


@pytest.mark.promise("F66")
def test_a_temporary_folder_without_an_inode_is_not_used(cluster: Make) -> None:
    job = cluster("print('ran')", hosts=1)
    full = job.folder / "full"
    job.environ["TMPDIR"] = str(full)
    fill = f"touch {full}/one && ! touch {full}/two 2>/dev/null"  # the fault
    job.start(command=behind([*small_disk(full, "nr_inodes=2"), fill]))
    result = job.wait(30)["algo-1"]
    assert (result.code, result.out) == (0, "ran\n"), result.err


NO_FOLDER = """
from muster.run.child.private_folder import open_private_folder
from muster.types.errors import LaunchError
try:
    open_private_folder()
except LaunchError as error:
    print(error.message, error.fix, sep="\\n")
"""


@pytest.mark.promise("F66")
def test_where_no_temporary_folder_has_an_inode_each_is_named() -> None:
    full = ("/tmp", "/dev/shm", "/run", "/var/tmp")
    mounts = [f"mount -t tmpfs -o nr_inodes=2 tmpfs {folder}" for folder in full]
    words = behind(mounts, [sys.executable, "-c", NO_FOLDER])
    environ = {**os.environ, "TMPDIR": "/tmp"}
    said = subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout
    for folder in full:
        assert f"{folder}: No space left on device (no inode is free)" in said
    assert "mount a writable /tmp with room" in said


@pytest.mark.promise("F50")
def test_a_full_record_folder_changes_no_outcome(cluster: Make) -> None:
    """The record lies below the output; a disk that it cannot have costs the record only."""
    script = "import sys\nfor _ in range(40000):\n    print('x' * 60)\nprint('end')\n"
    job = cluster(script, hosts=1, environ={"MUSTER_RECORD": "full"})
    output = job.base("algo-1") / "output"
    result, _ = run_on(job, *small_disk(output))
    (told,) = lines(result.err, "of the record were not written")  # the fault
    assert "No space left on device" in told
    assert (result.code, result.out.count("\n")) == (0, 40001)
