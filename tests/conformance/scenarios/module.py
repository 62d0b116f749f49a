"""SAGEMAKER_TRAINING_MODULE: a function of the image's author owns the job (protocol.md 12)."""

from __future__ import annotations

from tests.conformance.facets import CULPRIT
from tests.conformance.scenario import BARE, Scenario
from tests.conformance.scenarios.parts import SCRIPT, script, sdk

_HOOKED = {"SAGEMAKER_TRAINING_MODULE": "conformance_hook:main", "PYTHONPATH": "<base>/hooks"}


def _hook(name: str, body: str) -> Scenario:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    text = f"{SCRIPT}def main():\n{lines}"
    return Scenario(
        f"module: {name}",
        sdk(),
        script(),
        environ=_HOOKED,
        tree={"hooks/conformance_hook.py": text},
        oracles=(BARE,),
    )


SCENARIOS = (
    _hook("the function of the image", "return None"),
    _hook("a function that leaves with a code", "import sys\nsys.exit(3)"),
    _hook("a function that raises", f"raise RuntimeError('{CULPRIT}')"),
    _hook("a function that raises OSError with a number", f"raise OSError(13, '{CULPRIT}')"),
    _hook("a function that raises OSError without a number", f"raise OSError('{CULPRIT}')"),
    Scenario(
        "module: of the vendor's framework toolkit",
        sdk(),
        script(),
        environ={"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"},
        oracles=(BARE,),
    ),
)
