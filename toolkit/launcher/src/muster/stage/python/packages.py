"""Packages that an option needs in the script's Python: looked for, never imported."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from muster.stage.machine.question import Question
from muster.types.distribution import MODEL_PARALLEL
from muster.types.errors import ConfigError

# option -> packages of which one must be there, and what carries the first
_NEEDED = {
    MODEL_PARALLEL: (
        ("smdistributed.modelparallel", "torch.sagemaker"),
        "add muster-compat, whose names run on muster-parallel, to requirements.txt or the image, "
        "or drop mp_parameters and train with torch_distributed, by FSDP or DeepSpeed",
    ),
}
_ASK_S = 20.0
# Folder by folder, as the import system would, but without running any package's code.
_LOOK = """\
import json, sys
from importlib.machinery import PathFinder

def there(name):
    path = None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    return True

print(json.dumps([name for name in sys.argv[1:] if not there(name)]))
"""


def missing_packages(
    names: Sequence[str], python: str, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Those of `names` that a script under `python` could not import; () when it does not answer.

    Nothing is imported: torch alone would take seconds.
    """
    answer = Question([python, "-c", _LOOK, *names], environ).answer(time.monotonic() + _ASK_S)
    try:
        return tuple(json.loads(answer or "[]"))
    except ValueError:  # something of the user's writes at every start of Python
        return ()


def require_packages(option: str, python: str, environ: Mapping[str, str]) -> None:
    """Raises ConfigError when `option` needs a package that the script's Python lacks."""
    names, fix = _NEEDED.get(option, ((), ""))
    missing = missing_packages(names, python, environ) if names else ()
    if names and len(missing) == len(names):
        raise ConfigError.of(
            option, f"this option needs the package {names[0]}, which {python} does not have", fix
        )
