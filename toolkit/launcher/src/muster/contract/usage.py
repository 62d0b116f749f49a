"""`train` called with arguments that it does not know (B49)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from muster.contract import report
from muster.contract.request.files import BASE_VARIABLE, DEFAULT_BASE
from muster.types.errors import ConfigError
from muster.types.job import Paths
from muster.types.masking import Masker
from muster.types.outcome import Failed
from muster.types.plain import short

USAGE = """\
usage: train
  Runs the job that /opt/ml/input/config (or SAGEMAKER_BASE_DIR) and the environment ask for.
  Arguments of the script are hyperparameters. `muster --help` shows commands for people.
"""


def refuse_arguments(environ: Mapping[str, str], arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code and what to print on stderr; the failure file has been written.

    Only the first argument is named, and of that the part before a `=`: the rest may be secret.
    """
    got = arguments[0].partition("=")[0]
    error = ConfigError.of(
        "arguments",
        f"`train` takes none, got {short(got)}",
        "send what the script is to get as hyperparameters, or run it here: muster local SCRIPT",
    )
    outcome = Failed(error.exit_code, error.headline, error.fix)
    masker = Masker.of(environ)
    paths = Paths.below(environ.get(BASE_VARIABLE) or DEFAULT_BASE)
    if os.path.isdir(paths.base):
        report.reserve(paths)
        report.write(paths, outcome, masker)
    return error.exit_code, USAGE + report.failure_block(outcome, masker) + "\n"
