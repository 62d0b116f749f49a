"""The jobs that are timed, and what their run folders say of where the time went."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from benchmarks.launcher.software import Software
from benchmarks.timing import wall, wall_together
from tests.support.ports import free_port

_SCRIPT = "pass\n"


def environ(bin_folder: Path, **more: str) -> dict[str, str]:
    """A plain environment with one folder of software first on PATH."""
    path = f"{bin_folder}:/usr/local/bin:/usr/bin:/bin"
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **more}


def _script(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "noop.py"
    path.write_text(_SCRIPT)
    return path


class TrivialJob:
    """One host, an empty script, no distribution: the cost of a launcher and nothing else."""

    def __init__(self, folder: Path, software: Software) -> None:
        self._folder = folder
        self._software = software

    def script(self) -> Path:
        return _script(self._folder / "code")  # alone: its folder is the job's source

    def bare(self) -> float:
        """`python script`, without a launcher."""
        python = self._software.muster / "python"
        return wall([str(python), str(self.script())], environ(self._software.muster))

    def ours(self) -> float:
        return self._train(self._software.muster)

    def incumbent(self) -> float:
        return self._train(self._software.incumbent)

    def base(self) -> Path:
        """A new request; writing it is not timed."""
        base = self._folder / "ml"
        shutil.rmtree(base, ignore_errors=True)
        config = base / "input" / "config"
        for folder in (config, base / "code", base / "model", base / "output" / "data"):
            folder.mkdir(parents=True)
        files = {
            "hyperparameters.json": {"sagemaker_program": '"train.py"', "lr": "0.1"},
            "resourceconfig.json": {
                "current_host": "algo-1",
                "hosts": ["algo-1"],
                "network_interface_name": "lo",
            },
            "inputdataconfig.json": {},
        }
        for name, content in files.items():
            (config / name).write_text(json.dumps(content))
        (base / "code" / "train.py").write_text(_SCRIPT)
        return base

    def _train(self, bin_folder: Path) -> float:
        base = str(self.base())
        # the incumbent would look the host's name up in the DNS for 15 minutes without it
        given = environ(bin_folder, SAGEMAKER_BASE_DIR=base, SM_STUDIO_LOCAL_MODE="true")
        return wall([str(bin_folder / "train")], given, self._folder.as_posix())


class TwoHostJob:
    """Two hosts, one rank each, an empty script under torchrun."""

    def __init__(self, folder: Path, software: Software) -> None:
        self._folder = folder
        self._bin = software.development  # torchrun lies there
        self._script = _script(folder / "code")
        self._runs = 0

    def ours(self) -> float:
        self._runs += 1
        argv = [
            str(self._bin / "muster"), "local", str(self._script), "--hosts", "2",
            "--distribution", "torch_distributed", "--isolation", "process",
            "--output", str(self.output()),
        ]  # fmt: skip
        return wall(argv, environ(self._bin))

    def bare(self) -> float:
        """Two torchrun processes with the arguments that the hosts' would have."""
        port = free_port()
        commands = [
            [
                str(self._bin / "torchrun"), "--nnodes", "2", "--nproc_per_node", "1",
                "--node_rank", str(host), "--master_addr", "127.0.0.1",
                "--master_port", str(port), str(self._script),
            ]
            for host in range(2)
        ]  # fmt: skip
        return wall_together(commands, environ(self._bin))

    def output(self) -> Path:
        """The run folder of the latest run."""
        return self._folder / f"run-{self._runs}"


def phases(run_folder: Path) -> dict[str, float]:
    """Seconds of every phase on the leader, from the run's events."""
    begins: list[tuple[str, float]] = []
    for line in (run_folder / "algo-1" / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] in ("phase", "outcome"):
            begins.append((event.get("name", "end"), event["t"]))
    begins.sort(key=lambda begin: begin[1])
    ends = [t for _, t in begins[1:]]
    return {name: round(end - t, 3) for (name, t), end in zip(begins[:-1], ends, strict=True)}
