"""Two hosts in namespaces that run the same MPI job under ours, the incumbent and bare mpirun.

All three use the machine's own mpirun and its sshd, not a wheel's. A host has its own network,
/tmp, /run, root's .ssh folder and /etc/environment: the incumbent's images have a key pair of root
in them, so one is made here for each run. Needs root: sshd drops privileges.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.launcher.jobs import environ
from benchmarks.launcher.software import Software
from tests.launcher.conformance.isolated import Cluster, IsolatedHost
from tests.support.venvs import CHECKOUT, UnavailableError

MPIRUN = "/usr/bin/mpirun"
LIMIT_S = 240.0
NOOP = "from mpi4py import MPI\n"
# rank 1 of host 2 fails while the others wait for it inside MPI
FAILS = """\
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank == comm.size - 1:
    raise ValueError("bad batch")
comm.Barrier()
"""
_HERE = Path(__file__).parent


class Host(NamedTuple):
    """One host after its job. Seconds count from the moment in which all hosts were up."""

    code: int | None
    ended_s: float
    failure: str  # the first line of its failure file
    log: str


def why_not() -> str:
    """What this machine lacks; "" when nothing."""
    if os.geteuid() != 0:
        return "only root can start sshd"
    wanted = [MPIRUN, "/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/bin/unshare", "/sbin/ip"]
    missing = [path for path in wanted if not os.access(path, os.X_OK)]
    return f"not installed: {', '.join(missing)}" if missing else ""


class MpiJobs:
    """Jobs of `processes` ranks on each of the hosts."""

    def __init__(self, folder: Path, software: Software) -> None:
        if why_not():
            raise UnavailableError(why_not())
        self._folder = folder
        self._software = software
        self._packages = folder / "packages"  # the incumbent's environment has no mpi4py
        self._packages.mkdir(parents=True, exist_ok=True)
        site = next(Path(sys.prefix, "lib").glob("python*/site-packages"))
        if not (self._packages / "mpi4py").exists():
            shutil.copytree(site / "mpi4py", self._packages / "mpi4py")

    def ours(self, script: str, hosts: int, processes: int = 2) -> list[Host]:
        train = str(self._software.muster / "train")
        return self._job("ours", self._software.muster, train, script, hosts, processes)

    def incumbent(self, script: str, hosts: int, processes: int = 2) -> list[Host]:
        train = str(self._software.incumbent / "train")
        return self._job("incumbent", self._software.incumbent, train, script, hosts, processes)

    def bare(self, script: str, hosts: int, processes: int = 2) -> list[Host]:
        """mpirun alone, with an agent that passes its words to a process on the other host."""
        python = str(self._software.muster / "python")
        start = [python, "-IS", str(_HERE / "bare.py"), python, str(hosts), str(processes)]
        return self._job("bare", self._software.muster, start, script, hosts, processes)

    def _job(
        self,
        name: str,
        software: Path,
        train: str | list[str],
        script: str,
        hosts: int,
        processes: int,
    ) -> list[Host]:
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=self._folder) as folder:
            place = Path(folder)
            _make_keys(place / "ssh")
            given = environ(software, PYTHONPATH=str(self._packages), MUSTER_MPIRUN=MPIRUN)
            cluster = Cluster(place, ("unshare", "--net", "--mount"))
            names = [f"algo-{number + 1}" for number in range(hosts)]
            begun = {}
            for host in names:
                base = _request(place / host, names, host, script, processes)
                words = train if isinstance(train, list) else [train]
                prepared = _prepared(place / host, place / "ssh", words, base)
                begun[host] = cluster.add(host, base, given, prepared)
            try:
                cluster.start({})
                return _watched(begun, place)
            finally:
                cluster.kill()


def _request(place: Path, names: list[str], host: str, script: str, processes: int) -> Path:
    base = place / "ml"
    for folder in ("input/config", "code", "model", "output/data"):
        (base / folder).mkdir(parents=True)
    files: Mapping[str, Mapping[str, object]] = {
        "hyperparameters.json": {
            "sagemaker_program": '"train.py"',
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": str(processes),
        },
        "resourceconfig.json": {
            "current_host": host,
            "hosts": names,
            "network_interface_name": "eth0",
        },
        "inputdataconfig.json": {},
    }
    for name, content in files.items():
        (base / "input/config" / name).write_text(json.dumps(content))
    (base / "code" / "train.py").write_text(script)
    return base


def _make_keys(folder: Path) -> None:
    folder.mkdir()
    for name in ("id_rsa", "host_key"):
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            "rsa",
            "-b",
            "2048",
            "-N",
            "",
            "-f",
            str(folder / name),
        ]
        subprocess.run(command, check=True, timeout=60)
    (folder / "authorized_keys").write_text((folder / "id_rsa.pub").read_text())
    (folder / "config").write_text("Host *\n  StrictHostKeyChecking no\n  LogLevel ERROR\n")
    for path in folder.iterdir():
        path.chmod(0o600)


def _prepared(place: Path, ssh: Path, words: list[str], base: Path) -> str:
    """A program that gives the host what an image of the incumbent has, then becomes `train`."""
    path = place / "start"
    lines = (
        "#!/bin/sh -e",
        # the checkout itself may lie below /tmp
        f"mount --bind {CHECKOUT} /mnt && mount -t tmpfs none /tmp && mkdir -p {CHECKOUT}",
        f"mount --bind /mnt {CHECKOUT} && umount /mnt",
        "mount -t tmpfs none /run && mkdir /run/sshd",
        f"cp /etc/environment {place}/environment 2>/dev/null || : > {place}/environment",
        f"mount --bind {place}/environment /etc/environment",
        f"mkdir -p {place}/ssh /root/.ssh && cp {ssh}/* {place}/ssh && chmod 700 {place}/ssh",
        f"mount --bind {place}/ssh /root/.ssh",
        f"cp -r /etc/ssh {place}/etc-ssh && mount --bind {place}/etc-ssh /etc/ssh",
        "rm -f /etc/ssh/ssh_host_*",
        f"cp {ssh}/host_key /etc/ssh/ssh_host_rsa_key",
        "printf 'PermitRootLogin yes\\nUsePAM yes\\n' >> /etc/ssh/sshd_config",
        f"exec {' '.join(words)} {base if len(words) > 1 else ''}",
    )
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def _watched(begun: Mapping[str, IsolatedHost], place: Path) -> list[Host]:
    """Raises RuntimeError when a host does not end."""
    began = time.monotonic()
    ended: dict[str, float] = {}
    while len(ended) < len(begun):
        now = time.monotonic() - began
        ended.update(
            {h: now for h, one in begun.items() if h not in ended and one.poll() is not None}
        )
        if now > LIMIT_S:
            left = sorted(set(begun) - set(ended))
            raise RuntimeError(f"{', '.join(left)} did not end:\n{_log(place / left[0])[-800:]}")
        time.sleep(0.005)
    found = []
    for name, host in begun.items():
        file = place / name / "ml/output/failure"
        first = file.read_text().partition("\n")[0] if file.exists() else ""
        found.append(Host(host.poll(), ended[name], first, _log(place / name)))
    return found


def _log(place: Path) -> str:
    names = ("stdout.log", "stderr.log")
    return "".join((place / name).read_text(errors="replace") for name in names)
