"""What a host says last: a summary, and on the leader the block that a person looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.contract import markers
from muster.contract.report import failure_block, failure_text
from muster.run.job.hostlife import phase_lines
from muster.types.outcome import Failed, Succeeded

if TYPE_CHECKING:
    from muster.run.job.context import Ending
    from muster.run.job.supervisor import Output
    from muster.types.masking import Masker


def say_last(output: Output, ending: Ending, masker: Masker, leads: bool, written: bool) -> None:
    """The last lines of this host. `written`: the status file is there.

    A follower says one line: the leader's block is to be the last thing on a shared screen.
    """
    outcome = ending.outcome
    log = output.console
    good = isinstance(outcome, Succeeded)
    log("report", markers.REPORTING_SUCCESS if good else markers.REPORTING_FAILURE)
    level = "ERROR" if isinstance(outcome, Failed) else "INFO"
    if not good:
        log("report", markers.encountered(outcome.exit_code), level=level)
    if not leads:
        said = outcome.headline or f"stopped by {getattr(outcome, 'by', '')}"
        log("report", said, level=level, exit_code=outcome.exit_code)
        return
    for host, ended in ending.ended.items():
        took = phase_lines(ended.phases)
        if took:
            log("report", f"time on {host}: {took}")
    if not written and not good and failure_text(outcome, masker):
        log("report", "no failure file could be written", level="WARNING")
    notes = map(masker.mask, ending.notes)
    output.console.last_block(notes, failure_block(outcome, masker), marked=not good)
