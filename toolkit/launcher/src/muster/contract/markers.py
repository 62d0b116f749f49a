"""Log lines that other tools look for."""

from __future__ import annotations

INVOKING_USER_SCRIPT = "Invoking user script"
TRAINING_ENV = "Training Env:"
ENVIRONMENT_VARIABLES = "Environment variables:"
INVOKING_COMMAND = "Invoking script with the following command:"
REPORTING_SUCCESS = "Reporting training SUCCESS"
REPORTING_FAILURE = "Reporting training FAILURE"


def encountered(exit_code: int) -> str:
    return f"Encountered exit_code {exit_code}"
