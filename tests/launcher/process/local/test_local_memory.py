"""`muster local --memory` without containers: a control group for each host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.arguments import UsageError
from muster.local.memory import make_groups, remove_groups
from muster.stage.machine.cgroup import Cgroups
from tests.launcher.support.local.local_runs import PROCESS, Start, runs
from tests.launcher.support.local.unprivileged import as_nobody, home_of_nobody, readable_python

LIMIT_BYTES = 200 << 20
EATER = """\
import os
from pathlib import Path
mine = Path("/proc/self/cgroup").read_text()
print("in a group of its own:", "muster-" in mine, flush=True)
if os.environ["SM_CURRENT_HOST"] == os.environ.get("SM_HP_HUNGRY"):
    eaten = [b"x" * (10 << 20) for _ in range(60)]
"""


@pytest.fixture
def groups() -> None:
    """Skips where this user can make no control group."""
    try:
        remove_groups(make_groups(["trial"], LIMIT_BYTES))
    except UsageError as error:
        pytest.skip(error.message)


def groups_left() -> list[str]:
    folders = Cgroups().folders("memory")
    return [name for folder in folders for name in os.listdir(folder) if name[:7] == "muster-"]


@pytest.mark.parametrize("isolation", ["process", "netns"])
def test_a_host_is_killed_at_its_limit_and_the_limit_is_named(
    groups: None, start: Start, tmp_path: Path, isolation: str
) -> None:
    (tmp_path / "eat.py").write_text(EATER)
    argv = ("eat.py", "--hosts", "2", "--memory", "200m", "--isolation", isolation)
    hungry = start(tmp_path, (*argv, "--hyperparameter", "hungry=algo-2")).wait()
    assert hungry.code == 137, hungry.err
    assert hungry.out.count("in a group of its own: True") == 2
    assert "algo-2: the kernel killed for memory: --memory is 200 MiB for each host" in hungry.err
    assert "algo-1: the kernel killed" not in hungry.err
    assert "memory limit of 200 MiB reached" in hungry.err
    fed = start(tmp_path, argv).wait()
    assert fed.code == 0, fed.err
    assert not groups_left()


CHILD_EATS = """\
import os, sys, time
child = os.fork()
if child == 0:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    eaten = [b"x" * (10 << 20) for _ in range(60)]
os.waitpid(child, 0)
time.sleep(4)  # the rank lives on, and is ended by something else
os.kill(os.getpid(), 9)
"""


@pytest.mark.promise("F11")
def test_a_rank_that_outlived_its_child_s_memory_kill_was_not_killed_for_memory(
    groups: None, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "child.py").write_text(CHILD_EATS)
    argv = ("child.py", "--memory", "200m", *PROCESS)
    result = start(tmp_path, argv).wait()
    assert result.code == 137, result.err
    outcome = result.summary["outcome"]
    assert "killed by the kernel" not in outcome["headline"]
    assert "the kernel killed another process of this container for memory" in outcome["fix"]
    assert "(container memory limit of 200 MiB)" in outcome["fix"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_where_no_group_can_be_made_nothing_starts() -> None:
    def fill(home: Path) -> object:
        return (home / "eat.py").write_text(EATER)

    with home_of_nobody(fill) as home, runs() as start:
        argv = ("eat.py", "--memory", "200m", *PROCESS)
        result = start(home, argv, wrapper=as_nobody(), python=readable_python()).wait()
        assert result.code == 2
        assert "--memory: no control group can be made here" in result.err
        assert not result.folder.exists()


UNIFIED = [path for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
           if os.path.exists(f"{path}/cgroup.subtree_control")]  # fmt: skip
PASSES_ON = """\
import os, subprocess, sys
from muster.local.memory import join, pass_on
group, controller, others = sys.argv[1:]
join(group)
other = subprocess.Popen(["sleep", "600"]) if others else None
try:
    pass_on(group, controller)
finally:
    print(open("/proc/self/cgroup").read().split("::")[-1].strip())
    if other:
        other.kill(), other.wait()
"""


@pytest.fixture
def delegated() -> Iterator[tuple[str, str]]:
    """A new group of version 2 with any controller of memory, and that controller."""
    root = Path(*UNIFIED[:1])
    group = root / f"test-{os.getpid()}"
    try:
        there = (root / "cgroup.controllers").read_text().split()
        passed = (root / "cgroup.subtree_control").read_text().split()
        (controller, *_) = [name for name in ("memory", "hugetlb") if name in there]
        if controller not in passed:
            (root / "cgroup.subtree_control").write_text(f"+{controller}")
        group.mkdir()
    except (OSError, ValueError) as error:
        pytest.skip(f"no control group of version 2 can be made here: {error}")
    try:
        yield str(group), controller
    finally:
        remove_groups([*map(str, group.glob("*/")), str(group)])
        if controller not in passed:
            (root / "cgroup.subtree_control").write_text(f"-{controller}")


@pytest.mark.skipif(not UNIFIED, reason="no control groups of version 2 here")
@pytest.mark.parametrize("others", ["", "another process"])
def test_a_scope_of_systemd_is_made_fit_for_groups_below(
    delegated: tuple[str, str], others: str
) -> None:
    """The kernel's own rule (no controllers for children beside processes), whatever it counts."""
    group, controller = delegated
    end = subprocess.run(
        [sys.executable, "-c", PASSES_ON, group, controller, others],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    control = (Path(group) / "cgroup.subtree_control").read_text()
    if others:
        assert "Device or resource busy" in end.stderr
        assert (end.stdout, control.strip()) == (f"/{os.path.basename(group)}\n", "")
        assert not list(Path(group).glob("muster-*"))
    else:
        assert end.returncode == 0, end.stderr
        assert "muster-" in end.stdout
        assert controller in control
