"""A Slurm cluster of real daemons: two hosts with networks and processes of their own, one folder.

The packages are unpacked below .cache by scripts/ci-machine and never installed, so that no service
of theirs ever starts.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.hosts import ENDS_WITH_US, Networks, address, networks, skip_without_networks
from tests.support.waiting import wait_until, within

ROOT = Path(__file__).parents[3]
UNPACKED = ROOT / ".cache" / "slurm"
NODES = ("n1", "n2")
OURS = ("muster", "torchelastic", "prte", "ompi", "pmix")  # begin names of temporary files
CLIENT_S = 20.0  # for one answer of a client
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL")
# Sizes are as they are said, not as they are measured: nodes share one machine.
CONFIG = """\
ClusterName=muster
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
KillWait=30
MinJobAge=300
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=YES State=UP
"""


def why_not_here() -> str:
    """Why real daemons cannot run here, or ""."""
    if not (UNPACKED / "usr/sbin/slurmctld-wlm").exists():
        return f"no Slurm in {UNPACKED.relative_to(ROOT)}: run scripts/ci-machine"
    return ""


class Slurm:
    """The running cluster: its clients, and what is left on its nodes.

    `folder` is shared by all nodes. A client that does not answer in time fails the test.
    """

    def __init__(self, folder: Path, nets: Networks) -> None:
        self.folder = folder
        self._nets = nets
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._libraries = next((UNPACKED / "usr/lib").glob("*-linux-gnu"))
        self.environ = {
            "PATH": f"{UNPACKED}/usr/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{self._libraries}/slurm-wlm:{self._libraries}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "MUSTER_JOIN_S": "60",
        }

    def start(self) -> None:
        """Starts the daemons and waits until both nodes are idle."""
        for name in ("state", "tmp", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        nodes = [
            f"NodeName={node} NodeAddr={address(place)} CPUs=4 RealMemory=1000 State=UNKNOWN"
            for place, node in enumerate(NODES)
        ]
        text = CONFIG.format(
            first=NODES[0],
            address=address(0),
            plugins=self._libraries / "slurm-wlm",
            folder=self.folder,
            nodes="\n".join(nodes),
        )
        (self.folder / "slurm.conf").write_text(text)
        sbin = UNPACKED / "usr/sbin"
        self._daemon(NODES[0], "slurmctld", [f"{sbin}/slurmctld-wlm", "-D", "-i"])
        step = f"{sbin}/slurmstepd-wlm"
        for node in NODES:
            # all that a job leaves on a node is in here, and ends with it
            alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
            self._daemon(node, node, [*alone, f"{sbin}/slurmd-wlm", "-D", "-N", node, "-d", step])
        wait_until(lambda: self._idle() == len(NODES), 30, self.story)

    def _daemon(self, host: str, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.out").open("wb") as out:
            self._daemons[name] = subprocess.Popen(
                [*ENDS_WITH_US, *self._nets.inside(host), *command],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ends the daemons, each by its own pid, and asserts that nothing is left of them."""
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        mark = f"SLURM_CONF={self.environ['SLURM_CONF']}".encode()
        wait_until(lambda: not marked(mark), 10, lambda: f"left of Slurm: {marked(mark)}")

    def on_first(self) -> list[str]:
        """What stands before a command that is to run on the first node."""
        return self._nets.inside(NODES[0])

    def client(self, *words: str, check: bool = True, limit_s: float = CLIENT_S) -> str:
        """What one of Slurm's programs says on the first node."""
        done = subprocess.run(
            [*self.on_first(), *words],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=within(limit_s),
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}\n{self.story()}"
        return done.stdout

    def sbatch(self, script: str, *options: str) -> str:
        """Hands in a batch script for both nodes; the job's number."""
        place = self.folder / f"job-{time.monotonic_ns()}.sh"
        place.write_text(f"#!/bin/bash\n{script}")
        own = [f"--chdir={self.folder}", "--output=%j.log"]
        asked = ["sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", *own]
        return self.client(*asked, *options, str(place)).strip()

    def facts(self, job: str) -> Mapping[str, str]:
        """What `scontrol show job` says."""
        shown = self.client("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\w+)=(\S*)", shown))

    def ended(self, job: str, limit_s: float = 60.0) -> tuple[str, int]:
        """Waits for the end of a job; its state, and the exit code of its batch script."""
        until = time.monotonic() + within(limit_s)
        while True:
            facts = self.facts(job)
            state, _, _ = facts["JobState"].partition("+")
            if state in ENDED:
                code, _, number = facts["ExitCode"].partition(":")
                return state, int(code) or -int(number)
            assert time.monotonic() < until, self.story(job)
            time.sleep(0.05)

    def log(self, job: str) -> str:
        path = self.folder / f"{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def left(self) -> dict[str, list[str]]:
        """The command lines on each node beside its daemon, of what is alive."""
        return {node: [words for _, words in self._on_node(node)] for node in NODES}

    def kill(self, node: str) -> None:
        """What a step runs there, with SIGKILL: neither Slurm's own nor the batch script."""
        for pid, words in self._on_node(node):
            with suppress(ProcessLookupError):
                if os.path.basename(words.split()[0]).startswith("python"):
                    os.kill(pid, signal.SIGKILL)

    def wait_nobody(self) -> None:
        """Nobody is left on the nodes."""
        wait_until(lambda: not any(self.left().values()), 20, lambda: f"left: {self.left()}")

    def wait_clean(self, killed: bool = False) -> None:
        """Nobody is left on the nodes, no job in the queue, no file of muster's or a launcher's but
        where their owners were `killed`."""
        self.wait_nobody()
        wait_until(lambda: not self.client("squeue", "--noheader"), 20, self.story)
        wait_until(lambda: self._idle() == len(NODES), 20, self.story)
        left = [name for name in os.listdir(self.environ["TMPDIR"]) if name.startswith(OURS)]
        assert killed or not left, left
        for name in left:
            shutil.rmtree(os.path.join(self.environ["TMPDIR"], name))

    def _on_node(self, node: str) -> list[tuple[int, str]]:
        namespace = Path(f"/proc/{self._daemons[node].pid}/ns/pid_for_children")
        with suppress(OSError):
            own = namespace.readlink()
            found = []
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    alive = (process / "stat").read_text().rpartition(") ")[2][0] not in "ZX"
                    inside = (process / "ns/pid").readlink() == own
                    if inside and alive and "slurmd-wlm" not in words:
                        found.append((int(process.name), words))
            return found
        raise AssertionError(self.story())

    def _idle(self) -> int:
        shown = self.client("sinfo", "--noheader", "--Node", "--format=%t", check=False)
        return shown.split().count("idle")

    def story(self, job: str = "") -> str:
        """What a failed test needs to be understood."""
        names = [f"{job}.log"] if job else []
        names += ["slurmctld.log", "slurmctld.out", *(f"slurmd-{node}.log" for node in NODES)]
        paths = [self.folder / name for name in names]
        texts = [f"--- {one.name}\n{one.read_text()[-3000:]}" for one in paths if one.exists()]
        facts = str(self.client("scontrol", "show", "job", job, check=False)) if job else ""
        return "\n".join([facts, *texts])


def marked(mark: bytes) -> list[str]:
    """Processes whose environment holds `mark`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(f"{process.name} {(process / 'cmdline').read_bytes()!r}")
    return found


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Two nodes; skips where they cannot be had."""
    skip_without_networks()
    why = why_not_here()
    if why:
        pytest.skip(why)
    with networks(NODES, whole=True, known=folder / "hosts") as nets:
        made = Slurm(folder, nets)
        try:
            made.start()
            yield made
        finally:
            made.stop()
    shutil.rmtree(folder / "state", ignore_errors=True)
