"""Where this host's lines and records go, opened before anything can go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.run.base.console import LEVELS, Console
from muster.run.base.logs import Pump
from muster.run.base.record import Recorder
from muster.run.job.supervisor import Output
from muster.types.distribution import Mpi
from muster.types.errors import ConfigError
from muster.types.job import Job, Paths
from muster.types.masking import Masker
from muster.types.run_files import host_folder
from muster.types.shown import Shown, mark_of

if TYPE_CHECKING:
    from collections.abc import Sequence

CLOSE_S = 3.0
DEFAULT_BASE = "/opt/ml"


def open_output(environ: Mapping[str, str], job: Job | ConfigError) -> Output:
    """The pump, the console and the recorder of this host."""
    shown = job.settings.shown if isinstance(job, Job) else Shown()
    pump = Pump(shown.live)
    masker = _masker_of(environ, job)
    mark = mark_of(environ)
    if isinstance(job, ConfigError):
        name = _name_beside_bad_input(environ)
        recorder = Recorder(name, "", 1, masker.mask)
        console = Console(name, 20, pump, recorder, masker.mask, mark=mark)
        return Output(pump, console, recorder, masker)
    name = job.cluster.me.name
    recorder = Recorder(name, host_folder(job), job.settings.log_limit_bytes, masker.mask)
    level = max(job.log_level, LEVELS["WARNING"]) if shown.quiet else job.log_level
    console = Console(name, level, pump, recorder, masker.mask, shown.quiet, mark)
    return Output(pump, console, recorder, masker)


def _name_beside_bad_input(environ: Mapping[str, str]) -> str:
    """This host's name when at least the list of hosts can be read."""
    from muster.contract.request.read import read_cluster

    try:
        return read_cluster(environ)[0].me.name
    except ConfigError:
        return "this-host"


def close_output(job: Job | ConfigError, output: Output) -> None:
    """Flushes within a few seconds; a reader or a disk that does not take more is not waited
    for."""
    kept = job.settings if isinstance(job, Job) else None
    tails = kept is not None and kept.record == "tail" and not kept.run_dir
    output.recorder.close(CLOSE_S, only_tails=tails)
    output.pump.close(CLOSE_S)


def say_what_is_missing(output: Output) -> None:
    """Warns when the record is not whole; to be said before this host's last block."""
    recorder = output.recorder
    if output.pump.problem:
        text = f"a stream was not watched to its end, a defect of muster: {output.pump.problem}"
        output.console("record", text, level="WARNING")
    if recorder.dropped_bytes:
        output.console(
            "record",
            f"{recorder.dropped_bytes} bytes of the record were not written: "
            f"{recorder.problem or 'the disk was too slow'}",
            level="WARNING",
        )
    if recorder.left_out["events"]:
        text = f"{recorder.left_out['events']} events were left out of the record, which is full"
        output.console("record", text, level="WARNING")


def base_paths(environ: Mapping[str, str]) -> Paths:
    """The contract's folders as far as the environment names them, for reporting bad input."""
    return Paths.below(environ.get("SAGEMAKER_BASE_DIR") or DEFAULT_BASE)


def _masker_of(environ: Mapping[str, str], job: Job | ConfigError) -> Masker:
    """Hides what the environment and the hyperparameters name as secret."""
    maps: Sequence[Mapping[str, object]] = (environ,)
    if isinstance(job, Job):
        maps = (environ, job.documents.hyperparameters)
        if isinstance(job.distribution, Mpi):
            from muster.types.mpi_options import asked_variables

            maps = (*maps, asked_variables(job.distribution))
    return Masker.of(*maps)
