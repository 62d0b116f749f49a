"""`SAGEMAKER_TRAINING_MODULE=muster.contract.hook:main`: muster in images that keep the
incumbent's `train`."""

from __future__ import annotations

import os

from muster.contract.support import unsupported


class TrainingFailedError(Exception):
    """The job did not finish. Has no errno: the incumbent takes that for the exit code."""


def main() -> None:
    """Runs the job; returns on success, raises TrainingFailedError otherwise, and never exits.

    The incumbent reports exit code 0 when a hook exits, whatever the code, and when the hook is
    interrupted. The failure file is there before this raises, so the incumbent keeps it.
    """
    reason = unsupported()
    if reason:
        raise TrainingFailedError(reason)
    from muster.train import run
    from muster.types.masking import Masker
    from muster.types.outcome import Stopped, Succeeded

    try:
        outcome = run(os.environ)
    except BaseException:  # SystemExit and KeyboardInterrupt too
        import traceback

        # unchained: the incumbent prints the whole chain, and only this text is masked
        text = Masker.of(os.environ).mask(traceback.format_exc())
        raise TrainingFailedError(text) from None
    if isinstance(outcome, Stopped):
        raise TrainingFailedError(outcome.headline or f"stopped by {outcome.by}")
    if not isinstance(outcome, Succeeded):
        raise TrainingFailedError(outcome.headline)
