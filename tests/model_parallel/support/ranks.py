"""Ranks of a model-parallel job as plain processes on this host: no launcher, nothing left behind.

    ends = run_ranks(script, 2, parameters={"ddp": True})

`script` is source text, a file, or a function that needs nothing of its module: it then imports
what it uses, and what it returns is the rank's result. A script gives its result by `give(value)`.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Union

from tests.support.forkserver import TORCH, Forked, ForkServer
from tests.support.ports import free_port

CHECKOUT = Path(__file__).resolve().parents[3]
SOURCES = (CHECKOUT / "toolkit/parallel/src", CHECKOUT / "toolkit/compat/src")
RESULT = "TEST_RANK_RESULT"  # names the file of a rank's result
FORGOTTEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_", "OMPI_", "PMI_",
             "PMIX_", "SM_", "SMP_", "TORCHELASTIC_")  # fmt: skip
AFTERWARDS_S = 10.0


Process = Union[Forked, "subprocess.Popen[bytes]"]


class RankEnd(NamedTuple):
    """How a rank ended. `code` is negative for a signal; `result` None where it gave none."""

    rank: int
    code: int
    out: str
    err: str
    result: Any


def give(value: Any) -> None:
    """In a rank: its result, as JSON."""
    Path(os.environ[RESULT]).write_text(json.dumps(value))


def run_ranks(
    script: str | Path | Callable[..., object],
    count: int,
    *,
    arguments: Sequence[object] = (),
    parameters: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    env_of: Sequence[Mapping[str, str]] = (),
    limit_s: float = 120,
    fresh: bool = False,
    imports: tuple[str, ...] = (),
) -> list[RankEnd]:
    """Starts `count` ranks, waits for all, and says for each how it ended.

    arguments: JSON values for the function, texts for a script's sys.argv. parameters: what the
    launcher would send (SM_HP_MP_PARAMETERS); none are sent where it is None. env_of: by rank.
    A PYTHONPATH in `env` goes before that of the tests; a PYTHONHASHSEED is that of the rank.
    fresh: each rank is an interpreter of its own in place of a fork.
    imports: modules that ranks are forked with, beside those of torch.
    Raises AssertionError naming the ranks that had not ended after limit_s seconds, with what all
    of them said; those are killed.
    """
    with tempfile.TemporaryDirectory(prefix="model-parallel-") as name:
        folder = Path(name)
        words = _words(script, arguments, folder)
        common = _environ(count, parameters, env or {})
        processes: list[Process] = []
        try:
            for rank in range(count):
                own = env_of[rank] if env_of else {}
                processes.append(_start(words, folder, rank, {**common, **own}, fresh, imports))
            late = _wait(processes, time.monotonic() + limit_s)
        finally:
            for process in processes:
                _kill(process)
        ends = [_end(rank, process, folder) for rank, process in enumerate(processes)]
        assert not late, f"ranks {late} had not ended after {limit_s} s\n{words_of(ends)}"
        return ends


def start_alone(
    script: str | Path | Callable[..., object], arguments: Sequence[object], folder: Path
) -> tuple[Process, Path, Path]:
    """A rank that is the only one, and the files that take its streams, once it has begun.
    `folder` is for its files and exists; whoever starts it ends it."""
    words = _words(script, arguments, folder)
    rank = _start(words, folder, 0, _environ(1, None, {}), False)
    return rank, folder / "out-0", folder / "err-0"


def results(ends: Sequence[RankEnd]) -> list[Any]:
    """Each rank's result. Raises AssertionError where a rank ended otherwise than well."""
    assert all(end.code == 0 for end in ends), words_of(ends)
    return [end.result for end in ends]


def words_of(ends: Sequence[RankEnd]) -> str:
    """What the ranks said, for the message of a test that fails."""
    return "\n".join(
        f"rank {end.rank} ended with {end.code}\n{end.out[-1000:]}\n{_once(end.err)[-6000:]}"
        for end in ends
    )


def _once(words: str) -> str:
    """torch's hook says [rank0]: before each line once more with every group that was the first."""
    return re.sub(r"(\[rank\d+\]: )+", r"\1", words)


def _words(
    script: str | Path | Callable[..., object], arguments: Sequence[object], folder: Path
) -> list[str]:
    if isinstance(script, Path):
        return [str(script), *map(str, arguments)]
    file = folder / "script.py"
    if isinstance(script, str):
        file.write_text(textwrap.dedent(script))
        return [str(file), *map(str, arguments)]
    called = f"{script.__name__}(*json.loads({json.dumps(list(arguments))!r}))"
    file.write_text(
        "from __future__ import annotations\n"
        f"{textwrap.dedent(inspect.getsource(script))}\n"
        'if __name__ == "__main__":\n'
        "    import json\n"
        "    from tests.model_parallel.support.ranks import give\n"
        f"    give({called})\n"
    )
    return [str(file)]


def _environ(
    count: int, parameters: Mapping[str, object] | None, more: Mapping[str, str]
) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(FORGOTTEN)}
    paths = [more.get("PYTHONPATH"), CHECKOUT, *SOURCES, kept.get("PYTHONPATH")]
    found = {
        **kept,
        "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    if parameters is not None:
        found["SM_HP_MP_PARAMETERS"] = json.dumps(dict(parameters))
    return {**found, **more, "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths)))}


@functools.cache
def _server(path: str, seed: str, imports: tuple[str, ...]) -> ForkServer:
    """`seed`: of hashes, "" for any."""
    own = {"PYTHONPATH": path, **({"PYTHONHASHSEED": seed} if seed else {})}
    return ForkServer({**_environ(1, None, {}), **own}, *TORCH, *imports)


def _start(
    words: Sequence[str],
    folder: Path,
    rank: int,
    environ: Mapping[str, str],
    fresh: bool,
    imports: tuple[str, ...] = (),
) -> Process:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), RESULT: str(folder / f"result-{rank}")}
    given, out, err = {**own, **environ}, folder / f"out-{rank}", folder / f"err-{rank}"
    if not fresh:
        server = _server(given["PYTHONPATH"], given.get("PYTHONHASHSEED", ""), imports)
        return server.start(words, given, out, err)
    with open(out, "wb") as says, open(err, "wb") as complains:
        return subprocess.Popen(
            [sys.executable, *words], env=given, stdin=subprocess.DEVNULL,
            stdout=says, stderr=complains, start_new_session=True,
        )  # fmt: skip


def _wait(processes: Sequence[Process], end: float) -> list[int]:
    """The ranks that had not ended in time."""
    late = []
    for rank, process in enumerate(processes):
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            late.append(rank)
    return late


def _kill(process: Process) -> None:
    """The rank, and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if _wait([process], 0.0):  # one that was just forked leads no group yet
        os.kill(process.pid, signal.SIGKILL)
    process.wait(AFTERWARDS_S)


def _end(rank: int, process: Process, folder: Path) -> RankEnd:
    file = folder / f"result-{rank}"
    return RankEnd(
        rank,
        process.wait(AFTERWARDS_S),
        (folder / f"out-{rank}").read_text(errors="replace"),
        (folder / f"err-{rank}").read_text(errors="replace"),
        json.loads(file.read_text()) if file.exists() else None,
    )
