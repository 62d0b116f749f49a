"""What a host has: control groups as files, tools as stand-ins on PATH, interfaces as they are."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.stage.machine import cgroup, probe
from muster.stage.machine.cgroup import Cgroups


class Tree:
    """A control group file system of our own making."""

    def __init__(self, folder: Path) -> None:
        self.mount = folder / "cgroup"
        self.mount.mkdir()
        self.membership = folder / "membership"
        self.membership.write_text("")

    def member(self, *lines: str) -> Tree:
        self.membership.write_text("".join(line + "\n" for line in lines))
        return self

    def put(self, path: str, text: str) -> Tree:
        (self.mount / path).parent.mkdir(parents=True, exist_ok=True)
        (self.mount / path).write_text(text)
        return self

    def read(self) -> Cgroups:
        return Cgroups(str(self.mount), str(self.membership))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_version_2_limits_count_at_every_level(tree: Tree) -> None:
    tree.member("0::/job/rank")
    tree.put("job/memory.max", "1048576\n").put("job/rank/memory.max", "max\n")
    tree.put("job/cpu.max", "150000 100000\n").put("job/rank/cpu.max", "max 100000\n")
    tree.put("job/pids.max", "64\n").put("job/rank/pids.max", "100\n")
    groups = tree.read()
    assert groups.memory_limit_bytes() == 1 << 20
    assert groups.cpu_quota() == 1.5
    assert groups.process_limit() == 64


def test_version_1_limits_are_found_by_controller(tree: Tree) -> None:
    tree.member("4:memory:/docker/abc", "3:cpu,cpuacct:/docker/abc", "2:pids:/docker/abc")
    tree.put("memory/docker/abc/memory.limit_in_bytes", "67108864\n")
    tree.put("memory/memory.limit_in_bytes", "9223372036854771712\n")
    tree.put("cpu/docker/abc/cpu.cfs_quota_us", "50000\n")
    tree.put("cpu/docker/abc/cpu.cfs_period_us", "100000\n")
    tree.put("pids/docker/abc/pids.max", "max\n")
    groups = tree.read()
    assert groups.memory_limit_bytes() == 64 << 20
    assert groups.cpu_quota() == 0.5
    assert groups.process_limit() is None


def test_a_container_with_paths_of_its_host_uses_the_top_of_what_is_mounted(tree: Tree) -> None:
    tree.member("4:memory:/docker/not-mounted-here")
    tree.put("memory/memory.limit_in_bytes", "67108864\n")
    tree.put("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert tree.read().memory_limit_bytes() == 64 << 20
    assert tree.read().oom_kills() == 3


@pytest.mark.promise("F11")
def test_the_kill_counter_is_the_innermost_groups(tree: Tree) -> None:
    tree.member("0::/job").put("job/memory.events", "low 0\noom 2\noom_kill 1\n")
    assert tree.read().oom_kills() == 1


def test_no_limits_and_no_files_are_none(tree: Tree) -> None:
    tree.member("1:cpu:/", "garbage", "0::/").put("cpu/cpu.cfs_quota_us", "-1\n")
    groups = tree.read()
    assert groups.memory_limit_bytes() is None
    assert groups.cpu_quota() is None
    assert groups.process_limit() is None
    assert groups.oom_kills() is None
    assert cgroup.usable_cpus(groups) == len(os.sched_getaffinity(0))


def test_a_quota_of_a_fraction_is_one_cpu(tree: Tree) -> None:
    tree.member("0::/").put("cpu.max", "10000 100000\n")
    assert cgroup.usable_cpus(tree.read()) == 1


def tool(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def path_with(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_without_tools_no_process_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    machine = probe.probe_machine({"PATH": str(tmp_path)})
    assert (machine.gpus, machine.neurons) == (0, 0)


def test_devices_are_counted_by_their_tools(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", '[ "$1" = --list-gpus ] && printf "GPU 0: A\\nGPU 1: B\\n"')
    tool(tmp_path, "neuron-ls", """[ "$1" = -j ] && echo '[{"nc_count": 2}, {"nc_count": 2}]'""")
    machine = probe.probe_machine(path_with(tmp_path))
    assert (machine.gpus, machine.neurons) == (2, 4)


@pytest.mark.promise("F45")
def test_a_query_that_hangs_is_unknown_and_both_wait_together(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", "exec sleep 60")
    tool(tmp_path, "neuron-ls", "exec sleep 60")
    before = time.monotonic()
    machine = probe.probe_machine(path_with(tmp_path), limit_s=0.3)
    took = time.monotonic() - before
    assert (machine.gpus, machine.neurons) == (None, None)
    assert 0.3 <= took < 30  # the tools themselves take 60


def test_a_tool_without_its_driver_has_no_devices(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", "echo NVIDIA-SMI has failed; exit 9")
    assert probe.probe_machine(path_with(tmp_path)).gpus == 0


def test_a_tool_for_another_machine_has_no_devices(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF not for this machine")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert probe.probe_machine(path_with(tmp_path)).gpus == 0


@pytest.mark.parametrize(
    ("answer", "cores"),
    [
        ('[{"nc_count": 32}]', 32),
        ("[]", 0),
        ("", 0),
        (None, None),
        ("{}", 0),
        ("[1]", None),
        ('[{"x": 1}]', None),
        ("neuron-ls: error", None),
    ],
)
def test_neuron_answers(answer: str | None, cores: int | None) -> None:
    assert probe.count_neuron_cores(answer) == cores


def test_efa_is_told_by_the_driver(tmp_path: Path) -> None:
    for driver in ("mlx5_core", "efa"):
        (tmp_path / "drivers" / driver).mkdir(parents=True)
    devices = tmp_path / "infiniband"
    (devices / "rdmap0s6" / "device").mkdir(parents=True)
    link = devices / "rdmap0s6/device/driver"
    link.symlink_to(tmp_path / "drivers/mlx5_core")
    assert not probe.has_efa(str(devices))
    link.unlink()
    link.symlink_to(tmp_path / "drivers/efa")
    assert probe.has_efa(str(devices))
    assert not probe.has_efa(str(tmp_path / "none"))


def test_the_loopback_interface_of_this_machine_is_found() -> None:
    assert ("lo", "127.0.0.1") in probe.interfaces()


def test_ipv6_addresses_count_when_they_are_global_and_usable(tmp_path: Path) -> None:
    """Those of a day come behind those that last."""
    table = tmp_path / "if_inet6"
    address = "fd00000000000000000000000000000"
    rows = [("1", "00", "01"), ("2", "00", "82"), ("3", "20", "80"), ("4", "10", "80"),
            ("5", "00", "40"), ("6", "00", "20")]  # fmt: skip
    lines = [f"{address}{last} 02 40 {scope} {flags}     eth0" for last, scope, flags in rows]
    table.write_text("".join(f"{line}\n" for line in lines))
    assert probe.ipv6_addresses(str(table)) == [("eth0", "fd00::2"), ("eth0", "fd00::1")]
    assert probe.ipv6_addresses(str(tmp_path / "none")) == []


def test_shared_memory_is_measured_or_absent(tmp_path: Path) -> None:
    assert probe.shm_bytes(str(tmp_path))
    assert probe.shm_bytes("/not/here") is None


def test_tools_are_looked_up_on_the_given_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    found = tool(tmp_path, "x", "exit 0")
    assert probe.find_tool({"PATH": f"{tmp_path}/a::{tmp_path}"}, "x") == str(found)
    found.chmod(stat.S_IRUSR)
    assert probe.find_tool({"PATH": str(tmp_path)}, "gone") == ""


HEAVY = "asyncio logging tarfile urllib argparse dataclasses subprocess tempfile shutil hashlib"


def test_staging_a_plain_script_loads_nothing_heavy(tmp_path: Path) -> None:
    """A trivial job pays for every module; see the budget of `train`."""
    (tmp_path / "train.py").touch()
    code = f"""if True:
        import sys
        from muster.types.job import Program, Settings
        from muster.stage.python import install
        from muster.stage.machine import network
        from muster.stage.machine import probe
        from muster.stage.code import program
        from muster.stage.code import source
        made = program.decide({str(tmp_path)!r}, "train.py", (), "", False)
        install.install(made, {{}}, Settings(), None, None)
        probe.probe_machine({{"PATH": {str(tmp_path)!r}}})
        print(sorted(set({(HEAVY + " pathlib inspect json").split()!r}) & set(sys.modules)))
    """
    argv = [sys.executable, "-I", "-S", "-c", "import sys; sys.path[:0] = [sys.argv[1]]\n" + code]
    source_folder = str(Path(probe.__file__).parents[3])
    done = subprocess.run(
        [*argv, source_folder], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
