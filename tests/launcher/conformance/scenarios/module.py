"""SAGEMAKER_TRAINING_MODULE: a function of the image's author owns the job."""

from __future__ import annotations

from tests.launcher.conformance.facets import CULPRIT
from tests.launcher.conformance.scenario import ABSENT, BARE, Scenario
from tests.launcher.conformance.scenarios.meant import differs, tied
from tests.launcher.conformance.scenarios.parts import SCRIPT, script, sdk

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


_SCENARIOS = (
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
_AS_A_RANK = differs(
    "the function runs as a rank: a process of its own, with every variable of the contract",
    ("env.*", ABSENT, "*"),
    ("env.SAGEMAKER_JOB_NAME", "", ABSENT),
    ("env.SAGEMAKER_REGION", "", ABSENT),
    ("files.record", "no", "yes"),
    ("log.invocation", "", "Invoking user script; *"),
    ("script.cwd", "<host>", "<base>/code"),
    ("script.name", "<bin>/train", "train"),
)
_RAISED = _AS_A_RANK + differs(
    "what a function raises is a failure of the user's script",
    ("failure.exit_code", ABSENT, "1"),
    ("failure.head", "Framework Error", "UserScriptError"),
    ("failure.words", "Framework Error", "ExecuteUserScriptError"),
)
_MEANT = {
    "module: the function of the image": _AS_A_RANK,
    "module: a function that raises": _RAISED,
    "module: a function that raises OSError with a number": _RAISED + differs(
        "a number of the system is no exit code", ("exit", "13", "1"),
    ),
    "module: a function that leaves with a code": _AS_A_RANK + differs(
        "the code of the function is the code of the job",
        ("exit", "0", "3"),
        ("failure", ABSENT, "present"),
        ("log.report", "", "Reporting training FAILURE*"),
    ),
    "module: a function that raises OSError without a number": _RAISED + differs(
        "a failure never ends with 0",
        ("exit", "0", "*"),
        ("log.report", "*", "*Encountered exit_code"),
    ),
    "module: of the vendor's framework toolkit": differs(
        "vendor images name their toolkit; our launcher takes its place",
        ("env.MASTER_ADDR", "algo-1", ABSENT),
        ("env.MASTER_PORT", "7777", ABSENT),
        ("env.NCCL_DEBUG", "WARN", ABSENT),
        ("env.NCCL_IB_DISABLE", "1", ABSENT),
        ("env.NCCL_SOCKET_IFNAME", "lo", ABSENT),
    ),
}  # fmt: skip

SCENARIOS = tied(_SCENARIOS, _MEANT)
