"""Pieces that scenarios share: requests as the SDK encodes them, and user scripts."""

from __future__ import annotations

import json

# `#probe` is replaced by the report of how the script was started
SCRIPT = "#probe\n"
SHELL = "#!/bin/sh\n#probe\n"


def sdk(program: str | None = "train.py", /, **values: object) -> dict[str, str]:
    """Hyperparameters as framework estimators send them: every value JSON-encoded."""
    named = {} if program is None else {"sagemaker_program": program}
    return {name: json.dumps(value) for name, value in {**named, **values}.items()}


def wire(**values: str) -> dict[str, str]:
    """A request whose own hyperparameters arrive exactly as given."""
    return {**sdk(), **values}


def script(body: str = "") -> dict[str, str]:
    """A code folder with the one script `train.py`, which reports and then does `body`."""
    return {"train.py": SCRIPT + body}
